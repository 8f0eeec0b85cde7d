"""`waitinfo serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waitinfo.cli.display import note
from waitinfo.cli.loading import usable_cores, use_threads
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.trained.folder import bundled_models

if TYPE_CHECKING:
    from waitinfo.serving.hub import Plan

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed."""

    models: list[Path]
    host: str
    port: int
    streams: int
    compare: int
    device: str
    dtype: str
    threads: int
    keys: Path | None
    origins: list[str]
    open_to_all: bool
    idle: float
    drain: float
    log_level: str
    ray: bool = False
    replicas: str = "1"


def run(request: Request) -> None:
    _check(request)
    try:
        from waitinfo.serving import guards, logs, server
        from waitinfo.serving.hub import Plan
        from waitinfo.serving.settings import Settings
    except ImportError as error:
        raise WaitinfoError(
            f"the server needs {error.name}: pip install 'waitinfo[serve]'"
        ) from None
    keys = () if request.keys is None else guards.read_keys(request.keys)
    server.check_binding(request.host, len(keys) > 0, request.open_to_all)
    settings = Settings(
        idle=request.idle,
        drain=request.drain,
        origins=tuple(request.origins),
        local=server.is_local(request.host),
    )
    plan = Plan(
        models=tuple(request.models or map(Path, bundled_models())),
        streams=request.streams,
        compare=request.compare,
        device=request.device,
        dtype=request.dtype,
        keys=keys,
        settings=settings,
    )
    if request.ray:
        _run_on_a_cluster(request, plan)
        return
    listening = server.bind(request.host, request.port)
    # The event loop needs a core too. Where it has none, all threads of the model wait for one.
    use_threads(request.threads or max(1, usable_cores() - 1))
    logs.set_up(request.log_level)
    hub = plan.build()
    names = ", ".join(dict.fromkeys(served.name for served in hub.models))
    note(f"{names} at {_address(request.host, listening.getsockname()[1])} (Ctrl-C ends)")
    server.run(hub, request.host, request.port, listening)


def _run_on_a_cluster(request: Request, plan: Plan) -> None:
    try:
        import ray.serve  # noqa: F401
    except ImportError:
        raise WaitinfoError("--ray needs Ray Serve: pip install 'waitinfo[ray]'") from None
    from waitinfo.serving import cluster

    scale = cluster.Scale.parse(request.replicas, cpus=max(1, request.threads))
    cluster.start(plan, scale, request.host, request.port, request.log_level)
    note(f"{request.replicas} replicas at {_address(request.host, request.port)} (Ctrl-C ends)")
    cluster.wait_for_a_signal()
    cluster.stop()


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _check(request: Request) -> None:
    if request.streams < 1:
        raise WaitinfoError(f"--streams {request.streams}: must be at least 1")
    if request.compare < 0:
        raise WaitinfoError(f"--compare {request.compare}: must be 0 or more")
    if not 0 <= request.port < 1 << 16:
        raise WaitinfoError(f"--port {request.port}: must be from 0 to 65535")
    if request.log_level not in LEVELS:
        raise unknown("--log-level", request.log_level, LEVELS)
    if not 1 <= request.idle < 1e9:
        raise WaitinfoError(f"--idle {request.idle:g}: must be seconds, 1 or more")
    if not 0 <= request.drain < 1e9:
        raise WaitinfoError(f"--drain {request.drain:g}: must be seconds, 0 or more")

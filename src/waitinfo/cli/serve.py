"""`waitinfo serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from waitinfo.cli.display import note
from waitinfo.cli.loading import use_threads
from waitinfo.errors import WaitinfoError, unknown

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


def run(request: Request) -> None:
    _check(request)
    try:
        from waitinfo.serving import guards, logs, metrics, models, server
        from waitinfo.serving.hub import Hub
        from waitinfo.serving.settings import Settings
    except ImportError as error:
        raise WaitinfoError(
            f"the server needs {error.name}: pip install 'waitinfo[serve]'"
        ) from None
    keys = guards.Keys() if request.keys is None else guards.Keys.read(request.keys)
    server.check_binding(request.host, len(keys) > 0, request.open_to_all)
    listening = server.bind(request.host, request.port)
    use_threads(request.threads)
    logs.set_up(request.log_level)
    settings = Settings(
        idle=request.idle,
        drain=request.drain,
        origins=tuple(request.origins),
        local=server.is_local(request.host),
    )
    figures = metrics.Metrics()
    loaded = models.load_models(
        request.models, figures, request.streams, request.device, request.dtype, request.compare
    )
    host = f"[{request.host}]" if ":" in request.host else request.host
    names = ", ".join(dict.fromkeys(served.name for served in loaded))
    note(f"{names} at http://{host}:{listening.getsockname()[1]}/ (Ctrl-C ends)")
    server.run(Hub(loaded, settings, keys, figures), request.host, request.port, listening)


def _check(request: Request) -> None:
    if request.streams < 1:
        raise WaitinfoError(f"--streams {request.streams}: must be at least 1")
    if request.compare < 0:
        raise WaitinfoError(f"--compare {request.compare}: must be 0 or more")
    if not 0 <= request.port < 1 << 16:
        raise WaitinfoError(f"--port {request.port}: must be from 0 to 65535")
    if request.log_level not in LEVELS:
        raise unknown("--log-level", request.log_level, LEVELS)
    for name, seconds in (("--idle", request.idle), ("--drain", request.drain)):
        if not 0 <= seconds < 1e9:
            raise WaitinfoError(f"{name} {seconds:g}: must be seconds, 0 or more")

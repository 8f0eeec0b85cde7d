"""`waitinfo serve`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Option
from waitinfo.cli.options import Paths, SystemChoice, use_threads
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.threads import usable_cores

if TYPE_CHECKING:
    from waitinfo.serving.hub import Plan

MOST_STREAMS = 100_000
LEVELS = ("debug", "info", "warning", "error")


@dataclass(kw_only=True)
class ServeArguments(SystemChoice):
    """What `serve` is given."""

    models: Annotated[
        Paths,
        Option("--model", help="Model or run folders, or names [default: all bundled models]."),
    ] = field(default_factory=list)
    sources: Annotated[
        str, Option("--from", help="Of a model of many languages: offer these, as de,en …")
    ] = ""
    targets: Annotated[str, Option("--to", help="… into these [default: all].")] = ""
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(help="Port to listen on; 0 for any that is free.")] = 8000
    streams: Annotated[int, Option(help="Streams at a time, for each model.")] = 32
    compare: Annotated[
        int,
        Option(help="Streams that may also decode by wait-k, and by full, for the page."),
    ] = 4
    device: Annotated[str, Option(help="auto, cpu, cuda, …")] = "auto"
    dtype: Annotated[str, Option(help="auto, float32, bfloat16, float16, or int8 on a CPU.")] = (
        "auto"
    )
    threads: Annotated[
        int, Option(help="CPU threads of the model [default: all cores but one].")
    ] = 0
    keys: Annotated[
        Path | None, Option(help="A TOML file of keys; only clients with one are served.")
    ] = None
    origins: Annotated[
        list[str],
        Option(help="Pages that may connect, such as https://example.org; * for all."),
    ] = field(default_factory=list)
    open_to_all: Annotated[bool, Option("--open", help="Serve other machines without keys.")] = (
        False
    )
    private: Annotated[
        bool, Option(help="With --keys: figures, models and the API's description, too.")
    ] = False
    proxies: Annotated[
        list[str],
        Option("--proxy", help="An address or network whose X-Forwarded-For is to be believed."),
    ] = field(default_factory=list)
    address_streams: Annotated[
        int | None,
        Option(
            help="Streams of one address without a key; 0 for any number "
            "[default: half of all, any number for this machine]."
        ),
    ] = None
    address_connections: Annotated[
        int | None, Option(help="Connections of one address; the same default.")
    ] = None
    watchers: Annotated[int, Option(help="That may watch rooms at a time.")] = 5_000
    rooms: Annotated[
        str | None,
        Option(
            help="A Redis, such as redis://HOST:6379/0, by which several servers share rooms and "
            "the limits of keys [default: each server has its own]."
        ),
    ] = None
    secret: Annotated[
        Path | None,
        Option(
            help="A file of 32 random bytes or more that signs tickets for watchers, which then "
            "outlive a restart [default: made at every start]."
        ),
    ] = None
    idle: Annotated[float, Option(help="Close streams without text for this long.")] = 900.0
    drain: Annotated[float, Option(help="Seconds that streams get when it stops.")] = 30.0
    recogniser: Annotated[
        str | None,
        Option(
            help="Hears audio: a folder or a name, as listen --recogniser. Loaded at once "
            "[default: whisper-base, loaded when somebody speaks]."
        ),
    ] = None
    voices: Annotated[
        int, Option(help="Audio streams at a time; 0: this server takes no audio.")
    ] = 4
    log_level: Annotated[str, Option(help="debug, info, warning or error.")] = "info"
    ray: Annotated[
        bool, Option("--ray", help="Run replicas on Ray Serve: one machine or a cluster.")
    ] = False
    replicas: Annotated[
        str, Option(help="With --ray: a number, or 1-8 for as many as streams need.")
    ] = "1"


def serve(options: ServeArguments) -> None:
    """Serve live translation: a page, WebSockets and LibreTranslate's interface.

    Open http://127.0.0.1:8000/ and watch. Listens on this machine only, unless told otherwise.

    Examples:

        waitinfo serve

        waitinfo serve --model run --port 8080 --streams 64

        waitinfo serve --model nllb --from de,en --to pt,fr

        waitinfo serve --recogniser whisper-small --voices 8

        waitinfo serve --host 0.0.0.0 --keys keys.toml --origins https://example.org

        waitinfo serve --rooms redis://10.0.0.5:6379/0 --secret secret.bin

        waitinfo serve --ray --replicas 1-8 --streams 64 --host 0.0.0.0 --keys keys.toml
    """
    _check(options)
    try:
        from waitinfo.serving import guards, http, logs, server
        from waitinfo.serving.hub import Plan
        from waitinfo.serving.settings import Settings
        from waitinfo.serving.supervisor import supervise
    except ImportError as error:
        raise WaitinfoError(
            f"the server needs {error.name}: pip install 'waitinfo[serve]'"
        ) from None
    from waitinfo.cli.options import note
    from waitinfo.config import system_options
    from waitinfo.trained.folder import bundled_models, find_model

    keys = () if options.keys is None else guards.read_keys(options.keys)
    if options.private and not keys:
        raise WaitinfoError("--private: needs --keys FILE, which say who may look")
    if keys and options.rooms is not None and options.secret is None and not options.ray:
        raise WaitinfoError(
            "--rooms with --keys: give all servers the same --secret FILE for tickets"
        )
    http.networks(options.proxies)
    server.check_binding(options.host, len(keys) > 0, options.open_to_all)
    settings = Settings(
        idle=options.idle,
        drain=options.drain,
        origins=tuple(options.origins),
        local=server.is_local(options.host),
        watchers=options.watchers,
        rooms=options.rooms,
        private=options.private,
        proxies=tuple(options.proxies),
        address_streams=options.address_streams,
        address_connections=options.address_connections,
    )
    if options.secret is not None:
        settings = replace(settings, secret=guards.read_secret(options.secret))
    plan = Plan(
        models=tuple(options.models or map(Path, bundled_models())),
        streams=options.streams,
        compare=options.compare,
        device=options.device,
        dtype=options.dtype,
        system=options.system,
        options=system_options(options.settings),
        offered=(_codes(options.sources), _codes(options.targets)),
        plugins=tuple(path.absolute() for path in options.plugins),
        recogniser=options.recogniser,
        voices=options.voices,
        keys=keys,
        settings=settings,
    )
    if options.ray:
        _run_on_a_cluster(options, plan)
        return
    listening = server.bind(options.host, options.port)
    logs.set_up(options.log_level)
    names = ", ".join(dict.fromkeys(find_model(path).resolve().name for path in plan.models))
    address = _address(options.host, listening.getsockname()[1])
    # The front needs a core, too. Where it has none, all threads of the model wait for one.
    threads = options.threads or max(1, usable_cores() - 1)
    supervise(
        plan, options.host, listening, partial(use_threads, threads), options.log_level,
        lambda: note(f"{names} at {address} (Ctrl-C ends)"),
    )  # fmt: skip


def _run_on_a_cluster(options: ServeArguments, plan: Plan) -> None:
    try:
        import ray.serve  # noqa: F401
    except ImportError:
        raise WaitinfoError("--ray needs Ray Serve: pip install 'waitinfo[ray]'") from None
    from waitinfo.cli.options import note
    from waitinfo.serving import cluster

    scale = cluster.Scale.parse(options.replicas, cpus=max(1, options.threads))
    cluster.start(plan, scale, options.host, options.port, options.log_level)
    note(f"{options.replicas} replicas at {_address(options.host, options.port)} (Ctrl-C ends)")
    cluster.wait_for_a_signal()
    cluster.stop()


def _codes(text: str) -> tuple[str, ...]:
    return tuple(code.strip() for code in text.split(",") if code.strip())


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _check(options: ServeArguments) -> None:
    if not 1 <= options.streams <= MOST_STREAMS:
        raise WaitinfoError(f"--streams {options.streams}: must be from 1 to {MOST_STREAMS:,}")
    if options.compare < 0:
        raise WaitinfoError(f"--compare {options.compare}: must be 0 or more")
    if not 0 <= options.port < 1 << 16:
        raise WaitinfoError(f"--port {options.port}: must be from 0 to 65535")
    if options.log_level not in LEVELS:
        raise unknown("--log-level", options.log_level, LEVELS)
    if not 1 <= options.idle < 1e9:
        raise WaitinfoError(f"--idle {options.idle:g}: must be seconds, 1 or more")
    for name in ("voices", "watchers", "address_streams", "address_connections"):
        count = getattr(options, name)
        if count is not None and count < 0:
            raise WaitinfoError(f"--{name.replace('_', '-')} {count}: must be 0 or more")
    if not 0 <= options.drain < 1e9:
        raise WaitinfoError(f"--drain {options.drain:g}: must be seconds, 0 or more")
    _check_origins(options.origins)


def _check_origins(origins: Iterable[str]) -> None:
    """As browsers send them: with a scheme and without a path."""
    for origin in origins:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+|\*|null", origin):
            raise WaitinfoError(f"--origins {origin}: give it as https://example.org, or * for all")

"""The same application on Ray Serve: replicas, each with models and an engine of its own.

An open WebSocket is a request under way. So Serve sends a new stream to the replica with fewer
streams, and starts and stops replicas by the number of open streams, among which it counts those
who watch rooms. A stream whose replica dies is continued on another one by its client.

    serve run waitinfo.serving.cluster:build model=de-en streams=64 replicas=1-8
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.serving import logs
from waitinfo.serving.app import build_app
from waitinfo.serving.guards import read_keys
from waitinfo.serving.hub import Plan
from waitinfo.serving.settings import Settings

NAME = "waitinfo"
SPARE = 64  # requests that a replica takes in addition to its streams: pages, texts, health
HEALTH_SECONDS = 60.0  # that a replica may take to translate a word


@dataclass(frozen=True)
class Scale:
    """How many replicas there are, and what each of them gets."""

    least: int = 1
    most: int = 1
    busy: float = 0.7  # share of its streams that a replica has open on average
    cpus: float = 1.0
    gpus: float | None = None  # None: one if the cluster has any and the device is not "cpu"

    @classmethod
    def parse(cls, replicas: str, **others: Any) -> Scale:
        """`2`, or `1-8` for as many as the streams need."""
        least, _, most = replicas.partition("-")
        try:
            found = cls(int(least), int(most or least), **others)
        except ValueError:
            raise _bad(replicas) from None
        if not 1 <= found.least <= found.most:
            raise _bad(replicas)
        return found


def _bad(replicas: str) -> WaitinfoError:
    return WaitinfoError(f"replicas {replicas}: give a number, or a range such as 1-8")


def application(plan: Plan, scale: Scale, log_level: str = "info") -> Any:
    """A Serve application to be run with `serve.run`."""
    from ray import serve

    def made() -> FastAPI:
        logs.set_up(log_level)
        return build_app(plan.build())

    @serve.ingress(made)
    class Replica:
        async def check_health(self) -> None:
            """Called by Serve, which replaces a replica that fails or does not answer."""
            await self.app.state.hub.check()  # type: ignore[attr-defined]

    deployment = serve.deployment(
        Replica,
        name=NAME,
        max_ongoing_requests=plan.capacity + plan.settings.watchers + SPARE,
        health_check_period_s=10.0,
        health_check_timeout_s=HEALTH_SECONDS,
        # A replica that is taken away gets no new streams; the open ones get this long.
        graceful_shutdown_timeout_s=plan.settings.drain,
        graceful_shutdown_wait_loop_s=0.5,
        ray_actor_options={"num_cpus": scale.cpus, "num_gpus": _gpus(plan, scale)},
        logging_config=_logging(),
        **_replicas(plan, scale),
    )
    return deployment.bind()


def _replicas(plan: Plan, scale: Scale) -> dict[str, Any]:
    if scale.least == scale.most:
        return {"num_replicas": scale.least}
    return {
        "autoscaling_config": {
            "min_replicas": scale.least,
            "max_replicas": scale.most,
            "target_ongoing_requests": max(1.0, scale.busy * plan.capacity),
            "look_back_period_s": 20.0,  # of figures that come every 10 seconds
            "upscale_delay_s": 10.0,
            "downscale_delay_s": 600.0,  # streams have to move, so not too soon
        }
    }


def _gpus(plan: Plan, scale: Scale) -> float:
    """GPUs of a replica."""
    import ray

    if scale.gpus is not None:
        return scale.gpus
    if plan.device == "cpu" or plan.dtype == "int8":
        return 0.0
    ray.init(ignore_reinit_error=True, log_to_driver=True, logging_level="warning")
    return 1.0 if ray.cluster_resources().get("GPU", 0.0) else 0.0


def _logging() -> dict[str, Any]:
    """Serve logs no paths of requests, which may have keys in them."""
    return {"enable_access_log": False, "log_level": "WARNING"}


def build(arguments: dict[str, str]) -> Any:
    """For `serve run` and configuration files of Serve: an application from `name=value`."""
    given = dict(arguments)
    known = (
        "model", "streams", "device", "dtype", "keys", "origins", "rooms", "watchers", "replicas",
        "cpus", "gpus",
    )  # fmt: skip
    for name in given:
        if name not in known:
            raise unknown("argument", name, known)
    origins = tuple(given.get("origins", "").split())
    try:
        settings = Settings(
            origins=origins, rooms=given.get("rooms"), local=False,
            watchers=int(given.get("watchers", Settings.watchers)),
        )  # fmt: skip
        plan = Plan(
            models=tuple(Path(path) for path in given.get("model", "").split()),
            streams=int(given.get("streams", "32")),
            device=given.get("device", "auto"),
            dtype=given.get("dtype", "auto"),
            keys=read_keys(Path(given["keys"])) if "keys" in given else (),
            settings=settings,
        )
        gpus = float(given["gpus"]) if "gpus" in given else None
        cpus = float(given.get("cpus", "1"))
    except ValueError as error:
        raise WaitinfoError(f"arguments: {error}") from None
    return application(plan, Scale.parse(given.get("replicas", "1"), cpus=cpus, gpus=gpus))


def start(plan: Plan, scale: Scale, host: str, port: int, log_level: str = "info") -> None:
    """Deploy on the cluster of this machine, or on this machine alone; listens on every node."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to Ray's makers
    import ray
    from ray import serve

    ray.init(ignore_reinit_error=True, logging_level="warning")
    options = {"host": host, "port": port, "request_timeout_s": None}
    serve.start(proxy_location="EveryNode", http_options=options, logging_config=_logging())
    serve.run(application(plan, scale, log_level), name=NAME, route_prefix="/")


def stop() -> None:
    """Take the application away again."""
    from ray import serve

    serve.delete(NAME)


def wait_for_a_signal() -> None:
    """Return on Ctrl-C or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()

"""What all connections of a server share: models, keys, limits, figures, and the end.

Replicas on several machines are made from the same `Plan`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from waitinfo.serving.guards import Client, KeyLimits, Keys, Refusal, check_origin, find_key
from waitinfo.serving.logs import log
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import COMPARED, Models, load_models
from waitinfo.serving.rooms import Rooms
from waitinfo.serving.settings import Settings


class Stoppable(Protocol):
    """An open connection."""

    async def announce(self, seconds: float) -> None:
        """Tell the client that the server stops in so many seconds."""

    def stop(self) -> None:
        """End the stream now."""


class Hub:
    """The state of one server."""

    def __init__(
        self,
        models: Models,
        settings: Settings | None = None,
        keys: Keys | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.models = models
        self.settings = settings or Settings()
        self.keys = keys or Keys()
        self.metrics = metrics or Metrics()
        self.rooms = Rooms(self.settings.watchers)
        self.draining = False
        self._connections: set[Stoppable] = set()

    # Admission

    def admit(
        self, headers: Mapping[str, str], query: Mapping[str, str], key: str | None = None
    ) -> Client:
        """Whose request this is; raises a refusal if it is not served."""
        settings = self.settings
        check_origin(headers.get("origin"), headers.get("host"), settings.origins, settings.local)
        client = self.keys.client(key or find_key(headers, query))
        if self.draining:
            raise Refusal(503, "draining", "this server is stopping", settings.retry)
        return client

    def check_room(self) -> None:
        """Refuse a connection that could not get a stream."""
        retry = self.settings.retry
        if len(self._connections) >= self.settings.connections:
            raise Refusal(503, "connections", "too many connections", retry)
        if not any(served.free > 0 for served in self.models):
            raise Refusal(503, "full", "all streams are in use", retry)

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal."""
        self.metrics.refusals.labels(refusal.reason).inc()
        log("refused", reason=refusal.reason)

    async def check(self) -> None:
        """Translate a word with every model that has a free stream; raises if that fails."""
        for served in self.models:
            if served.free > 0:
                async with served.open() as stream:
                    await stream.push("a")
                    await stream.finish()

    @contextmanager
    def connection(self, connection: Stoppable) -> Iterator[None]:
        """Know a connection while it is open."""
        self._connections.add(connection)
        self.metrics.connections.inc()
        try:
            yield
        finally:
            self._connections.discard(connection)
            self.metrics.connections.dec()

    # The end

    async def drain(self) -> None:
        """Take no new streams; give the running ones a deadline, then end them."""
        self.draining = True
        seconds = self.settings.drain
        log("draining", streams=len(self._connections), seconds=seconds)
        announced = [
            asyncio.ensure_future(each.announce(seconds)) for each in list(self._connections)
        ]
        end = asyncio.get_running_loop().time() + seconds
        while self._connections and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        for each in list(self._connections):
            each.stop()
        for _ in range(100):
            if not self._connections:
                break
            await asyncio.sleep(0.05)
        for task in announced:
            task.cancel()
        log("drained", left=len(self._connections))


@dataclass(frozen=True)
class Plan:
    """Models, keys and limits, before anything is loaded."""

    models: tuple[Path, ...] = ()  # none: the bundled one
    streams: int = 32  # for each model
    compare: int = 0  # for each model under each other system
    device: str = "auto"
    dtype: str = "auto"
    keys: tuple[KeyLimits, ...] = ()
    settings: Settings = field(default_factory=Settings)

    @property
    def capacity(self) -> int:
        """Streams of all models."""
        return max(1, len(self.models)) * (self.streams + len(COMPARED) * self.compare)

    @property
    def limits(self) -> Settings:
        """The settings, with connections for every stream and as many that wait for one."""
        connections = max(self.settings.connections, 2 * self.capacity)
        return replace(self.settings, connections=connections)

    def build(self) -> Hub:
        """Load the models."""
        metrics = Metrics()
        models = load_models(
            self.models, metrics, self.streams, self.device, self.dtype, self.compare
        )
        return Hub(models, self.limits, Keys(self.keys), metrics)

"""What all connections of a server share: models, keys, limits, figures, and the end.

Replicas on several machines are made from the same `Plan`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import HTTPConnection

from waitinfo.serving.engine import EngineLink
from waitinfo.serving.guards import (
    IN_URL,
    MANY,
    QUERIES,
    Caller,
    KeyLimits,
    Keys,
    Refusal,
    check_origin,
    find_key,
)
from waitinfo.serving.hearing import VOICES, Hearing
from waitinfo.serving.http import Visitors, is_loopback, owner
from waitinfo.serving.logs import log
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import COMPARED, Models, Served, load_models, remote_models
from waitinfo.serving.rooms import Rooms
from waitinfo.serving.settings import Settings
from waitinfo.serving.tickets import Pins, Tickets, find_pin, find_ticket
from waitinfo.systems import load_plugins

if TYPE_CHECKING:
    from waitinfo.serving.interpreting import Interpreters


class Stopping(Protocol):
    """What the server stops at its end."""

    async def stop(self) -> None: ...


class Stoppable(Protocol):
    """An open connection."""

    async def announce(self, seconds: float) -> None:
        """Tell the client in how many seconds the server stops."""

    def stop(self, reason: str = "closing") -> None:
        """End the stream now."""


class Hub:
    """The state of one server."""

    def __init__(
        self,
        models: Models,
        settings: Settings | None = None,
        keys: Keys | None = None,
        metrics: Metrics | None = None,
        hearing: Hearing | None = None,
    ) -> None:
        self.models = models
        self.settings = settings or Settings()
        self.keys = keys or Keys()
        self.metrics = metrics or Metrics()
        self.hearing = hearing or Hearing(self.metrics)
        self.rooms, self._shared = self._share(self.settings)
        self.receiving, self.reading = asyncio.Lock(), asyncio.Lock()  # large requests, in turn
        self._large: Counter[str] = Counter()  # requests by address
        self.visitors = Visitors(self.settings)
        self.descriptors = MANY  # from this number on they are kept in reserve
        self.keys.share(
            self.settings.address_streams, sum(m.translator.streams for m in models.engines)
        )
        self.interpreters: dict[str, Interpreters] = {}  # by room
        self.rooms.asked = self._asked
        self.tickets = Tickets(self.settings.secret, self.settings.ticket)
        self.pins = Pins()
        self.draining = False
        self._connections: dict[Stoppable, None] = {}

    def _share(self, settings: Settings) -> tuple[Rooms, Sequence[Stopping]]:
        """The rooms, and what has to be stopped if other servers have them, too."""
        if settings.rooms is None:
            return Rooms(settings.watchers), ()
        from waitinfo.serving.shared import Ledger, Shared
        from waitinfo.serving.shared_rooms import SharedRooms

        shared = Shared(settings.rooms)
        rooms = SharedRooms(settings.watchers, shared, settings.kept)
        return rooms, (rooms, Ledger(shared, self.keys.callers), shared)

    def _asked(self, room: str, language: str) -> None:
        if room in self.interpreters and not self.draining:
            self.interpreters[room].want(language)

    async def stop(self) -> None:
        """The server has stopped."""
        for room in list(self.interpreters):
            self.interpreters[room].close()
        self.hearing.close()
        self.models.close()
        for each in self._shared:
            await each.stop()

    # Admission

    def admit(self, request: HTTPConnection, key: str | None = None) -> Caller:
        """Whose request this is; raises a refusal if it is not served."""
        self._check_origin(request.headers)
        key = key or find_key(request.headers)
        if key is None and len(self.keys) and not QUERIES.isdisjoint(request.query_params):
            raise Refusal(401, "key", IN_URL)
        client = self.keys.client(key, request.client.host if request.client else "")
        self._check_draining()
        return client

    def check_private(self, request: HTTPConnection) -> None:
        """Raise unless the request may see figures and models."""
        if self.settings.private:
            self.admit(request)

    async def admit_watcher(self, request: HTTPConnection, room: str) -> None:
        """Raise unless the request may watch a room: with a ticket or a key, and with its PIN."""
        ticket = find_ticket(request.headers, request.query_params)
        if ticket is None:
            self.admit(request)
        else:
            self._check_origin(request.headers)
            self.tickets.check(room, ticket)
            self._check_draining()
        address = request.client.host if request.client else ""
        self.pins.check(room, await self.rooms.pin(room), find_pin(request.headers), address)

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        settings = self.settings
        check_origin(headers.get("origin"), headers.get("host"), settings.origins, settings.local)

    def _check_draining(self) -> None:
        if self.draining:
            raise Refusal(503, "draining", "this server is stopping", self.settings.retry)

    def check_space(self) -> None:
        """Refuse a connection that could not get a stream."""
        retry = self.settings.retry
        if len(self._connections) >= self.settings.connections:
            raise Refusal(503, "connections", "too many connections", retry)
        if not any(served.free > 0 or self._silent(served) for served in self.models):
            raise Refusal(503, "full", "all streams are in use", retry)

    def check_free(self, served: Served) -> None:
        """Refuse a stream that has no place; one that has said nothing so far makes room."""
        if served.free <= 0 and (silent := self._silent(served)):
            silent[0].stop("idle")
            silent[0].live.stream.close()
        if served.free <= 0:
            raise Refusal(503, "full", "all streams are in use", self.settings.retry)

    def _silent(self, served: Served) -> list[Any]:
        """Connections with a stream that has said nothing so far, the oldest first."""
        return [
            each
            for each in self._connections
            if (live := getattr(each, "live", None)) is not None
            and live.served is served
            and live.silent >= self.settings.silent
        ]

    @contextmanager
    def large(self, request: HTTPConnection) -> Iterator[None]:
        """Count a request with a large body as long as it is under way; they take memory."""
        address, most = request.client.host if request.client else "", self.settings.bodies
        name, share = owner(address), most if is_loopback(address) else most // 2
        if self._large.total() >= most or self._large[name] >= share:
            raise Refusal(503, "large", "too many large requests", self.settings.retry)
        self._large[name] += 1
        try:
            yield
        finally:
            self._large[name] -= 1
            if not self._large[name]:
                del self._large[name]

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
        self._connections[connection] = None
        self.metrics.connections.inc()
        try:
            yield
        finally:
            del self._connections[connection]
            self.metrics.connections.dec()

    # The end

    @property
    def _busy(self) -> bool:
        streams = any(served.translator.open_streams for served in self.models)  # of requests, too
        return bool(self._connections or self.rooms.watching or streams)

    async def drain(self) -> None:
        """Take no new streams; give the running ones a deadline, then end them."""
        self.draining = True
        seconds = self.settings.drain
        log("draining", streams=len(self._connections), seconds=seconds)
        announced = [
            asyncio.ensure_future(each.announce(seconds)) for each in list(self._connections)
        ]
        self.rooms.close()
        end = asyncio.get_running_loop().time() + seconds
        while self._busy and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.05)
        for each in list(self._connections):
            each.stop()
        for left in range(100, 0, -1):
            if not self._busy:
                break
            if left == 50:  # the last words of all speakers have been said
                self.rooms.close(speakers=True)
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
    system: str | None = None  # of all models; None: each one's own
    options: dict[str, Any] = field(default_factory=dict)  # of the system
    offered: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # of a model of many languages
    plugins: tuple[Path, ...] = ()
    recogniser: str | None = None  # None: the default one, once somebody speaks
    voices: int = VOICES  # audio streams at a time
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

    def load(self, metrics: Metrics) -> Models:
        """Load the models, and let them do everything once: `/readyz` means that it is fast."""
        load_plugins(self.plugins)
        models = load_models(
            self.models, metrics, self.streams, self.device, self.dtype, self.compare, self.system,
            self.options, self.offered,
        )  # fmt: skip
        for served in models.engines:
            served.translator.warm_up()
        return models

    def build(self, link: EngineLink | None = None) -> Hub:
        """A server, with its models or with a link to the process that has loaded them."""
        metrics = Metrics()
        load_plugins(self.plugins)
        models = self.load(metrics) if link is None else remote_models(link, metrics)
        for served in models.engines:
            size = served.translator.bytes_per_stream
            log("ready", model=served.name, streams=served.translator.streams, bytes_each=size)
        hearing = Hearing(metrics, self.recogniser, self.voices, self.settings.retry)
        if self.recogniser is not None:
            hearing.load()
            log("ready", recogniser=self.recogniser, voices=self.voices)
        return Hub(models, self.limits, Keys(self.keys), metrics, hearing)

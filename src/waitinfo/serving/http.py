"""HTTP connections with limits of time and number, and the address that each request is from."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import time
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from waitinfo.errors import WaitinfoError
from waitinfo.serving.logs import log
from waitinfo.serving.pace import CURRENT, LONGEST, PACE, PATIENCE, Lane, Metered, Pace
from waitinfo.serving.settings import Settings

if TYPE_CHECKING:
    from waitinfo.serving.hub import Hub

RESERVE = 160  # file descriptors kept for accepting and refusing, for files and libraries
ACCEPTED = 4  # connections that are accepted in a turn of the event loop
PORTION = 1 << 14  # bytes read at a time: while they are parsed, all others wait
COSTLY, REST = 0.004, 20.0  # seconds of parsing, and the factor of the pause that follows
EARLY = 1 << 16  # bytes that a client may send ahead of an answer
# Seconds of the event loop's time: what is parsed; a request beside that; a WebSocket's beginning,
# below the application and there.
PARSED, REQUEST, HANDSHAKE = 2e-4, 3e-4, 1e-3
PROTOCOL = "waitinfo.protocol"  # extension of a scope: below ASGI
LINGER = 1.0  # seconds in which a client can hear that it is refused
TOO_MANY = b'{"error": "too many connections"}'
REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(TOO_MANY), TOO_MANY)
)

# The page loads nothing from elsewhere and nobody may frame it; OBS shows /overlay by itself.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(names: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and networks that are written like 10.0.0.1 or 10.0.0.0/8."""
    found = []
    for name in names:
        try:
            found.append(ipaddress.ip_network(name, strict=False))
        except ValueError:
            raise WaitinfoError(f"--proxy {name}: give an address or a network") from None
    return tuple(found)


@lru_cache(4_096)
def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, maybe with a port; None if it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(found, "ipv4_mapped", None)
    return mapped or found


def is_loopback(address: str) -> bool:
    found = parse_address(address)
    return found is None or found.is_loopback


def owner(address: str) -> str:
    """Who is counted as one: an address, or a network of IPv6 that one customer gets."""
    found = parse_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found or address)


class Visitors:
    """Open connections by address. Of this machine's own there may be any number."""

    def __init__(self, settings: Settings) -> None:
        self.proxies = networks(settings.proxies)
        self._limit = settings.address_connections
        self._default = max(1, settings.connections // 2)
        self._open: Counter[str] = Counter()
        self.lane = Lane()

    def enter(self, address: str) -> bool:
        """Count a connection, unless there are too many already."""
        limit = self._limit
        if limit is None:
            limit = 0 if is_loopback(address) else self._default
        name = owner(address)
        if limit and self._open[name] >= limit and not self.is_proxy(address):
            return False
        self._open[name] += 1
        return True

    def leave(self, address: str) -> None:
        name = owner(address)
        self._open[name] -= 1
        if self._open[name] <= 0:
            del self._open[name]

    def pace(self, address: str) -> Pace:
        """That of an address; of this machine and of proxies each connection has its own."""
        own = is_loopback(address) or self.is_proxy(address)
        return self.lane.pace(None if own else owner(address))

    def is_proxy(self, address: str) -> bool:
        found = parse_address(address) if self.proxies else None
        return found is not None and any(found in network for network in self.proxies)

    def origin(self, address: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """Where a request comes from: the last address that no proxy of ours has."""
        if not self.is_proxy(address):
            return address
        forwarded = [value for name, value in headers if name == b"x-forwarded-for"]
        for each in reversed(b",".join(forwarded).decode("latin-1").split(",")):
            if parse_address(each) is None:
                break
            address = str(parse_address(each))
            if not self.is_proxy(address):
                break
        return address


class HttpProtocol(H11Protocol):
    """uvicorn's own. Heads and bodies have to arrive in time, and an address has its share."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._hub: Hub = self.config.app.state.hub  # type: ignore[union-attr]
        self._timer: asyncio.TimerHandle | None = None
        self._phase: tuple[str, int] | None = None
        self._handed_on = self._refused = False
        self._early = b""  # what came before the answer to the request under way
        self._held, self._place = b"", 0.0  # what waits for its turn
        if hasattr(transport, "max_size"):
            transport.max_size = PORTION
        self._address = self.client[0] if self.client else ""
        # Descriptors are given lowest first: a high one says how many are in use.
        scarce = transport.get_extra_info("socket").fileno() >= self._hub.descriptors
        self._counted = not scarce and self._hub.visitors.enter(self._address)
        self._pace = self._hub.visitors.pace(self._address)
        if not self._counted:
            log("too many connections", descriptors=scarce)
            if scarce:
                transport.abort()
            self._timer = self.loop.call_later(LINGER, transport.abort)
            return
        self._watch()

    def handle_events(self) -> None:
        super().handle_events()
        scope: Any = self.scope
        if scope is not None:
            scope.setdefault("extensions", {})[PROTOCOL] = self

    def data_received(self, data: bytes) -> None:
        if self._handed_on:  # nothing may come before a WebSocket is open
            self.transport.abort()
        elif self._counted and self._answering:
            # uvicorn would stop reading, and not notice that the client leaves.
            self._early += data
            if len(self._early) > EARLY:
                log("too much ahead of an answer")
                self.transport.abort()
        elif self._counted:
            if not self._held and self._pace.shared:
                self._place = self._pace.book(PARSED, self.loop.time())
            self._held += data
            self._parse()
        elif not self._refused:
            self._refused = True
            self.transport.write(REFUSAL)
            self.transport.write_eof()

    def _parse(self) -> None:
        """Parse what has come, in its turn: others of the same address may have sent, too."""
        if self.transport.is_closing() or not self._held:
            return
        if (rest := self._pace.wait(self._place, self.loop.time())) > 0 and self._pace.shared:
            self._stop_timer()  # that is not the client's fault
            self._pause(min(rest, LONGEST))
            return
        data, self._held = self._held, b""
        began = time.thread_time()
        super().data_received(data)
        self._watch()
        if (cost := time.thread_time() - began) > COSTLY and not self._handed_on:
            self._pause(REST * cost)  # as chunks of single bytes are

    @property
    def _answering(self) -> bool:
        """Whether a whole request has come that has not been answered."""
        cycle = self.cycle
        return not (cycle is None or cycle.response_complete or cycle.more_body)

    def _pause(self, seconds: float) -> None:
        """Read nothing for some time."""
        self.transport.pause_reading()
        self.loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        if not (self._handed_on or self.flow.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()
            self._parse()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()
        early, self._early = self._early, b""
        if early and not self.transport.is_closing():
            self.data_received(early)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._handed_on = True
        self._stop_timer()
        pace = self._hub.visitors.pace(self._hub.visitors.origin(self._address, self.headers))
        self._upgrade(event, pace, pace.book(HANDSHAKE, self.loop.time()) if pace.shared else 0.0)

    def _upgrade(self, event: Any, pace: Pace, place: float) -> None:
        """Open a WebSocket in its turn: that is much work."""
        if self.transport.is_closing():
            return
        rest = pace.wait(place, self.loop.time()) if pace.shared else 0.0
        if rest >= PATIENCE:  # too many wait
            self.transport.write(REFUSAL)
            self.transport.close()
        elif rest > 0:
            self.loop.call_later(min(rest, LONGEST), self._upgrade, event, pace, place)
        else:
            super().handle_websocket_upgrade(event)

    def shutdown(self) -> None:
        if self._handed_on:
            self.transport.abort()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._counted:
            self._counted = False
            self._hub.visitors.leave(self._address)
        super().connection_lost(exc)

    def eof_received(self) -> None:
        if not self._counted and not self._handed_on:
            self.transport.close()

    def _watch(self) -> None:
        """Start the clock of what the client has to send next."""
        cycle, settings = self.cycle, self._hub.settings
        if self._handed_on or self.transport.is_closing():
            return
        if cycle is None or cycle.response_complete:
            phase, seconds = ("head", id(cycle)), settings.head
        elif cycle.more_body:
            phase, seconds = ("body", id(cycle)), settings.body
        else:
            self._stop_timer()
            return
        if phase != self._phase:
            self._stop_timer()
            self._phase = phase
            self._timer = self.loop.call_later(seconds, self._late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._phase = None

    def _late(self) -> None:
        if not self.transport.is_closing():
            log("slow request", missing=self._phase and self._phase[0])
            self.transport.abort()


class Front:
    """What every request passes first: its address and turn, its framing, the page's protection."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        peer = (scope.get("client") or ("", 0))[0]
        visitors: Visitors = scope["app"].state.hub.visitors
        address = visitors.origin(peer, scope["headers"])
        scope["client"] = (address, 0)
        scope[PACE] = pace = visitors.pace(address)
        with pace.using():
            if await _turn(scope, pace):
                await self._serve(scope, receive, sending, address != peer)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, forwarded: bool) -> None:
        visitors: Visitors = scope["app"].state.hub.visitors
        address, pace = scope["client"][0], scope[PACE]
        names = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:  # proxies read it in two ways
            await answer(scope, send, 400, "give a content-length or a transfer-encoding")
        elif forwarded and not visitors.enter(address):
            await answer(scope, send, 429, "too many connections from this address")
        else:
            try:
                work: Any = self.app(scope, receive, send)
                if pace.shared and scope["type"] == "http":
                    CURRENT.set(pace)
                    work = Metered(work, pace)
                await work
            finally:
                if forwarded:
                    visitors.leave(address)


async def _turn(scope: Scope, pace: Pace) -> bool:
    """Wait until others of the same address have had theirs; False if the client has left."""
    protocol = scope.get("extensions", {}).get(PROTOCOL)

    def gone() -> bool:
        return protocol is not None and protocol not in protocol.connections

    cost = REQUEST if scope["type"] == "http" else HANDSHAKE
    return not pace.shared or await pace.turn(cost, gone)


async def answer(scope: Scope, send: Send, status: int, error: str) -> None:
    """An error that closes the connection."""
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    body = json.dumps({"error": error}).encode()
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})

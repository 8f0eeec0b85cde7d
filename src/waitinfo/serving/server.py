"""Running the application: binding, signals, and an end that loses nothing."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import selectors
import socket
import sys
import time
from types import FrameType

import uvicorn

from waitinfo.errors import WaitinfoError
from waitinfo.serving.app import build_app
from waitinfo.serving.guards import LOOPBACK, MANY
from waitinfo.serving.http import ACCEPTED, RESERVE, HttpProtocol
from waitinfo.serving.hub import Hub
from waitinfo.serving.logs import log, of_clients
from waitinfo.serving.wire import WebSocketProtocol

EACH = 20e-6  # seconds between two looks for each connection
LONGEST = 5e-3


class PacedSelector(selectors.DefaultSelector):
    """Waits a little between two looks for news, the longer the more connections there are.

    A look costs two changes of the thread that has the interpreter. With hundreds of clients there
    is one for nearly every message, and the model's thread loses more time by them than by the
    messages.
    """

    def __init__(self) -> None:
        super().__init__()
        self._looked = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:  # there is nothing to do without news
            pace = min(LONGEST, EACH * len(self.get_map()))
            pause = self._looked + pace - time.monotonic()
            if pause > 0:
                time.sleep(pause)
        found = super().select(timeout)
        self._looked = time.monotonic()
        return found


def paced_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(PacedSelector())


WAITING = 2_048  # connections that wait in the kernel to be accepted
DESCRIPTORS = 1 << 16
SEND_BUFFER = 1 << 16  # bytes
# The model's thread needs the interpreter for a moment between any two kernels. With Python's own
# 5 ms for each wait behind the event loop, a round under load takes twice as long.
SWITCH_SECONDS = 0.0005
GARBAGE = (10_000, 5, 2)  # thresholds; Python's own take a tenth of the event loop's time
UNREAD_MILLISECONDS = 60_000  # after which a connection is cut that takes nothing of what was sent


def is_local(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK


def check_binding(host: str, keys: bool, open_to_all: bool) -> None:
    """Refuse to serve a network without keys, unless that is what was asked for."""
    if not is_local(host) and not keys and not open_to_all:
        raise WaitinfoError(
            f"--host {host}: others could use this server; give --keys FILE, or --open to let them"
        )


def _no_refusal(record: logging.LogRecord) -> bool:
    """uvicorn takes a WebSocket refused with a response for a mistake of the application."""
    return "without completing handshake" not in record.getMessage()


class Server(uvicorn.Server):
    """The first signal drains, the second stops at once."""

    def __init__(self, hub: Hub, host: str, port: int) -> None:
        self.hub = hub
        self._loop: asyncio.AbstractEventLoop | None = None
        config = uvicorn.Config(
            build_app(hub),
            host=host,
            port=port,
            log_config=None,
            http=HttpProtocol,
            proxy_headers=False,  # `Front` reads them, and believes the proxies that were named
            backlog=ACCEPTED,
            access_log=False,
            ws=WebSocketProtocol,
            ws_max_size=4 * hub.settings.message_size,  # bytes; the limit is in characters
            # A client is judged by what it sends, not by how soon it answers a ping.
            ws_ping_interval=None,
            ws_per_message_deflate=False,  # messages are small, and time is short
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        super().__init__(config)
        # What it logs below a warning has paths with keys in them.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        logging.getLogger("uvicorn.error").addFilter(_no_refusal)
        logging.getLogger("uvicorn.error").addFilter(of_clients)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        with asyncio.Runner(loop_factory=paced_loop) as runner:
            runner.run(self.serve(sockets=sockets))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None or self.hub.draining:
            super().handle_exit(sig, frame)
            return
        self.hub.draining = True
        self._loop.call_soon_threadsafe(self._begin_to_drain)

    def _begin_to_drain(self) -> None:
        self._drain = asyncio.ensure_future(self.hub.drain())
        self._drain.add_done_callback(lambda _: setattr(self, "should_exit", True))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.hub.descriptors = raise_descriptors() - RESERVE
        await super().startup(sockets)
        for each in sockets or ():  # more may wait in the kernel than are accepted at a time
            each.listen(WAITING)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without a limit, megabytes wait for a client that does not read.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MILLISECONDS)
        found.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        raise WaitinfoError(f"--host {host} --port {port}: cannot be used ({error})") from None
    return found


def bound(descriptor: int) -> socket.socket:
    """A socket that another process has bound."""
    found = socket.socket(fileno=descriptor)
    log("listening", host=found.getsockname()[0], port=found.getsockname()[1])
    return found


def raise_descriptors() -> int:
    """Allow this process as many file descriptors as it may have; their number."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
        return min(soft, MANY) if soft != resource.RLIM_INFINITY else MANY
    except (ImportError, OSError, ValueError):
        return MANY


def tune() -> None:
    """Set up the interpreter for one busy event loop beside one busy thread."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # models, code and libraries stay for good
    gc.set_threshold(*GARBAGE)

"""Who may connect, and how much one key may use."""

from __future__ import annotations

import asyncio
import hashlib
import time
import tomllib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError
from waitinfo.serving.http import is_loopback, owner

if TYPE_CHECKING:
    from waitinfo.serving.shared import Ledger

MANY = 1 << 30
ADDRESS = "this address"
QUERIES = frozenset({"key", "api_key"})
IN_URL = "a key in an address ends up in logs; send it as a bearer token or a subprotocol"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Refusal(Exception):
    """A request that is not served, with its HTTP status."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message
        self.retry_after = retry_after


@dataclass(frozen=True)
class KeyLimits:
    """What the file of keys says of one key."""

    key: str
    streams: int = 0  # at a time; 0: as many as the server has
    words_per_minute: int = 0  # 0: any number

    def __post_init__(self) -> None:
        if len(self.key) < 8 or not self.key.isascii() or not self.key.isprintable():
            raise WaitinfoError("key: must be at least 8 ASCII characters")
        if self.streams < 0 or self.words_per_minute < 0:
            raise WaitinfoError("streams, words_per_minute: must be 0 or more")


class Caller:
    """What one key uses at present; without keys, one address."""

    def __init__(self, streams: int = 0, words_per_minute: int = 0, who: str = "this key") -> None:
        self.streams, self.words_per_minute, self.who = streams, words_per_minute, who
        self.open = 0
        self._left, self._since = float(words_per_minute), time.monotonic()
        self.ledger: Ledger | None = None  # that counts at other servers, too
        self.unsent = 0  # words that it does not know of

    @property
    def stranger(self) -> bool:
        """Whether this is an address of another machine, without a key."""
        return self.who == ADDRESS

    @property
    def left(self) -> int:
        """Further streams that may be opened."""
        return self.streams - self.open if self.streams else MANY

    async def enter(self, retry: float, count: int = 1) -> None:
        """Take some of the key's streams."""
        fits = count <= self.left
        if fits:
            self.open += count
            try:
                fits = self.ledger is None or await self.ledger.enter(self)
            except BaseException:  # the client has left
                self.open -= count
                raise
            self.open -= 0 if fits else count
        if not fits:
            raise Refusal(
                429, "key_streams", f"{self.who} may open {self.streams} streams at a time", retry
            )

    def leave(self, count: int = 1) -> None:
        self.open -= count

    @asynccontextmanager
    async def streaming(self, count: int, retry: float) -> AsyncIterator[None]:
        """Take some of the key's streams, and give them back at the end."""
        await self.enter(retry, count)
        try:
            yield
        finally:
            self.leave(count)

    def spend(self, words: int) -> float:
        """Count words; the seconds to wait before the next ones."""
        if not self.words_per_minute:
            return 0.0
        now, rate = time.monotonic(), self.words_per_minute / 60
        earned = (now - self._since) * rate
        self._left = min(self._left + earned, float(self.words_per_minute)) - words
        self._since = now
        self.unsent += words
        return max(0.0, -self._left / rate)

    def settle(self, left: float) -> None:
        """What is left, with the words of other servers."""
        self._left, self._since = left - self.unsent, time.monotonic()

    async def pause(self) -> None:
        """Wait until the key may send words again."""
        while (seconds := self.spend(0)) > 0:
            await asyncio.sleep(min(seconds, 1.0))


SHARE, LEAST, ALL = 0.01, 0.004, 0.5  # of the event loop's time: a connection's; all together
BURST = 0.005  # seconds that it may take at once
REST = 6.0  # times as long as what is beyond this took, nothing of it is taken
LONGEST = 0.5  # seconds that anybody waits


class Lane:
    """Connections that take more of the event loop's time than their share go one by one."""

    def __init__(self) -> None:
        self.open = 0  # connections
        self._free = 0.0

    @property
    def share(self) -> float:
        return max(LEAST, min(SHARE, ALL / max(1, self.open)))

    def wait(self, cost: float, now: float) -> float:
        """The seconds until the next one's turn, after one that took `cost` seconds."""
        self._free = min(max(now, self._free) + REST * cost, now + LONGEST)
        return self._free - now


class Pace:
    """What one connection takes of the event loop's time."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._left, self._since = BURST, 0.0

    def spend(self, cost: float, now: float) -> float:
        """Count seconds of work; the seconds to wait before more."""
        self._left = min(BURST, self._left + (now - self._since) * self._lane.share) - cost
        self._since = now
        if self._left >= 0:
            return 0.0
        beyond, self._left = -self._left, 0.0
        return self._lane.wait(beyond, now)


class Keys:
    """The keys of a server; if it has none, everybody may connect."""

    def __init__(self, keys: Iterable[KeyLimits] = ()) -> None:
        self._clients = {
            _digest(key.key): Caller(key.streams, key.words_per_minute) for key in keys
        }
        self._everybody = Caller()
        self._strangers: WeakValueDictionary[str, Caller] = WeakValueDictionary()
        self._share: int | None = None
        self._half = 0

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def callers(self) -> dict[str, Caller]:
        """By digests of the keys."""
        return {digest.hex(): caller for digest, caller in self._clients.items()}

    def share(self, share: int | None, streams: int) -> None:
        """How many streams an address may have without a key; None: half of all streams."""
        self._share, self._half = share, (streams + 1) // 2

    def client(self, key: str | None, address: str = "") -> Caller:
        """Whose key this is; without keys, whose address."""
        if not self._clients:
            return self._stranger(address)
        found = self._clients.get(_digest(key)) if key else None
        if found is None:
            raise Refusal(401, "key", "a valid key is required" if key else "a key is required")
        return found

    def _stranger(self, address: str) -> Caller:
        """All who come from one address; without a share, all who come from this machine."""
        if self._share == 0 or (self._share is None and is_loopback(address)):
            return self._everybody
        name = owner(address)
        found = self._strangers.get(name)
        if found is None:
            found = Caller(self._share or self._half, who=ADDRESS)
            self._strangers[name] = found
        return found


def read_keys(path: Path) -> tuple[KeyLimits, ...]:
    """A TOML file with a table for each key, named as you like: see docs/serving.md."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise WaitinfoError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise WaitinfoError(f"{path}: not TOML ({error})") from None
    if not tables:
        raise WaitinfoError(f"{path}: has no keys; write a table like [stage] with key = …")
    return tuple(_limits(path, name, table) for name, table in tables.items())


def read_secret(path: Path) -> bytes:
    """What signs tickets."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise WaitinfoError(f"{path}: cannot be read ({error})") from None
    if len(found) < 32:
        raise WaitinfoError(f"{path}: has {len(found)} bytes; a secret needs 32 that are random")
    return found


def _limits(path: Path, name: str, table: Any) -> KeyLimits:
    if not isinstance(table, Mapping) or not isinstance(table.get("key"), str):
        raise WaitinfoError(f"{path}: [{name}] must be a table with a key")
    try:
        return from_mapping(KeyLimits, dict(table), name)
    except WaitinfoError as error:
        raise WaitinfoError(f"{path}: {error}") from None


def _digest(key: str) -> bytes:
    """Comparing digests takes the same time whatever the key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def find_key(headers: Mapping[str, str]) -> str | None:
    """The key of a request: a bearer token, or a subprotocol as OpenAI's clients send it."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    for name in subprotocols(headers):
        for prefix in ("waitinfo-key.", "openai-insecure-api-key."):
            if name.startswith(prefix):
                return unquote(name.removeprefix(prefix))
    return None


def subprotocols(headers: Mapping[str, str]) -> Iterator[str]:
    """What a page offers with a WebSocket; with other requests in a header of ours."""
    for header in ("sec-websocket-protocol", "waitinfo-protocols"):
        yield from map(str.strip, headers.get(header, "").split(","))


def check_origin(origin: str | None, host: str | None, allowed: Iterable[str], local: bool) -> None:
    """Refuse pages of other sites. Programs send no origin.

    A server of this machine alone also refuses a site whose name was pointed at this machine.
    """
    if origin is None or "*" in allowed or origin in allowed:
        return
    try:
        found = urlsplit(origin)
        name = found.hostname
    except ValueError:
        name = None
    if name and (name in LOOPBACK if local else found.netloc == host):
        return
    raise Refusal(403, "origin", "pages of this origin may not connect; see --origins")

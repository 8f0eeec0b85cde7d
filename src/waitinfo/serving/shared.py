"""What the servers of one service share: a Redis, and the limits of keys that it counts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.logs import log

PREFIX = "waitinfo"
ANSWER = 5.0  # seconds in which Redis has to answer
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between two tries

T = TypeVar("T")


class Shared:
    """A connection to Redis that comes back by itself."""

    def __init__(self, url: str) -> None:
        try:
            import redis.asyncio
        except ImportError:
            raise WaitinfoError(
                "--rooms needs Redis's client: pip install 'waitinfo[redis]'"
            ) from None
        try:
            self.client: Any = redis.asyncio.from_url(
                url, decode_responses=True, socket_timeout=ANSWER, health_check_interval=10
            )
        except ValueError as error:
            raise WaitinfoError(f"--rooms {url}: {error}; write redis://HOST:PORT/0") from None
        self.away: tuple[type[BaseException], ...] = (redis.RedisError, OSError)

    def script(self, text: str) -> Callable[..., Awaitable[Any]]:
        """A program that Redis runs at one go."""
        found: Callable[..., Awaitable[Any]] = self.client.register_script(text)
        return found

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer."""
        tries = 0
        while True:
            try:
                return await ask()
            except self.away as error:
                if not tries:
                    log("redis is away", error=type(error).__name__)
                await asyncio.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1

    async def ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask for a while; then clients are told to come again."""
        try:
            return await asyncio.wait_for(self.insist(ask), ANSWER)
        except TimeoutError:
            raise Refusal(503, "redis", "rooms are away for a moment", ANSWER) from None

    async def stop(self) -> None:
        await self.client.aclose()


BEAT = 0.5  # seconds after which words of a key are counted together
ALIVE = 30  # seconds for which the streams of a server count that says nothing more

# The streams of a key: the server, how many it has, how many all may have (0: any number), seconds.
STREAMS = """
local now, sum = tonumber(redis.call('TIME')[1]), tonumber(ARGV[2])
local found = redis.call('HGETALL', KEYS[1])
for n = 1, #found, 2 do
  local count, expires = string.match(found[n + 1], '(%d+) (%d+)')
  if tonumber(expires) < now then redis.call('HDEL', KEYS[1], found[n])
  elseif found[n] ~= ARGV[1] then sum = sum + tonumber(count) end
end
if tonumber(ARGV[3]) > 0 and sum > tonumber(ARGV[3]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. (now + ARGV[4]))
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""
# Words of a key: those since the last time, how many a minute. What is left, as text.
WORDS = """
local time = redis.call('TIME')
local now, most = time[1] + time[2] / 1e6, tonumber(ARGV[2])
local left = tonumber(redis.call('HGET', KEYS[1], 'left') or most)
local since = tonumber(redis.call('HGET', KEYS[1], 'since') or now)
left = math.min(most, left + (now - since) * most / 60) - ARGV[1]
redis.call('HSET', KEYS[1], 'left', tostring(left), 'since', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(120 - math.min(0, left) * 60 / most))
return tostring(left)
"""


class Ledger:
    """What the keys use at all servers."""

    def __init__(self, shared: Shared, callers: Mapping[str, Caller]) -> None:
        self._shared, self._callers = shared, callers
        self._streams, self._words = shared.script(STREAMS), shared.script(WORDS)
        self._server = secrets.token_hex(8)
        self._beating: asyncio.Task[None] | None = None
        for caller in callers.values():
            caller.ledger = self

    async def enter(self, caller: Caller) -> bool:
        """Whether a key may have the streams that it has here now."""
        if self._beating is None:
            self._beating = asyncio.ensure_future(self._beat())
        try:
            return await self._count(caller, caller.streams)
        except self._shared.away:  # the limit holds for each server, then
            return True

    async def _count(self, caller: Caller, limit: int) -> bool:
        key = f"{PREFIX}:streams:{self._name(caller)}"
        return bool(await self._streams([key], [self._server, caller.open, limit, ALIVE]))

    async def _beat(self) -> None:
        counted: dict[str, int] = {}
        turn = 0
        while True:
            await asyncio.sleep(BEAT)
            turn += 1
            for name, caller in self._callers.items():
                with suppress(*self._shared.away):
                    if counted.get(name, 0) != caller.open or (caller.open and turn % 20 == 0):
                        await self._count(caller, 0)
                        counted[name] = caller.open
                    if caller.words_per_minute:
                        await self._spend(name, caller)

    async def _spend(self, name: str, caller: Caller) -> None:
        spent, caller.unsent = caller.unsent, 0
        if not spent and not caller.open:
            return
        try:
            key = f"{PREFIX}:words:{name}"
            left = await self._words([key], [spent, caller.words_per_minute])
        except self._shared.away:
            caller.unsent += spent
            raise
        caller.settle(float(left))

    def _name(self, caller: Caller) -> str:
        return next(name for name, each in self._callers.items() if each is caller)

    async def stop(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

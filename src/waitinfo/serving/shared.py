"""What the servers of one service share: a Redis, and waiting for it while it is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Refusal
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

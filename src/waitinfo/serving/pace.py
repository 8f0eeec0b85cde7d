"""How much of the event loop's time each client may take: those of one address share a pace.

A client that takes more waits, and the others are served meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

LEAST, ALL = 0.004, 0.5  # of the event loop's time: a client's; all together
BEYOND = 1 / 7  # of it, that those who want more share
BURST = 0.005  # seconds that a client may take at once
INSTANT = 1e-6  # seconds of work that nobody waits for
LONGEST = 0.5  # seconds that a connection waits at a time
PATIENCE = 10.0  # and that those of one address wait, whatever they have asked for
PACE = "waitinfo.pace"  # of a scope
CURRENT: ContextVar[Pace | None] = ContextVar("pace", default=None)  # of the request under way


class Lane:
    """The paces of all clients."""

    def __init__(self) -> None:
        self.open = 0  # clients with requests or WebSockets under way
        self._shared: WeakValueDictionary[str, Pace] = WeakValueDictionary()
        self._known: dict[Pace, bool] = {}  # those not rested, and whether they are behind
        self._behind = 0

    def pace(self, owner: str | None) -> Pace:
        """The pace of all who are counted as one; None: of one connection alone."""
        if owner is None:
            return Pace(self)
        found = self._shared.get(owner)
        if found is None:
            found = self._shared[owner] = Pace(self, shared=True)
        return found

    @property
    def own(self) -> float:
        """Seconds of work in a second that every client may have."""
        return max(LEAST, ALL / max(1, self.open))

    @property
    def rate(self) -> float:
        """The same of one who wants more, and waits."""
        return self.own + BEYOND / max(1, self._behind)

    def note(self, pace: Pace, now: float) -> None:
        """Know how a client stands, also when its connections have gone; and look at another."""
        for each in (pace, next(iter(self._known), pace)):
            owed = each.owed(now)
            self._behind += (owed > 0) - self._known.pop(each, False)
            if owed > -BURST:
                self._known[each] = owed > 0


class Pace:
    """What one client takes of the event loop's time. Its connections are served in turn."""

    def __init__(self, lane: Lane, shared: bool = False) -> None:
        self._lane, self.shared = lane, shared
        self.open = 0  # requests and WebSockets under way
        self._booked, self._earned, self._since = 0.0, BURST, 0.0  # seconds of work; when

    @contextmanager
    def using(self) -> Iterator[None]:
        """Something is under way."""
        self.open += 1
        self._lane.open += self.open == 1
        try:
            yield
        finally:
            self.open -= 1
            self._lane.open -= not self.open

    def owed(self, now: float) -> float:
        """Seconds of work that have been booked and are not due; less than 0: what is left."""
        rate, passed = self._lane.rate, now - self._since
        longest = PATIENCE if self.shared else LONGEST
        owed = min(self._booked - self._earned, rate * longest)
        if owed > 0:  # what others leave is for those who wait
            waited = min(passed, owed / rate)
            owed, passed = owed - waited * rate, passed - waited
        owed = max(-BURST, owed - passed * self._lane.own)
        self._earned, self._since = self._booked - owed, now
        return owed

    def book(self, cost: float, now: float) -> float:
        """Count seconds of work, which are due once `wait` for what is returned is over."""
        self.owed(now)
        self._booked += cost
        self._lane.note(self, now)
        return self._booked

    def charge(self, cost: float, now: float) -> None:
        """Count work that is done: all who wait do so for longer."""
        self.owed(now)
        self._earned -= cost
        self._lane.note(self, now)

    def wait(self, place: float, now: float) -> float:
        """The seconds until work is due that was booked."""
        self.owed(now)
        owed = place - self._earned
        return owed / self._lane.rate if owed > INSTANT else 0.0

    def spend(self, cost: float, now: float) -> float:
        """Count seconds of work; the seconds to wait before more."""
        return self.wait(self.book(cost, now), now)

    async def turn(self, cost: float, gone: Callable[[], bool] = lambda: False) -> bool:
        """Wait until some work is due; False if nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        place = self.book(cost, loop.time())
        while (seconds := self.wait(place, loop.time())) > 0 and not gone():
            await asyncio.sleep(min(seconds, LONGEST))
        return not gone()


class Metered:
    """Work of a request; what it takes of the event loop's time is counted."""

    def __init__(self, work: Coroutine[Any, Any, None], pace: Pace) -> None:
        self._work, self._pace = work, pace

    def __await__(self) -> Generator[Any, Any, None]:
        steps, loop = self._work, asyncio.get_running_loop()
        go_on, value = steps.send, None
        while True:
            began = time.thread_time()
            try:
                found = go_on(value)
            except StopIteration:
                return
            finally:
                self._pace.charge(time.thread_time() - began, loop.time())
            try:
                value = yield found
                go_on = steps.send
            except BaseException as error:  # what is awaited has failed
                go_on, value = steps.throw, error

"""An engine that writes by a rule, in microseconds: wait-k, tokens that depend on all before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from greenlet import getcurrent

from tests.streams import toy_tokenizer
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.engine import TokenEvent
from waitinfo.text.special import EOS

CAPACITY = 24


def plain_tokens() -> list[int]:
    tokenizer = toy_tokenizer()
    return [n for n in range(4, len(tokenizer)) if not tokenizer.is_byte(n)]


class Slot:
    """A source and its translation."""

    def __init__(self, k: float) -> None:
        self.k = k
        self.source: list[int] = []
        self.target: list[int] = []
        self.path: list[int] = []  # tokens read before each target
        self.read = 0
        self.fed, self.over, self.again = False, False, False
        self.forced: list[tuple[int, int]] = []

    @property
    def complete(self) -> bool:
        return self.fed and self.read == len(self.source)

    @property
    def there(self) -> bool:
        return len(self.source) >= max(1, self.read)

    @property
    def writes(self) -> bool:
        if self.over or not self.read:
            return False
        if self.forced:
            return self.complete or self.read >= self.forced[0][1]
        return self.complete or self.read - len(self.target) >= self.k

    @property
    def able(self) -> bool:
        more = self.read < len(self.source) or self.writes
        return not self.over and self.there and more


class FakeEngine:
    """Slots without a model. `poisoned` ones fail; `before` is called in the middle of a round."""

    has_info = False
    bytes_per_slot = 1

    def __init__(self, slots: int, capacity: int = CAPACITY) -> None:
        self.slots, self.capacity = slots, capacity
        self.free = list(range(slots))
        self.used: dict[int, Slot] = {}
        self.held: set[int] = set()
        self.failed: set[int] = set()
        self.poisoned: set[int] = set()
        self.plain = plain_tokens()
        self.system = SimpleNamespace(memory=0)  # its policy remembers nothing
        self.world: Any = None

    @property
    def fed(self) -> dict[int, bool]:
        return {number: slot.fed for number, slot in self.used.items()}

    @property
    def runnable(self) -> list[int]:
        return [n for n, slot in self.used.items() if slot.able and n not in self.held]

    @property
    def busy(self) -> bool:
        return bool(self.runnable)

    def can_go_on(self, number: int) -> bool:
        return self.used[number].able

    def open(self, k: float) -> int:
        if not self.free:
            raise WaitinfoError("all slots are in use")
        number = self.free.pop()
        self.used[number] = Slot(k)
        return number

    def close(self, number: int) -> None:
        del self.used[number]
        self.free.append(number)
        self.held.discard(number)
        self.poisoned.discard(number)

    def reset(self, number: int, k: float) -> None:
        self.used[number] = Slot(k)

    def shift(self, number: int, k: float, source: int, target: int) -> None:
        old, new = self.used[number], Slot(k)
        new.source, new.target = old.source[source:], old.target[target:]
        new.path = [max(1, read - source) for read in old.path[target:]]
        new.read, new.fed = old.read - source, old.fed
        new.again = old.again
        self.used[number] = new

    def begin(
        self, number: int, path: Sequence[tuple[int, int]], read: int, memory: Sequence[float] = ()
    ) -> None:
        slot = self.used[number]
        slot.target, slot.path = [t for t, _ in path], [r for _, r in path]
        slot.read, slot.again = read, read > 0

    def force(self, number: int, path: Sequence[tuple[int, int]]) -> None:
        self.used[number].forced = list(path)

    def feed(self, number: int, tokens: Sequence[int], complete: bool = False) -> None:
        slot = self.used[number]
        if len(slot.source) + len(tokens) > self.capacity - 1:
            raise WaitinfoError("a source does not fit")
        slot.source += [*tokens, EOS] if complete else tokens
        slot.fed |= complete

    def set_dial(self, number: int, k: float) -> None:
        self.used[number].k = k

    def set_patience(self, number: int, refusals: int) -> None:
        """It never wants to end early."""

    def steer(self, number: int, steered: bool) -> None:
        """Its dial is read at every token."""

    def hold(self, number: int) -> None:
        self.held.add(number)

    def resume(self, number: int) -> None:
        self.held.discard(number)

    def alignment(self, number: int) -> np.ndarray:
        """Each token looks at the source token of its place."""
        slot = self.used[number]
        found = np.zeros((len(slot.target), slot.read))
        for place in range(len(slot.target)):
            found[place, min(place, slot.read - 1)] = 1
        return found

    def advance(self, only: Iterable[int] | None = None) -> list[TokenEvent]:
        rows = self.runnable if only is None else [n for n in only if n in self.runnable]
        if self.world is not None:
            self.world.pause()
            if (sleep := getattr(getcurrent(), "sleep", None)) is not None:
                sleep(self.world.slowness * self.world.draw.random())
        if self.poisoned.intersection(rows):
            raise ValueError("the engine fails")
        return [event for number in rows for event in self._advance(number, self.used[number])]

    def _advance(self, number: int, slot: Slot) -> list[TokenEvent]:
        events = []

        def report(kind: Any, token: int, read: int, last: bool = False) -> None:
            numbers = (0.0, read, len(slot.target), float(read), float(len(slot.target)))
            events.append(TokenEvent(number, kind, token, *numbers, last))

        if slot.again:  # what was read before it was interrupted
            slot.again = False
            for read, token in enumerate(slot.source[: slot.read], 1):
                report("READ", token, read)
        while not slot.writes and slot.read < len(slot.source):
            slot.read += 1
            report("READ", slot.source[slot.read - 1], slot.read)
        if slot.writes:
            token = slot.forced.pop(0)[0] if slot.forced else self._next(slot)
            slot.target.append(token)
            slot.path.append(slot.read)
            slot.over = token == EOS
            report("WRITE", token, slot.read, slot.over)
        return events

    def _next(self, slot: Slot) -> int:
        """Depends on the source that was read and on all that was written."""
        place = len(slot.target)
        if slot.complete and place >= len(slot.source) - 1:
            return EOS
        seen = slot.source[min(place, slot.read - 1)]
        last = slot.target[-1] if slot.target else 0
        return self.plain[(31 * seen + 7 * last + place) % len(self.plain)]

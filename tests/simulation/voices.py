"""A recogniser by a rule: each word is so many samples of one loudness, silence a pause."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.simulation.world import Broken, World
from tests.streams import WORDS
from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import RATE, Samples
from waitinfo.listening.recogniser import Anchor, Heard, Word
from waitinfo.listening.workers import Busy, OnEnd, OnHeard

UNIT = 64  # samples of a word, or of a pause
ROOM = 20 * UNIT  # samples that may wait
STEP = 100  # of loudness
ENDINGS = ("", ".")


def pcm(words: Sequence[str | None]) -> bytes:
    """Words, None for a pause, as audio."""
    loud = [0 if word is None else 1 + _names().index(word) for word in words]
    return np.repeat(np.array(loud) * STEP, UNIT).astype("<i2").tobytes()


@cache
def _names() -> list[str]:
    return [word + ending for word in WORDS for ending in ENDINGS]


class FakeVoices:
    """In the place of processes that recognise."""

    world: World  # at present

    def __init__(self, recogniser: str, limit: int, observer: Any = None) -> None:
        self.limit = limit
        self.open_voices: set[FakeVoice] = set()

    def open(
        self, on_heard: OnHeard, on_end: OnEnd, language: str | None, live: bool,
        carried: Sequence[str] | None,
    ) -> FakeVoice:  # fmt: skip
        if len(self.open_voices) >= self.limit:
            raise Busy("full")
        voice = FakeVoice(self, on_heard, on_end, carried or ())
        self.open_voices.add(voice)
        return voice

    def close(self) -> None:
        """Its voices are closed by those who have them."""


class FakeVoice:
    """One speaker. It commits words late, moves its anchor at will, and sometimes dies."""

    def __init__(
        self, pool: FakeVoices, on_heard: OnHeard, on_end: OnEnd, carried: Sequence[str]
    ) -> None:
        self.pool, self.world = pool, pool.world
        self.on_heard, self.on_end, self.carried = on_heard, on_end, list(carried)
        self.waiting: list[Samples] = []
        self.samples: Samples = np.zeros(0, np.float32)
        self.told = len(self.carried)  # words and pauses
        self.begin = 0  # of the stretch, counted like `told`
        self.committed = list(carried)  # words of the stretch
        self.finishing = self.closed = self.due = False

    def push(self, samples: Samples) -> int:
        if self.finishing or self.closed:
            raise WaitinfoError("this voice has been finished")
        taken = max(0, min(len(samples), ROOM - sum(map(len, self.waiting))))
        if taken:
            self.waiting.append(samples[:taken])
            self._wake()
        return taken

    def finish(self) -> None:
        self.finishing = True
        self._wake()

    def close(self) -> None:
        self.closed = True
        self.pool.open_voices.discard(self)

    def _wake(self) -> None:
        if not self.due:
            self.due = True
            draw = self.world.draw
            self.world.loop.call_later(draw.choice([0.0, 0.01, 1.0]) * draw.random(), self._turn)

    def _turn(self) -> None:
        self.due = False
        if self.closed:
            return
        if self.world.chance(0.01):
            self._over(WaitinfoError("its process has died"))
            return
        self.samples = np.concatenate([self.samples, *self.waiting])
        self.waiting.clear()
        if found := self._hear():
            self.on_heard(found)
        if self.finishing:
            self._over(None)

    def _over(self, error: Exception | None) -> None:
        self.close()
        self.on_end(error)

    def _hear(self) -> list[Heard]:
        names, draw = _names(), self.world.draw
        loud = np.rint(self.samples[UNIT - 1 :: UNIT] * 32768 / STEP).astype(int).tolist()
        said = [names[number - 1] if 0 < number <= len(names) else None for number in loud]
        if len(said) < len(self.carried):
            return []
        if said[: len(self.carried)] != self.carried:
            raise Broken(f"audio was sent again from another place: {said}, {self.carried}")
        until = len(said) if self.finishing else draw.randint(self.told, len(said))
        found, words = [], []
        for place in range(self.told, until):
            if (name := said[place]) is None:
                self.begin, self.committed = place + 1, []
                found.append(self._heard(words, [], True))
                words = []
            else:
                words.append(_word(name, place))
                self.committed.append(name)
        self.told = until
        moved = draw.randint(0, len(self.committed)) if draw.random() < 0.2 else 0
        self.begin, self.committed = self.begin + moved, self.committed[moved:]
        rest = [_word(name, place) for place, name in enumerate(said[until:], until) if name]
        return [*found, self._heard(words, rest, False)]

    def _heard(self, words: list[Word], rest: list[Word], pause: bool) -> Heard:
        anchor = Anchor(self.begin * UNIT, tuple(self.committed))
        return Heard(words, rest, len(self.samples) / RATE, pause, anchor)


def _word(name: str, place: int) -> Word:
    return Word(name, place * UNIT / RATE, (place + 1) * UNIT / RATE)

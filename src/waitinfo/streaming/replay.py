"""Where an interrupted stream continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, NamedTuple

from waitinfo.errors import WaitinfoError
from waitinfo.text.special import BOS, EOS, PAD


class ReplayError(WaitinfoError):
    """No stream of this model can have been interrupted so."""

    code: ClassVar[str] = "resume"


class DialState(NamedTuple):
    """What a stream that holds its lag knew when its present sentence or window began."""

    k: float  # the dial
    aim: float  # the lag that it was set for
    behind: float  # sum of the differences between goal and lag
    source: float  # source words so far, and translated words: their ratio is the pace
    target: float


@dataclass(frozen=True)
class Replay:
    """What a stream had written of its present sentence or window when it was interrupted.

    A stream opened with it gets the source again from the beginning of that sentence or window. It
    reads and writes the same tokens at the same places, and then goes on as if it had not been
    interrupted. A window that has moved on begins with tokens that were read and written before:
    the first `begun` source tokens are read again at once, and the first `kept` tokens of the path
    are not reported again.
    """

    path: Sequence[tuple[int, int]] = ()  # tokens written, each with the source tokens read before
    sentence: int = 0  # number of the present sentence or window
    seconds: float = 0.0  # age of the stream when it was interrupted
    begun: int = 0  # source tokens that had been read when the window began
    kept: int = 0  # tokens of the path that had been written then
    shown: int = 0  # words among them that had been shown
    punctuated: bool | None = None  # whether the text had sentence ends, if that was known
    inside: bool = False  # the source begins inside a word without spaces
    after: str = " "  # the last character that had been shown
    dial: DialState | None = None  # of a stream that holds its lag
    memory: Sequence[float] = ()  # of the policy, when the window began

    def check(self, vocabulary: int, capacity: int, memory: int = 0) -> None:
        """Raise unless a model with this vocabulary can have written it.

        capacity: source tokens that fit into a sentence. memory: numbers that its policy remembers.
        """
        for token, read in self.path:
            if not 0 <= token < vocabulary or token in (BOS, PAD) or read < 0:
                raise ReplayError(
                    f"replay: token {token} after {read} cannot have been written by this model"
                )
        possible = (
            0 <= self.begun <= capacity
            and 0 <= self.kept <= min(len(self.path), 2 * capacity)
            and 0 <= self.shown <= 4 * self.kept
            and all(1 <= r <= self.begun and t != EOS for t, r in self.path[: self.kept])
        )
        if not possible:
            raise ReplayError("replay: no window can have begun with so many tokens")
        if self.memory and (len(self.memory) != memory or not all(map(isfinite, self.memory))):
            raise ReplayError(f"replay: the policy remembers {memory} numbers, not {self.memory}")

"""What all engines share: their settings, and which slots are free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.transformer import Transformer
from waitinfo.systems.base import System

if TYPE_CHECKING:
    from waitinfo.streaming.engine.forcing import Path
    from waitinfo.streaming.engine.slots import Numbers, TokenEvent

ENDINGS = ("guard", "allow")
NO_WINDOWS = "recorded engines have no windows; use segment punctuation or whole"


class Places:
    """`count` slots, each with room for a source of `capacity` tokens with end-of-sentence."""

    def __init__(self, count: int, capacity: int) -> None:
        self.count, self.capacity = count, capacity
        self.free = list(range(count - 1, -1, -1))

    def open(self) -> int:
        if not self.free:
            raise WaitinfoError(
                f"all {self.count} streams are in use; close one, or load the model with more"
            )
        return self.free.pop()

    def check_length(self, tokens: int) -> None:
        """Raise an error if a source of so many tokens does not fit, with end-of-sentence."""
        if tokens > self.capacity - 1:
            raise WaitinfoError(
                f"a source of over {self.capacity - 1} tokens does not fit; "
                "split it, or load the model with a larger capacity"
            )


class BaseEngine(ABC):
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted."""

    def __init__(
        self, model: Transformer, system: System, slots: int, capacity: int, ending: str
    ) -> None:
        if ending not in ENDINGS:
            raise unknown("ending", ending, ENDINGS)
        if slots < 1 or capacity < 2:
            raise WaitinfoError("an engine needs at least one slot of at least two tokens")
        system.check_model(model.config)
        self.model, self.system = model, system
        self.slots, self.capacity, self.guard = slots, capacity, ending == "guard"
        self.has_info = model.source_info is not None
        self.failed: set[int] = set()  # slots whose numbers are not finite, until they are reset

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a round would do something."""

    @abstractmethod
    def advance(self, only: Iterable[int] | None = None) -> Sequence[TokenEvent]:
        """One round of all slots that can go on, or of some of them.

        If it raises, no token is lost or computed twice: the next round continues from there.
        """

    # Windows, for engines that can move them

    def set_patience(self, slot: int, refusals: int) -> None:
        """Let the model end a source before it is complete, after so many refusals in a row."""
        if refusals:
            raise WaitinfoError(NO_WINDOWS)

    def alignment(self, slot: int) -> Numbers:
        """The source that each written token of a slot looked at."""
        raise WaitinfoError(NO_WINDOWS)

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        """Forget the first tokens of a slot's source and target."""
        raise WaitinfoError(NO_WINDOWS)

    def begin(self, slot: int, path: Path, read: int) -> None:
        """Begin a source with tokens that were read and written before, as after a shift."""
        if path or read:
            raise WaitinfoError(NO_WINDOWS)

    def run(self) -> list[TokenEvent]:
        """Rounds until no slot can go on without more input."""
        events: list[TokenEvent] = []
        while self.busy:
            events += self.advance()
        return events

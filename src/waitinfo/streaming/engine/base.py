"""What all engines share: their settings, their slots, and what is asked of a slot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.aligning import align
from waitinfo.streaming.engine.forcing import Forced, Path
from waitinfo.systems.base import System

if TYPE_CHECKING:
    from waitinfo.streaming.engine.forcing import Path
    from waitinfo.streaming.engine.slots import Numbers, TokenEvent

ENDINGS = ("guard", "allow")


class Places(ABC):
    """`count` slots, each with room for a source of `capacity` tokens with end-of-sentence."""

    fed: Sequence[bool] | np.ndarray  # by slot: whether the source is complete
    target_info: np.ndarray  # by slot: info written so far

    def __init__(self, count: int, capacity: int) -> None:
        self.count, self.capacity = count, capacity
        self.free = list(range(count - 1, -1, -1))
        self.k = np.zeros(count)
        self.patience = np.zeros(count, np.int64)  # refusals after which an end counts; 0 for never
        self.forced = Forced()
        self.shifted: set[int] = set()  # slots whose kept tokens are not in the caches yet
        # Total info after 0, 1, … source tokens.
        self.received = np.zeros((count, capacity + 1))

    def open(self) -> int:
        if not self.free:
            raise WaitinfoError(
                f"all {self.count} streams are in use; close one, or load the model with more"
            )
        return self.free.pop()

    @abstractmethod
    def length_of(self, slot: int) -> int:
        """Source tokens that a slot was fed."""

    @abstractmethod
    def begin(self, slot: int, path: Path, read: int) -> None:
        """The first tokens of the source are read and these are written, before they are there."""

    @abstractmethod
    def history(self, slot: int) -> tuple[list[int], list[int], list[int]]:
        """The source tokens a slot has read, the tokens written, and the READs before each."""

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.capacity - 1 - self.length_of(slot)

    def check_length(self, tokens: int) -> None:
        """Raise an error if a source of so many tokens does not fit, with end-of-sentence."""
        if tokens > self.capacity - 1:
            raise WaitinfoError(
                f"a source of over {self.capacity - 1} tokens does not fit; "
                "split it, or load the model with a larger capacity"
            )


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Compiled code looks tokens up without a check."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise WaitinfoError(f"tokens {min(tokens)} to {max(tokens)}: must be 0 to {vocabulary - 1}")


class BaseEngine(ABC):
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted."""

    cuts_loops: ClassVar[bool] = True
    state: Places

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
        self.steered: set[int] = set()  # slots whose dial may change after every token
        self.again: set[int] = set()  # slots that have to report what they had read

    # Slots

    @property
    def free(self) -> list[int]:
        """Slots that are not in use."""
        return self.state.free

    @property
    def fed(self) -> Sequence[bool] | np.ndarray:
        """By slot: whether its source is complete."""
        return self.state.fed

    @property
    @abstractmethod
    def bytes_per_slot(self) -> int:
        """Memory that a slot takes."""

    @property
    @abstractmethod
    def runnable(self) -> list[int]:
        """The slots of the next round."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a round would do something."""

    @abstractmethod
    def can_go_on(self, slot: int) -> bool:
        """Whether a slot has something to do without more input."""

    def open(self, k: float) -> int:
        """A slot for a new stream."""
        slot = self.state.open()
        self.reset(slot, k)
        return slot

    @abstractmethod
    def close(self, slot: int) -> None:
        """Give a slot back, whatever it is doing."""

    @abstractmethod
    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""

    @abstractmethod
    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        """Go on in a slot without its first source and target tokens.

        The next rounds encode the others again, together with what other slots have to do.
        """

    @torch.inference_mode()
    def alignment(self, slot: int) -> Numbers:
        """[T, S] how much each token written has looked at each source token read."""
        return align(self.model, *self.state.history(slot))

    def set_patience(self, slot: int, refusals: int) -> None:
        """Let the model end this source before it is complete, after so many refusals in a row.

        0, as in every new source, leaves that to `ending`.
        """
        self.state.patience[slot] = refusals

    def set_dial(self, slot: int, k: float) -> None:
        """Turn a slot's dial; counts from the next decision on."""
        if self.state.k[slot] != k:
            self.state.k[slot] = k
            self._wake(slot)

    def steer(self, slot: int, steered: bool) -> None:
        """Say whether the dial of a slot may change after every token that it writes."""
        if steered:
            self.steered.add(slot)
        else:
            self.steered.discard(slot)

    def force(self, slot: int, path: Path) -> None:
        """Write these tokens first, each once so many source tokens are read."""
        check_tokens([token for token, _ in path], self.model.config.target_vocabulary)
        self.state.forced.put(slot, path)

    def begin(self, slot: int, path: Path, read: int) -> None:
        """Begin a source with tokens that were read and written before, as after a shift.

        The reads are reported again once the source is there.
        """
        check_tokens([token for token, _ in path], self.model.config.target_vocabulary)
        self.state.begin(slot, path, read)
        if read:
            self.again.add(slot)

    @abstractmethod
    def hold(self, slot: int) -> None:
        """Leave a slot out of the rounds until `resume`."""

    @abstractmethod
    def resume(self, slot: int) -> None:
        """Take a slot into the rounds again."""

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.state.room(slot)

    @abstractmethod
    def feed(self, slot: int, tokens: Sequence[int], complete: bool = False) -> None:
        """Source tokens that have arrived; `complete` adds end-of-sentence."""

    @abstractmethod
    def _wake(self, slot: int) -> None:
        """Take a slot into the next round, if it has something to do."""

    # Rounds

    @abstractmethod
    def advance(self, only: Iterable[int] | None = None) -> Sequence[TokenEvent]:
        """One round of all slots that can go on, or of some of them.

        If it raises, no token is lost or computed twice: the next round continues from there.
        """

    def run(self) -> list[TokenEvent]:
        """Rounds until no slot can go on without more input."""
        events: list[TokenEvent] = []
        while self.busy:
            events += self.advance()
        return events

"""Rounds over all slots.

Source tokens are fed as they arrive. A round encodes what has arrived for all slots, lets every
slot READ until its system wants to WRITE, and computes the next target token of all slots that do.
Slots join, leave and restart at any time; rows differ in length and are never padded again.

A slot sees only what it has read. Input that is already there is encoded ahead, in one pass; with
a causal encoder that is the same as encoding it token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model import Network
from waitinfo.model.config import PLAIN
from waitinfo.streaming.engine.backend import PASS_TOKENS, Backend, Events, Rules
from waitinfo.streaming.engine.compiled import NativeBackend, compiled
from waitinfo.streaming.engine.plain import PlainBackend
from waitinfo.streaming.engine.slots import Chosen, Path, Slots
from waitinfo.streaming.engine.token_events import TokenEvent
from waitinfo.systems.base import System
from waitinfo.text.special import BOS, EOS

ENDINGS = ("guard", "allow")
NOT_FINITE = (
    "the model computed values that are not finite; its weights may be damaged, or dtype too narrow"
)


class Engine:
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted.

    A round encodes about `round_tokens` source tokens, so that one long text does not delay the
    other slots. `backend` makes what computes; without it, that is compiled code where there is
    some for the model, else `PlainBackend`. Not thread-safe.
    """

    cuts_loops: ClassVar[bool] = True

    def __init__(
        self,
        model: Network,
        system: System,
        slots: int = 32,
        capacity: int = 256,
        ending: str = "guard",
        round_tokens: int = PASS_TOKENS,
        backend: Callable[[Network, System, Slots, Rules], Backend] | None = None,
    ) -> None:
        if ending not in ENDINGS:
            raise unknown("ending", ending, ENDINGS)
        if slots < 1 or capacity < 2:
            raise WaitinfoError("an engine needs at least one slot of at least two tokens")
        system.check_model(model.config)
        self.model, self.system = model, system
        self.slots, self.capacity = slots, capacity
        self.has_info = model.source_info is not None
        self.state = Slots(slots, capacity, system.memory)
        if backend is None:
            backend = NativeBackend if compiled(model, system) else PlainBackend
        rules = Rules(ending == "guard", self.cuts_loops, round_tokens)
        with model.building():
            self.backend = backend(model, system, self.state, rules)
        self._found: Events = []  # of the round under way

    # Slots

    @property
    def free(self) -> list[int]:
        """Slots that are not in use."""
        return self.state.free

    @property
    def fed(self) -> NDArray[np.bool_]:
        """By slot: whether its source is complete."""
        return self.state.fed

    @property
    def failed(self) -> set[int]:
        """Slots whose numbers are not finite, until they are reset."""
        return self.state.failed

    @property
    def bytes_per_slot(self) -> int:
        """Memory that a slot takes, on average."""
        return self.backend.nbytes // self.slots

    @property
    def runnable(self) -> list[int]:
        """The slots of the next round."""
        return self.state.runnable.tolist()

    @property
    def busy(self) -> bool:
        """Whether a round would do something."""
        return bool(np.count_nonzero(self.state.going & ~self.state.held))

    def can_go_on(self, slot: int) -> bool:
        """Whether a slot has something to do without more input."""
        return bool(self.state.going[slot])

    def open(self, k: float) -> int:
        """A slot for a new stream."""
        slot = self.state.open()
        self.reset(slot, k)
        return slot

    def close(self, slot: int) -> None:
        """Give a slot back, whatever it is doing."""
        self.backend.release(slot)
        self.state.close(slot)

    def reset(self, slot: int, k: float) -> None:
        """Start a new source in a slot."""
        self.backend.release(slot)
        self.state.reset(slot, k)

    def shift(self, slot: int, k: float, source: int, target: int) -> None:
        """Go on in a slot without its first source and target tokens.

        The next rounds encode the others again.
        """
        self.state.memory[slot] = self.backend.remembered(slot)
        self.backend.release(slot)
        self.state.shift(slot, k, source, target)
        self.state.wake(slot)

    def hold(self, slot: int) -> None:
        """Leave a slot out of the rounds until `resume`."""
        self.state.held[slot] = True

    def resume(self, slot: int) -> None:
        """Take a slot into the rounds again."""
        self.state.held[slot] = False

    # Source, target and dial

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.state.room(slot)

    def feed(self, slot: int, tokens: Sequence[int], complete: bool = False) -> None:
        """Source tokens that have arrived; `complete` adds end-of-sentence."""
        check_tokens(tokens, self.model.config.source_vocabulary)
        self.state.feed(slot, tokens, complete)
        self.backend.fed(slot)
        self.state.wake(slot)

    def force(self, slot: int, path: Path) -> None:
        """Write these tokens first, each after the given number of source tokens."""
        check_tokens([token for token, _ in path], self.model.config.target_vocabulary)
        self.state.forced.put(slot, path)

    def begin(self, slot: int, path: Path, read: int, memory: Sequence[float] = ()) -> None:
        """Begin a source with tokens that were read and written before, as after a shift.

        The reads are reported again once the source is there. memory: what the policy remembered.
        """
        check_tokens([token for token, _ in path], self.model.config.target_vocabulary)
        self.state.begin(slot, path, read, memory)

    def remembered(self, slot: int) -> list[float]:
        """What the policy remembers of a slot since its last WRITE."""
        return self.backend.remembered(slot).tolist()

    def set_patience(self, slot: int, refusals: int) -> None:
        """Let the model end this source before it is complete, after `patience` refusals in a row.

        0, as in every new source, leaves that to `ending`.
        """
        self.state.patience[slot] = refusals

    def set_dial(self, slot: int, k: float) -> None:
        """Turn a slot's dial; counts from the next decision on."""
        if self.state.k[slot] != k:
            self.state.k[slot] = k
            self.state.wake(slot)

    def steer(self, slot: int, steered: bool) -> None:
        """Say whether the dial of a slot may change after every token that it writes."""
        if steered:
            self.state.steered.add(slot)
        else:
            self.state.steered.discard(slot)

    def alignment(self, slot: int) -> NDArray[Any]:
        """[T, S] how much each token written has looked at each source token read.

        It says where a window may be cut.
        """
        return align(self.model, *self.state.history(slot))

    # Rounds

    def advance(self, only: Iterable[int] | None = None) -> Sequence[TokenEvent]:
        """One round of all slots that can go on, or of some of them.

        If it raises, no token is lost or computed twice: the next round continues from there.
        """
        rows = self.state.runnable
        if only is not None:  # sets are several times as fast as arrays of a few rows
            wanted = set(only)
            rows = np.array([row for row in rows.tolist() if row in wanted], np.int64)
        if self.state.shifted:
            rows = self._restore(rows)
        if self.state.again:
            self._found.append(self.state.reads_again(rows))
        if len(rows):
            self.backend.advance(rows, self._found)
        found, self._found = self._found, []
        return found[0] if len(found) == 1 else [event for some in found for event in some]

    def _restore(self, rows: Chosen) -> Chosen:
        """Compute the kept tokens of shifted slots; the rows that can go on in this round."""
        state = self.state
        shifted = np.isin(rows, list(state.shifted))
        waiting = rows[shifted]
        if len(waiting):
            self.backend.encode(waiting)
            waiting = waiting[~np.isin(waiting, list(state.failed))]
            done = waiting[state.encoded[waiting] >= state.read[waiting]]
            if len(done):
                state.source_info[done] = state.received[done, state.read[done]]
                self.backend.rewrite(done)
                state.shifted.difference_update(done.tolist())
        return rows[~np.isin(rows, [*state.shifted, *state.failed])]

    def run(self) -> list[TokenEvent]:
        """Rounds until no slot can go on without more input."""
        events: list[TokenEvent] = []
        while self.busy:
            events += self.advance()
        return events


def check_tokens(tokens: Sequence[int], vocabulary: int) -> None:
    """Compiled code looks tokens up without a check."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary:
        raise WaitinfoError(f"tokens {min(tokens)} to {max(tokens)}: must be 0 to {vocabulary - 1}")


def align(
    model: Network, source: Sequence[int], written: Sequence[int], path: Sequence[int]
) -> NDArray[Any]:
    """[T, S] how much each token written has looked at each source token read.

    By cross-attention; where that is of a special kind, by when each token was written.
    """
    tokens = [token for token in written if token != EOS]
    path = list(path[: len(tokens)])
    if not tokens or model.config.cross_attention != PLAIN:
        return align_by_path(path, len(source))
    # Encoded again: the caches may hold other numbers than attention takes.
    network: Any = model
    given = network.given
    with network.computing():
        source_in = network.embed_source(given(np.array([source])))
        encoded = network.encode(source_in, given(np.array([len(source)])))
        target = network.embed_target(given(np.array([[BOS, *tokens[:-1]]])))
        weights = network.alignment(target, encoded, given(np.array([path])))
        return network.shown(weights)[0].astype(np.float64)  # type: ignore[no-any-return]


def align_by_path(path: Sequence[int], read: int) -> NDArray[Any]:
    """[T, S] each token on the source token that it would follow without the initial wait."""
    found = np.zeros((len(path), read))
    for row, seen in enumerate(path):
        found[row, max(0, seen - path[0])] = 1
    return found

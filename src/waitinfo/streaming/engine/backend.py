"""What computes the streams of an engine: the interface of all backends, and rounds on the host.

| backend | computes with | decides |
|---|---|---|
| `torch` (`plain`) | torch, on any device | on the host, `HostBackend` |
| `numpy` (`plain`) | NumPy: models with integers | on the host, `HostBackend` |
| `native` (`compiled`) | compiled code for integers, on a CPU | on the host, `HostBackend` |
| `recorded` | CUDA graphs | on the device, `recorded.steps` |

All of them keep the state of a slot in `Slots` and decide by `decision`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from waitinfo.model import Network
from waitinfo.streaming.engine.decision import length_limit, may_write, verdict
from waitinfo.streaming.engine.slots import Chosen, Numbers, Slots
from waitinfo.streaming.engine.token_events import Reason, TokenEvent
from waitinfo.systems.base import System
from waitinfo.systems.interface import NONE, OF_STATE, PolicyState, Step, ask
from waitinfo.text.special import EOS

PASS_TOKENS = 8192  # source tokens in one pass, padding counted
SMALLEST_SHARE = 16  # source tokens that every waiting slot may encode in a round

Events = list[Sequence[TokenEvent]]  # of a round under way, in parts


class Rules(NamedTuple):
    """Settings of an engine that decide about tokens and rounds."""

    guard: bool  # no end-of-sentence before the source is complete
    cuts_loops: bool
    round_tokens: int  # source tokens to encode in a round


class Backend(ABC):
    """The caches of all slots, and what computes on them."""

    name: str

    def __init__(self, model: Network, system: System, slots: Slots, rules: Rules) -> None:
        self.model: Any = model
        self.system, self.slots, self.rules = system, slots, rules

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory of all caches."""

    def take_memory(self) -> None:  # noqa: B027 (a device has it from the beginning)
        """Take all memory now that the system would give as it is used. No slot is open."""

    @abstractmethod
    def release(self, slot: int) -> None:
        """Forget the source and target of a slot."""

    @abstractmethod
    def encode(self, rows: Chosen) -> None:
        """Encode what has arrived, within the budget of a round."""

    @abstractmethod
    def step(self, rows: Chosen, found: Events) -> None:
        """READ until the system wants to WRITE, compute the next token, and WRITE or refuse it."""

    def remembered(self, slot: int) -> Numbers:
        """[M] what the policy remembers of a slot."""
        return self.slots.memory[slot]

    @abstractmethod
    def rewrite(self, rows: Chosen) -> None:
        """Compute the target that some slots were told to keep, once their source is encoded."""

    def fed(self, slot: int) -> None:
        """Source tokens of a slot have arrived."""
        return

    def advance(self, rows: Chosen, found: Events) -> None:
        """A round: encode, then step. Adds what was read and written to `found`, at once."""
        self.encode(rows)
        if self.slots.failed:
            rows = rows[~np.isin(rows, list(self.slots.failed))]
        if len(rows):
            self.step(rows, found)


class Candidates(NamedTuple):
    """The best next token of every row, on the host, and what the system may ask about it."""

    tokens: list[int]  # [R]
    infos: list[float]  # [R] the info each would have
    finite: list[bool]  # [R] whether the model computed numbers
    step: Step | None  # None if the system does not look at it
    embedded: Any = None  # the tokens, as the next input


class HostBackend(Backend):
    """Rounds that decide on the host. A backend below it computes."""

    def __init__(self, model: Network, system: System, slots: Slots, rules: Rules) -> None:
        super().__init__(model, system, slots, rules)
        self.causal = model.config.encoder == "causal"
        self.computes_again = system.computes_again(model.config)
        self.rereads = system.simultaneous and not self.causal
        self._for_arrays = getattr(system.ready, "for_arrays", False)
        self._asks_sides = not set(OF_STATE).isdisjoint(system.asks)
        self._asks_state = bool(system.memory) or self._asks_sides
        self._by_numbers = self._for_arrays and not self._asks_sides
        self._in_arrays = self.model.numbers == "numpy"
        self._decides_after = system.decides_after

    @abstractmethod
    def _encode(self, group: list[int], starts: list[int], ends: list[int]) -> list[int]:
        """Encode source tokens of some slots; those whose encoding is not finite."""

    @abstractmethod
    def _compute(
        self, rows: Chosen, state: PolicyState, forced: Numbers | None, before: Numbers | None
    ) -> Candidates:
        """The next token of every row: a forced one, if not 0, or the best.

        before: [R] `Step.before`, if it is asked for.
        """

    @abstractmethod
    def _predict(self, rows: Chosen, state: PolicyState) -> Numbers:
        """[R] the best next tokens, if so much was read as `state` says; they are not kept."""

    @abstractmethod
    def _keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        """Carry on the state of accepted rows: some slots, and their numbers among the rows."""

    # Source

    def fed(self, slot: int) -> None:
        """Tell the info of source tokens that a bidirectional encoder cannot encode yet."""
        length = self.slots.length.item(slot)
        if self.causal or self.model.source_info is None or not length:
            return
        tokens = self.model.given(self.slots.sources[slot : slot + 1, :length])
        with self.model.computing():
            info = self.model.shown(self.model.embed_source(tokens).info)
        self.slots.receive(slot, 0, info[0].astype(np.float64))

    def _available(self, rows: Chosen) -> Numbers:
        """Source tokens that each row may have read by now."""
        slots = self.slots
        encoded = slots.encoded[rows]
        if self.causal or self.rereads:
            return encoded
        waits = slots.fed[rows] & (encoded == 0)
        return np.where(waits, slots.read[rows], slots.length[rows])

    def encode(self, rows: Chosen) -> None:
        slots = self.slots
        if self.rereads:  # what was read is encoded when a token is computed from it
            slots.encoded[rows] = slots.length[rows]
            return
        if len(rows) == 1 and self.causal:  # plain numbers are faster than arrays
            slot = rows.item()
            start, end = slots.encoded.item(slot), slots.length.item(slot)
            if start < end:
                end = min(end, start + max(SMALLEST_SHARE, self.rules.round_tokens))
                slots.fail(self._encode([slot], [start], [end]))
                slots.encoded[slot] = end
            return
        counts = slots.length[rows] - slots.encoded[rows]
        if not self.causal:  # it has to wait for the whole source
            counts = np.where(slots.fed[rows], counts, 0)
        if not np.count_nonzero(counts):
            return
        rows, counts = self._shares(rows[counts > 0], counts[counts > 0])
        if int(counts.max()) * len(rows) <= PASS_TOKENS:
            self._encode_group(rows, counts)
            return
        order = (-counts).argsort(kind="stable")
        while len(order):
            size = max(1, PASS_TOKENS // int(counts[order[0]]))
            some, order = np.sort(order[:size]), order[size:]
            self._encode_group(rows[some], counts[some])

    def _encode_group(self, rows: Chosen, counts: Numbers) -> None:
        """Encode the next tokens of each row in one pass."""
        starts = self.slots.encoded[rows]
        ends = starts + counts
        self.slots.fail(self._encode(rows.tolist(), starts.tolist(), ends.tolist()))
        self.slots.encoded[rows] = ends

    def _shares(self, rows: Chosen, counts: Numbers) -> tuple[Chosen, Numbers]:
        """Which slots encode how many of their tokens in this round.

        Slots with a word or two always get through; a long text takes several rounds.
        """
        most = self.rules.round_tokens
        if self.causal:
            return rows, np.minimum(counts, max(SMALLEST_SHARE, most // len(rows)))
        longest_waiting = self.slots.woken[rows].argsort()
        fits = int((counts[longest_waiting].cumsum() <= most).sum())
        some = np.sort(longest_waiting[: max(1, fits)])
        return rows[some], counts[some]

    # Decisions

    def step(self, rows: Chosen, found: Events) -> None:
        events: list[TokenEvent] = []
        found.append(events)  # also what was read before an error counts
        ready = self._read_on(rows, events)
        if not len(ready):
            self.slots.settle(rows, False)
            return
        self._write(ready, events)
        able = self._may_write(ready)
        if len(ready) < len(rows):
            # Rows that have not attempted to WRITE could not, and nothing has changed for them.
            tried, able = able, np.zeros(len(rows), bool)
            able[rows.searchsorted(ready)] = tried
        self.slots.settle(rows, able)

    def _read_on(self, rows: Chosen, events: list[TokenEvent]) -> Chosen:
        """Let rows READ until they may WRITE or have no more input; the rows that may."""
        slots, available = self.slots, self._available(rows)
        if self._alone(rows):
            slot, most = rows.item(), available.item()
            while not (may := self._may(slot)) and slots.read.item(slot) < most:
                events += slots.read_next([slot])
            return rows if may else rows[:0]
        while True:
            ready = self._may_write(rows)
            hungry = ~ready & (slots.read[rows] < available)
            if not np.count_nonzero(hungry):
                return rows[ready]
            events += slots.read_next(rows[hungry].tolist())

    def _alone(self, rows: Chosen) -> bool:
        """Whether there is a single row: plain numbers are faster than arrays."""
        return self._by_numbers and len(rows) == 1 and not self.slots.forced

    def _may_write(self, rows: Chosen) -> Numbers:
        """[R] whether rows compute their next token now."""
        if self._alone(rows):
            return np.array([bool(self._may(rows.item()))])
        return self._may(rows)

    def _may(self, rows: Chosen | int) -> Any:
        """The same, or of one slot."""
        slots = self.slots
        state, least, ready = slots.standing(rows), slots.least[rows], self.system.ready
        if self._asks_state:
            state.asked = slots.asked(rows, self.system)
        wanted: Any = ready(state) if self._for_arrays else ask(ready, state)
        if slots.forced:
            assert not isinstance(rows, int)
            forced, due = slots.forced.following(rows)
            wanted, least = wanted | (forced > 0), np.where(forced > 0, due, least)
        read = state.read
        return may_write(read, state.written, state.complete, least, wanted, length_limit(read))

    def _write(self, rows: Chosen, events: list[TokenEvent]) -> None:
        """Compute the next token of all rows in one pass; WRITE those that are accepted."""
        slots, state = self.slots, self.slots.standing(rows)
        if self._asks_state:
            state.asked = slots.asked(rows, self.system)
        forced = slots.forced.following(rows)[0] if slots.forced else None
        before = self._predict_before(rows, state) if "before" in self.system.asks else None
        found = self._compute(rows, state, forced, before)
        choices = self._choose(rows, state, forced, found)
        numbers = [choice.number for choice in choices]
        self._keep([choice.slot for choice in choices], numbers, found)
        if self.system.memory:
            memory = self._ask("remember", state, found)
            slots.memory[rows[numbers]] = memory[numbers]
        for slot, number, token, last, cut, runs in choices:
            events.append(slots.write(slot, token, found.infos[number], runs, last, cut))
        if len(choices) < len(rows):
            refused = np.ones(len(rows), bool)
            refused[numbers] = False
            if slots.failed:
                refused &= ~np.isin(rows, list(slots.failed))
            waits: Any = self._ask("wait", state, found) if self.system.waits else 1
            slots.least[rows[refused]] = (state.read + waits)[refused]
            slots.tried[rows[refused]] = np.array(found.tokens)[refused]
            slots.tried_at[rows[refused]] = state.read[refused]
            self._read_after_refusal(rows[refused], events)

    def _choose(
        self, rows: Chosen, state: PolicyState, forced: Numbers | None, found: Candidates
    ) -> list[Choice]:
        """The rows that WRITE, and what."""
        slots, rules = self.slots, self.rules
        columns = zip(
            rows.tolist(), state.read.tolist(), state.written.tolist(), state.complete.tolist(),
            self._accepted(state, found), slots.refused[rows].tolist(),
            slots.patience[rows].tolist(),
            repeat(False, len(rows)) if forced is None else (forced > 0).tolist(), strict=True,
        )  # fmt: skip
        choices = []
        for number, row in enumerate(columns):
            slot, read, written, complete, accepted, refused, patience, must = row
            if not found.finite[number]:
                slots.fail([slot])
                continue
            token = found.tokens[number]
            runs = slots.runs_after(slot, token) if rules.cuts_loops else None
            looping = not must and slots.loops(slot, runs)
            wrote, last, ends, early = verdict(
                written, complete, token == EOS, accepted, looping, must,
                refused, patience, rules.guard, length_limit(read),
            )  # fmt: skip
            if wrote:
                cut: Reason | None = "loop" if looping else "length" if last and not ends else None
                token = EOS if looping else token
                choices.append(Choice(slot, number, token, bool(last), cut, runs))
            else:
                slots.refused[slot] += early
        return choices

    def _accepted(self, state: PolicyState, found: Candidates) -> list[bool]:
        """[R] whether the system takes the computed tokens."""
        if found.step is None:
            return [True] * len(found.tokens)
        return self._ask("accept", state, found).tolist()

    def _ask(self, method: str, state: PolicyState, found: Candidates) -> Numbers:
        """[R] or [R, M] what a method of the policy says about a step."""
        asked = getattr(self.system, method)
        if self._in_arrays and getattr(asked, "for_arrays", False):
            return asked(state, found.step)  # type: ignore[no-any-return]
        return ask(asked, state, found.step)  # type: ignore[no-any-return]

    def _predict_before(self, rows: Chosen, state: PolicyState) -> Numbers:
        """[R] `Step.before`. After a refusal it may be known, else it takes another pass."""
        slots = self.slots
        earlier = ask(self.system.earlier, state).astype(np.int64)
        known = (slots.tried_at[rows] == earlier) & (earlier > 0)
        found = np.where(known, slots.tried[rows], NONE)
        missing = ~known & (earlier > 0)
        if missing.any():
            some = rows[missing]
            shorter = slots.standing(some)
            shorter.read = earlier[missing]  # type: ignore[assignment]
            found[missing] = self._predict(some, shorter)
        return found

    def _read_after_refusal(self, rows: Chosen, events: list[TokenEvent]) -> None:
        """A refused row READs one more token at once, if there is one."""
        read = self.slots.read[rows]
        more = read < self._available(rows)
        if more.any():
            events += self.slots.read_next(rows[more].tolist())


class Choice(NamedTuple):
    """A token that a slot WRITEs."""

    slot: int
    number: int  # of its row in the pass
    token: int
    last: bool
    cut: Reason | None
    runs: Numbers | None  # see `Slots.runs_after`

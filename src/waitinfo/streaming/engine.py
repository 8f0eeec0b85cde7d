"""The engine: many streams on one model, each at its own pace, nothing computed twice.

Every stream has a slot: a row in the caches of encoder, cross-attention and decoder. Source tokens
are fed as they arrive. A round encodes all that has arrived for all slots in one pass, lets every
slot READ until its system wants to WRITE, and computes the next target token of all slots that do
in one pass. Slots join, leave and start anew at any time; rows differ in length and are never
padded again.

What a slot may see is only ever what it has read. Input that is already there is encoded ahead, in
one pass; a causal encoder makes that the same as encoding it token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.attention import CachePosition, Memory
from waitinfo.model.cache import Rows
from waitinfo.model.transformer import Encoded, Transformer
from waitinfo.systems.base import PolicyState, Step, System
from waitinfo.text.special import BOS, EOS, PAD

ENDINGS = ("guard", "allow")
READ, WRITE = "READ", "WRITE"
ENCODE_AT_ONCE = 8192  # source tokens, padding counted


def length_limit(read: Tensor) -> Tensor:
    """Most tokens that may be written once so many source tokens have been read."""
    return 2 * read + 10


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token read or written by a slot."""

    slot: int
    kind: str  # READ or WRITE
    token: int
    info: float
    read: int  # source tokens read so far, this one included
    written: int
    source_info: float  # info read so far
    target_info: float  # info written so far
    last: bool = False  # nothing more will be written for this source


class Engine:
    """`slots` streams of at most `capacity` source tokens each, end-of-sentence counted."""

    def __init__(
        self,
        model: Transformer,
        system: System,
        slots: int = 32,
        capacity: int = 256,
        ending: str = "guard",
    ) -> None:
        if ending not in ENDINGS:
            raise unknown("ending", ending, ENDINGS)
        if slots < 1 or capacity < 2:
            raise WaitinfoError("an engine needs at least one slot of at least two tokens")
        system.check_model(model.config)
        self.model, self.system = model, system
        self.slots, self.capacity, self.guard = slots, capacity, ending == "guard"
        self.causal = model.config.encoder == "causal"
        config = model.config
        # One position more than can be used: padding of a shared pass goes there.
        width = capacity + 1
        self.encoder = model.new_caches(config.encoder_layers if self.causal else 0, slots, width)
        self.memory = model.new_memories(slots, width)
        written = int(length_limit(torch.tensor(capacity))) + 1
        self.decoder = model.new_caches(config.decoder_layers, slots, written)
        self.states = model.new_states(slots)  # of cross-attention, after the last written token
        self.has_info = model.source_info is not None
        exact = torch.promote_types(model.source_embedding.weight.dtype, torch.float32)
        self.source_info = torch.ones(slots, width, device=model.device, dtype=exact)
        # On the host: total info after 0, 1, … source tokens, and where every slot stands.
        self.received = torch.zeros(slots, capacity + 1, dtype=torch.float64)
        self.standing = _blank_standing(slots)
        self.least = torch.zeros(slots, dtype=torch.long)  # tokens to have read before a next try
        self.inputs = torch.full((slots,), BOS)
        self.sources: list[list[int]] = [[] for _ in range(slots)]
        self.targets: list[list[int]] = [[] for _ in range(slots)]
        self.encoded = [0] * slots  # source tokens in the caches
        self.over = [0] * slots  # source tokens that the last step saw
        self.fed = [False] * slots  # the source is complete
        self.active = [False] * slots  # something is left to write
        self.free = list(range(slots - 1, -1, -1))

    # Slots

    @property
    def bytes_per_slot(self) -> int:
        """Memory a stream takes, whether it is used or not."""
        caches = (*self.encoder, *self.memory, *self.decoder)
        return sum(cache.nbytes for cache in caches) // self.slots

    def open(self, k: float) -> int:
        """A slot for a new stream."""
        if not self.free:
            raise WaitinfoError(
                f"all {self.slots} streams are in use; close one, or load the model with more"
            )
        slot = self.free.pop()
        self.reset(slot, k)
        return slot

    def close(self, slot: int) -> None:
        """Give a slot back, whatever it is doing."""
        self.active[slot] = False
        self.sources[slot] = []
        self.encoded[slot] = 0
        self.free.append(slot)
        self.free.sort(reverse=True)  # low slots first keeps rows together

    def reset(self, slot: int, k: float) -> None:
        """Begin a new source in a slot."""
        self.sources[slot], self.encoded[slot] = [], 0
        self.targets[slot], self.over[slot] = [], 0
        self.fed[slot], self.active[slot] = False, True
        self.inputs[slot] = BOS
        self.least[slot] = 0
        for state in self.states:
            state[slot] = 0
        for field in fields(PolicyState):
            getattr(self.standing, field.name)[slot] = 0
        self.set_dial(slot, k)

    def set_dial(self, slot: int, k: float) -> None:
        self.standing.k[slot] = k

    def room(self, slot: int) -> int:
        """Source tokens a slot can still take, with room left for end-of-sentence."""
        return self.capacity - 1 - len(self.sources[slot])

    def feed(self, slot: int, tokens: Sequence[int], complete: bool = False) -> None:
        """Source tokens that have arrived; `complete` adds end-of-sentence."""
        if len(tokens) > self.room(slot):
            raise WaitinfoError(
                f"a source of over {self.capacity - 1} tokens does not fit; "
                "split it, or load the model with a larger capacity"
            )
        self.sources[slot] += [*tokens, EOS] if complete else tokens
        self.fed[slot] |= complete
        if not self.causal and self.has_info:
            self._foretell(slot)

    @torch.inference_mode()
    def _foretell(self, slot: int) -> None:
        """The info of tokens that a bidirectional encoder cannot encode yet."""
        tokens = torch.tensor([self.sources[slot]], device=self.model.device)
        info = self.model.embed_source(tokens).info
        if info is not None:
            self._receive(slot, 0, info[0].double().cpu())

    # Rounds

    def run(self) -> list[TokenEvent]:
        """Rounds until no slot can go on without more input."""
        events = []
        while found := self.advance():
            events += found
        return events

    @torch.inference_mode()
    def advance(self) -> list[TokenEvent]:
        """One round; no events mean that nothing can be done."""
        rows = [slot for slot in range(self.slots) if self.active[slot] and self.sources[slot]]
        if not rows:
            return []
        self._encode(rows)
        events: list[TokenEvent] = []
        index = torch.tensor(rows)
        ready = self._read_on(index, events)
        if len(ready):
            self._write(ready, events)
        return events

    def _read_on(self, rows: Tensor, events: list[TokenEvent]) -> Tensor:
        """Let rows READ until they may WRITE or have no more input; the rows that may."""
        arrived = self._arrived(rows)
        while True:
            ready = self._may_write(rows)
            hungry = ~ready & (self.standing.read[rows] < arrived)
            if not hungry.any():
                return rows[ready]
            self._read(rows[hungry], events)

    def _may_write(self, rows: Tensor) -> Tensor:
        standing = _select(self.standing, rows)
        within = standing.written < length_limit(standing.read)
        due = (standing.read > 0) & (standing.read >= self.least[rows]) & within
        return standing.complete | (due & self.system.ready(standing))

    def _read(self, rows: Tensor, events: list[TokenEvent]) -> None:
        """One more source token each."""
        standing = self.standing
        before = standing.source_info[rows]
        standing.read[rows] += 1
        read = standing.read[rows]
        standing.source_info[rows] = self.received[rows, read]
        infos = (standing.source_info[rows] - before).tolist()
        for slot, count, info in zip(rows.tolist(), read.tolist(), infos, strict=True):
            done = self.fed[slot] and count == len(self.sources[slot])
            standing.complete[slot] = done
            events.append(self._event(slot, READ, self.sources[slot][count - 1], info))

    def _event(
        self, slot: int, kind: str, token: int, info: float, last: bool = False
    ) -> TokenEvent:
        standing = self.standing
        return TokenEvent(
            slot, kind, token, info, int(standing.read[slot]), int(standing.written[slot]),
            float(standing.source_info[slot]), float(standing.target_info[slot]), last,
        )  # fmt: skip

    # Encoding

    def _encode(self, rows: Sequence[int]) -> None:
        """Bring the caches up to what has arrived, in as few passes as the budget allows."""
        waiting = [slot for slot in rows if self._to_encode(slot)]
        waiting.sort(key=lambda slot: -self._to_encode(slot))
        while waiting:
            size = max(1, ENCODE_AT_ONCE // self._to_encode(waiting[0]))
            group = sorted(waiting[:size])
            if self.causal:
                self._encode_next(group)
            else:
                self._encode_whole(group)
            waiting = waiting[size:]

    def _to_encode(self, slot: int) -> int:
        """Source tokens that wait to be encoded; with a bidirectional encoder all or none."""
        if not self.causal and not self.fed[slot]:
            return 0
        return len(self.sources[slot]) - self.encoded[slot]

    def _encode_next(self, group: list[int]) -> None:
        tokens, at = self._pending(group)
        rows = Rows.of(group, self.model.device)
        source = self.model.embed_source(tokens, at)
        place = CachePosition(rows, at, self._longest(group) + 1)
        self._store(group, rows, at, self.model.extend(source, self.encoder, place))

    def _encode_whole(self, group: list[int]) -> None:
        tokens, at = self._pending(group)
        rows = Rows.of(group, self.model.device)
        lengths = torch.tensor([len(self.sources[slot]) for slot in group])
        positions = torch.arange(tokens.shape[1], device=at.device).expand(at.shape)
        source = self.model.embed_source(tokens, positions)
        self._store(group, rows, at, self.model.encode(source, lengths.to(at.device)))

    def _longest(self, group: list[int]) -> int:
        return max(len(self.sources[slot]) for slot in group)

    def _pending(self, group: list[int]) -> tuple[Tensor, Tensor]:
        """Tokens to be encoded and their positions: [R, T] each.

        Padding goes behind the longest source, where nothing is yet and nobody looks.
        """
        spare = self._longest(group)
        width = max(self._to_encode(slot) for slot in group)
        tokens, at = [], []
        for slot in group:
            start, end = self.encoded[slot], len(self.sources[slot])
            padding = width - (end - start)
            tokens.append([*self.sources[slot][start:], *[PAD] * padding])
            at.append([*range(start, end), *[spare] * padding])
        device = self.model.device
        return torch.tensor(tokens, device=device), torch.tensor(at, device=device)

    def _store(self, group: list[int], rows: Rows, at: Tensor, encoded: Encoded) -> None:
        for cache, memory in zip(self.memory, encoded.memories, strict=True):
            cache.put(memory.keys, memory.values, rows, at)
        if encoded.info is not None:
            self.source_info[rows.index[:, None], at] = encoded.info.to(self.source_info.dtype)
            for slot, info in zip(group, encoded.info.double().cpu(), strict=True):
                self._receive(slot, self.encoded[slot], info)
        for slot in group:
            self.encoded[slot] = len(self.sources[slot])

    def _receive(self, slot: int, start: int, info: Tensor) -> None:
        """Add the info of the source tokens from `start` on to the running totals."""
        end = len(self.sources[slot])
        sums = info[: end - start].cumsum(0) + self.received[slot, start]
        self.received[slot, start + 1 : end + 1] = sums

    # Writing

    def _write(self, rows: Tensor, events: list[TokenEvent]) -> None:
        """Compute the next token of all rows in one pass; keep those that are accepted."""
        standing = _select(self.standing, rows)
        step, infos = self._step(rows, standing)
        tokens = step.tokens.cpu()
        accepted = standing.complete | self.system.accept(standing, step).cpu()
        if self.guard:
            accepted &= standing.complete | (tokens != EOS)
        kept = rows[accepted]
        self.standing.written[kept] += 1
        self.standing.target_info[kept] += infos[accepted]
        self.inputs[kept] = tokens[accepted]
        self._keep_states(kept, accepted, step)
        full = standing.complete & (standing.written + 1 >= length_limit(standing.read))
        for row in accepted.nonzero().flatten().tolist():
            slot, token = int(rows[row]), int(tokens[row])
            last = token == EOS or bool(full[row])
            self.active[slot] = not last
            self.targets[slot].append(token)
            events.append(self._event(slot, WRITE, token, float(infos[row]), last))
        self._read_after_refusal(rows[~accepted], events)

    def _keep_states(self, kept: Tensor, accepted: Tensor, step: Step) -> None:
        """Carry on what the cross-attention of accepted rows found."""
        if not self.states:
            return
        kept, accepted = kept.to(self.model.device), accepted.to(self.model.device)
        for state, aside in zip(self.states, step.extras, strict=True):
            assert aside is not None and aside.state is not None
            state[kept] = aside.state[accepted, :, -1].to(state.dtype)

    def _read_after_refusal(self, rows: Tensor, events: list[TokenEvent]) -> None:
        """A refused row reads on at once, so that a slot without events is one that must wait."""
        self.least[rows] = self.standing.read[rows] + 1
        more = self.standing.read[rows] < self._arrived(rows)
        if more.any():
            self._read(rows[more], events)

    def _arrived(self, rows: Tensor) -> Tensor:
        return torch.tensor([len(self.sources[slot]) for slot in rows.tolist()], dtype=torch.long)

    def _step(self, rows: Tensor, standing: PolicyState) -> tuple[Step, Tensor]:
        """The best next token of every row, and the info it would have (float64, on the host)."""
        model, device = self.model, self.model.device
        some = Rows.of(rows.tolist(), device)
        inputs, at, last = self._inputs(rows, standing)
        seen = int(standing.read.max())
        encoded = Encoded(
            [Memory(*cache.view(some, seen)) for cache in self.memory],
            some.take(self.source_info[:, :seen]) if self.has_info else None,
        )
        place = CachePosition(some, at.to(device), int(at.max()) + 1)
        target = model.embed_target(inputs.to(device), place.at)
        visible, read = self._seen(standing, at.shape[1])
        k = standing.k.to(device, torch.float32)
        carried = [some.take(state) for state in self.states]
        decoded = model.step(target, encoded, visible, self.decoder, place, k, read, carried)
        states = decoded.states[:, 0]
        if any(last):
            states = decoded.states[range(len(rows)), last]
        logits = model.logits(states)
        logits[:, [PAD, BOS]] = -torch.inf
        tokens = logits.argmax(-1)
        step = Step(tokens, logits, decoded.extras, model.write_logits(states))
        return step, self._info(tokens, standing.written[:, None].to(device) + 1)

    def _inputs(self, rows: Tensor, standing: PolicyState) -> tuple[Tensor, Tensor, list[int]]:
        """What the decoder is fed, and where: [R, T] each; and which of it is each row's last.

        That is the last token alone, for the caches hold the others; but all that was written where
        a system wants it to see a prefix that has grown. Padding goes behind the longest target.
        """
        if not self.system.fresh_past:
            return self.inputs[rows][:, None], standing.written[:, None], [0] * len(rows)
        pieces = []
        for slot, read in zip(rows.tolist(), standing.read.tolist(), strict=True):
            tokens = [BOS, *self.targets[slot]]
            start = len(tokens) - 1 if self.over[slot] == read else 0
            self.over[slot] = read
            pieces.append((start, tokens[start:]))
        spare = int(standing.written.max()) + 1
        width = max(len(tokens) for _, tokens in pieces)
        inputs, at = [], []
        for start, tokens in pieces:
            padding = width - len(tokens)
            inputs.append([*tokens, *[PAD] * padding])
            at.append([*range(start, start + len(tokens)), *[spare] * padding])
        return torch.tensor(inputs), torch.tensor(at), [len(tokens) - 1 for _, tokens in pieces]

    def _seen(self, standing: PolicyState, count: int) -> tuple[Tensor, Tensor | None]:
        """What `count` positions of every row see of the source, [R, T] or [R, H, T].

        Where heads differ, also what has been read, [R, T].
        """
        read, written, k = standing.read[:, None], standing.written[:, None], standing.k[:, None]
        visible = self.system.visible(read, written, k, self.model.config.heads)
        by_head = visible.dim() == 3
        device = self.model.device
        visible = visible.expand(*visible.shape[:-1], count)
        return visible.to(device), read.to(device) if by_head else None

    def _info(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Info of target tokens [R] at positions [R, 1], on the host."""
        if not self.has_info:
            return torch.zeros(len(tokens), dtype=torch.float64)
        info = self.model.embed_target(tokens[:, None], at).info
        assert info is not None
        return info[:, 0].cpu().double()


def _blank_standing(rows: int) -> PolicyState:
    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, dtype=dtype)

    return PolicyState(
        k=zeros(torch.float64),
        read=zeros(torch.long),
        written=zeros(torch.long),
        complete=zeros(torch.bool),
        source_info=zeros(torch.float64),
        target_info=zeros(torch.float64),
    )


def _select(standing: PolicyState, rows: Tensor) -> PolicyState:
    return PolicyState(**{f.name: getattr(standing, f.name)[rows] for f in fields(PolicyState)})

"""The backend that calls a model layer by layer: every model and system, on any device.

A model in torch computes with tensors, one of integers with NumPy's arrays. Both have the same
methods; `given` and `shown` lead from arrays to a model's own numbers and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from waitinfo.model import Network
from waitinfo.model.views import AttentionReport, CachePosition, Decoded, Embedded, Encoded, Memory
from waitinfo.streaming.engine.backend import PASS_TOKENS, Candidates, HostBackend, Rules
from waitinfo.streaming.engine.slots import Chosen, Numbers, Slots, target_positions
from waitinfo.systems.base import System
from waitinfo.systems.interface import PolicyState, Step, ask, two_best
from waitinfo.text.special import BOS, EOS, PAD

Own = Any  # numbers of the model: a tensor, or an array


class PlainBackend(HostBackend):
    """One cache row for each slot.

    A causal encoder takes tokens as they arrive. A bidirectional one encodes the whole source at
    once; for a system that does not wait for it, it encodes what was read, as if the source ended
    there, once for each prefix that a token is computed from, for all streams together. What was
    written is then computed again too. So a stream's next token is always the one of a sentence
    that consists of what was read, after what was written.

    The decoder's next input is embedded when its token is chosen, since its info is needed then.
    """

    def __init__(self, model: Network, system: System, slots: Slots, rules: Rules) -> None:
        super().__init__(model, system, slots, rules)
        self.name = self.model.numbers
        # Padding of a shared pass is stored in one position more than a source or target can use.
        width, length = slots.capacity + 1, target_positions(slots.capacity) + 1
        self.source_positions = self.model.position_table(width)
        self.target_positions = self.model.position_table(length)
        # Rows behind those of the slots hold the shorter prefix of `Step.before`.
        self.rows = slots.count * (1 + (self.rereads and "before" in system.asks))
        self.info = self.model.given(np.ones((self.rows, width)))
        self.states = self.model.new_states(slots.count)  # of cross-attention, after the last token
        self.first = self._embed(np.array([[BOS]]), np.zeros((1, 1), np.int64))
        every = [0] * slots.count
        self.next_x: Own = self.first.x[0][every]
        self.next_info: Own = None if self.first.info is None else self.first.info[0][every]
        # Source tokens that the last step saw, where each step computes the target again.
        self._seen = np.zeros(self.rows, np.int64)
        # The prefix that a row has encoded, with the end that was added, for a rereading system.
        self._prefix, self._ends = np.zeros((2, self.rows), np.int64)
        self._new_caches(width, length)

    def _new_caches(self, source: int, target: int) -> None:
        model, count = self.model, self.rows
        layers = model.config.encoder_layers if self.causal else 0
        self.source_caches: Any = model.new_caches(layers, count, source)
        self.memory: Any = model.new_memories(count, source)
        self.target_caches: Any = model.new_target_caches(count, target)

    @property
    def nbytes(self) -> int:
        return sum(c.nbytes for c in (self.source_caches, self.memory, self.target_caches))

    def take_memory(self) -> None:
        for caches in (self.source_caches, self.memory, self.target_caches):
            caches.take(self.rows)

    def release(self, slot: int) -> None:
        rows = range(slot, self.rows, self.slots.count)
        if slot in self.slots.failed:  # a stored NaN would spread even from masked positions
            for caches in (self.source_caches, self.memory, self.target_caches):
                for row in rows:
                    caches.erase(row)
            self.info[rows] = 1
        for state in self.states:
            state[slot] = 0
        self.next_x[slot] = self.first.x[0, 0]
        if self.next_info is not None:
            self.next_info[slot] = 1
        self._seen[rows] = self._prefix[rows] = 0

    def _embed(self, tokens: Numbers, at: Numbers) -> Embedded:
        given = self.model.given
        with self.model.computing():
            found: Embedded = self.model.embed_target(
                given(tokens), given(at), self.target_positions
            )
        return found

    # Source

    def _encode(self, group: list[int], starts: list[int], ends: list[int]) -> list[int]:
        model, sources = self.model, self.slots.sources
        spans = zip(group, starts, ends, strict=True)
        tokens, at = self._block([sources[s, a:b] for s, a, b in spans], starts)
        rows = model.rows(group)
        with model.computing():
            if self.causal:
                source = self._embed_source(tokens, at)
                place = CachePosition(rows, source.at, max(ends) + 1)
                encoded = model.extend(source, self.source_caches, place)
            else:
                encoded = self._encode_whole(tokens, np.array(ends))
            self._remember(group, ends, rows, at, encoded)
            if encoded.info is not None:
                self._receive(group, starts, ends, model.shown(encoded.info).astype(np.float64))
            finite = model.finite(encoded.memories[0].values)
        return [slot for slot, good in zip(group, finite, strict=True) if not good]

    def _embed_source(self, tokens: Numbers, at: Numbers) -> Embedded:
        model = self.model
        found: Embedded = model.embed_source(
            model.given(tokens), model.given(at), self.source_positions
        )
        return found

    def _encode_whole(self, tokens: Numbers, lengths: Numbers) -> Encoded:
        places = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape).copy()
        source = self._embed_source(tokens, places)
        found: Encoded = self.model.encode(source, self.model.given(lengths))
        return found

    def _reread(self, slots: Chosen, rows: Chosen, read: Numbers) -> None:
        """Encode what these slots have read into these rows, where it is not what they hold."""
        old = self._prefix[rows] != read
        order = np.flatnonzero(old)[(-read[old]).argsort(kind="stable")]
        while len(order):
            size = max(1, PASS_TOKENS // int(read[order[0]] + 1))
            some, order = np.sort(order[:size]), order[size:]
            counts = read[some].tolist()
            prefixes = [self._sentence(s, n) for s, n in zip(slots[some], counts, strict=True)]
            self._encode_sentences(rows[some].tolist(), prefixes)
            self._prefix[rows[some]] = read[some]
            self._ends[rows[some]] = list(map(len, prefixes))
            self._seen[rows[some]] = 0

    def _encode_sentences(self, group: list[int], sentences: Sequence[Numbers]) -> list[int]:
        """Encode whole sources into these rows; those whose encoding is not finite, if known."""
        tokens, at = self._block(sentences, [0] * len(group))
        ends = np.array(list(map(len, sentences)))
        encoded = self._encode_whole(tokens, ends)
        self._remember(group, ends.tolist(), self.model.rows(group), at, encoded)
        return []

    def _sentence(self, slot: int, read: int) -> Numbers:
        """What a slot has read, as a sentence of its own."""
        tokens = self.slots.sources[slot, :read]
        return tokens if tokens[-1] == EOS else np.append(tokens, EOS)

    def _block(self, parts: Sequence[Numbers], starts: list[int]) -> tuple[Numbers, Numbers]:
        """Tokens to encode and their positions: [R, T] each.

        Padding is stored behind the longest source, in an unused position that is always masked.
        """
        unused = max(start + len(part) for part, start in zip(parts, starts, strict=True))
        shape = len(parts), max(map(len, parts))
        tokens, at = np.full(shape, PAD), np.full(shape, unused)
        for row, (part, start) in enumerate(zip(parts, starts, strict=True)):
            tokens[row, : len(part)] = part
            at[row, : len(part)] = range(start, start + len(part))
        return tokens, at

    def _remember(
        self, group: list[int], ends: list[int], rows: Own, at: Numbers, encoded: Encoded
    ) -> None:
        """Store the keys and values of cross-attention, and info."""
        places = self.model.given(at)
        for cache, memory in zip(self.memory, encoded.memories, strict=True):
            cache.put(memory.keys, memory.values, rows, places)
        if encoded.info is not None:
            self.info[rows.index[:, None], places] = self.model.exact(encoded.info)

    def _receive(
        self, group: list[int], starts: list[int], ends: list[int], infos: Numbers
    ) -> None:
        if infos.shape[1] == 1:
            self.slots.receive_each(np.array(group), np.array(starts), infos[:, 0])
            return
        for slot, start, end, info in zip(group, starts, ends, infos, strict=True):
            self.slots.receive(slot, start, info[: end - start])

    def _view(self, rows: Own, length: int) -> Encoded:
        """The first `length` encoded positions of some rows."""
        memories = [Memory(*cache.view(rows, length)) for cache in self.memory]
        has_info = self.model.source_info is not None
        return Encoded(memories, rows.take(self.info[:, :length]) if has_info else None)

    # Target

    def _compute(
        self, rows: Chosen, state: PolicyState, forced: Numbers | None, before: Numbers | None
    ) -> Candidates:
        model, asks = self.model, self.system.asks
        with model.computing():
            decoded, states, last = self._decode(rows, rows, state)
            logits = model.logits(states)
            tokens, finite = model.best(logits)
            every = {"logits": logits, "states": states, "before": before}
            asked = {name: value for name, value in every.items() if name in asks}
            if "two_best" in asks:
                asked["two_best"] = two_best(logits)
            if "attention" in asks:
                asked["attention"] = decoded.attention(last)
            write = model.write_logits(states)
        if forced is not None:
            tokens = np.where(forced > 0, forced, tokens)
        step = Step(tokens, decoded.extras, write, asked)
        embedded = self._embed(tokens[:, None], state.written[:, None] + 1)  # type: ignore[arg-type]
        infos = [0.0] * len(rows) if embedded.info is None else embedded.info[:, 0].tolist()
        return Candidates(tokens.tolist(), infos, finite.tolist(), step, embedded)

    def _predict(self, rows: Chosen, state: PolicyState) -> Numbers:
        others = rows + self.slots.count if self.rereads else rows
        with self.model.computing():
            _, states, _ = self._decode(rows, others, state)
            found: Numbers = self.model.best(self.model.logits(states))[0]
        return found

    def _decode(
        self, slots: Chosen, rows: Chosen, policy: PolicyState
    ) -> tuple[Decoded, Own, list[int] | None]:
        """One step of some slots, in these rows of the caches.

        Also the states [R, d] of the last position of each, and which one that is of several.
        """
        model = self.model
        read: Any = policy.read
        written: Any = policy.written
        if self.rereads:
            self._reread(slots, rows, read)
            read = self._ends[rows]
        some = model.rows(rows.tolist())
        target, last = self._inputs(slots, rows, some, read, written)
        encoded = self._view(some, int(read.max()))
        place = CachePosition(some, target.at, int(written.max()) + 1 + bool(last))
        visible, seen = self._visible(read, written, policy.k, np.shape(target.at)[1])
        carried = [some.take(state) for state in self.states]
        decoded = model.step(
            target, encoded, visible, self.target_caches, place, model.given(policy.k), seen,
            carried, weigh="attention" in self.system.asks,
        )  # fmt: skip
        states: Own = decoded.states
        return decoded, states[range(len(rows)), last] if last else states[:, 0], last

    def _keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        assert found.step is not None
        rows, chosen = list(slots), list(numbers)
        with self.model.computing():
            self.next_x[rows] = found.embedded.x[chosen, 0]
            if self.next_info is not None:
                self.next_info[rows] = found.embedded.info[chosen, 0]
            for state, report in zip(self.states, _carried(found.step.extras), strict=False):
                state[rows] = self.model.exact(report[chosen, :, -1])

    def _inputs(
        self, slots: Chosen, rows: Chosen, some: Own, read: Numbers, written: Numbers
    ) -> tuple[Embedded, list[int] | None]:
        """Inputs of the decoder [R, T], and the last one of each row if there are several.

        That is the last token alone, because the caches hold the others; or everything written so
        far where a system recomputes it with a longer source prefix. Padding is stored behind the
        longest target there can be.
        """
        if not self.computes_again:
            info = None if self.next_info is None else some.take(self.next_info)[:, None]
            at = self.model.given(written[:, None])
            return Embedded(some.take(self.next_x)[:, None], info, at), None
        starts = np.where(self._seen[rows] == read, written, 0)
        self._seen[rows] = read
        last = written - starts
        places = starts[:, None] + np.arange(int(last.max()) + 1)
        real = places <= written[:, None]
        before = self.slots.targets[slots[:, None], np.minimum(places, written[:, None]) - 1]
        tokens = np.where(real, np.where(places > 0, before, BOS), PAD).astype(np.int64)
        places = np.where(real, places, len(self.target_positions) - 1)
        return self._embed(tokens, places), last.tolist()

    def _visible(
        self, read: Numbers, written: Numbers, k: Any, count: int
    ) -> tuple[Own, Own | None]:
        """Source tokens that `count` positions of every row see, [R, T] or [R, H, T].

        Where heads differ, also the number of tokens read, [R, T].
        """
        heads = self.model.config.heads
        visible = ask(self.system.visible, read[:, None], written[:, None], k[:, None], heads)
        wide = np.repeat(visible, count, -1) if visible.shape[-1] < count else visible
        by_head = visible.ndim == 3
        return self.model.given(wide), self.model.given(read[:, None]) if by_head else None

    # What is kept

    def rewrite(self, rows: Chosen) -> None:
        """Total the info, set the decoder's next input and fill its caches.

        That is one pass for all slots, each token with as much of the source as it was written
        with. Slots are padded; the next tokens replace the padding, which no earlier position sees.
        """
        slots = self.slots
        rows = rows[slots.written[rows] > 0]
        if not len(rows):
            return
        lengths, width = slots.written[rows], int(slots.written[rows].max())
        at = np.arange(width + 1)
        real = at <= lengths[:, None]
        tokens = np.where(real & (at > 0), slots.targets[rows, : width + 1][:, at - 1], PAD)
        tokens[:, 0] = BOS
        inputs = self._embed(
            tokens.astype(np.int64), np.where(real, at, len(self.target_positions) - 1)
        )
        index, every, last = rows.tolist(), range(len(rows)), lengths.tolist()
        with self.model.computing():
            self.next_x[index] = inputs.x[every, last]
            if inputs.info is not None:
                infos = self.model.shown(inputs.info).astype(np.float64)
                slots.target_info[rows] = (infos * (real & (at > 0))).sum(-1)
                self.next_info[index] = inputs.info[every, last]
            if self.computes_again:
                return  # it computes what was written at every step
            path = np.where(real[:, 1:], slots.paths[rows, :width], 1).astype(np.int64)
            heads, k = self.model.config.heads, slots.k[rows][:, None]
            places = np.broadcast_to(at[:-1], path.shape).copy()
            visible = ask(self.system.visible, path, places, k, heads)
            self._fill(rows, inputs, path, visible, lengths - 1)

    def _fill(
        self, slots: Chosen, inputs: Embedded, path: Numbers, visible: Numbers, last: Numbers
    ) -> None:
        """Decode the inputs [R, T + 1] but the last; of each row, `last` is the last real one."""
        model = self.model
        rows, width = model.rows(slots.tolist()), path.shape[1]
        info = None if inputs.info is None else inputs.info[:, :-1]
        decoded = model.step(
            Embedded(inputs.x[:, :-1], info, inputs.at[:, :-1]),
            self._view(rows, int(path.max())),
            model.given(visible),
            self.target_caches,
            CachePosition(rows, inputs.at[:, :-1], width),
            model.given(self.slots.k[slots]),
            model.given(path) if visible.ndim == 3 else None,
            [rows.take(state) for state in self.states],
        )
        for state, report in zip(self.states, _carried(decoded.extras), strict=False):
            state[slots.tolist()] = model.exact(report[range(len(slots)), :, last.tolist()])


def _carried(extras: list[AttentionReport | None]) -> list[Own]:
    """The states [R, H, T] that each layer's cross-attention carries on, if it has one."""
    return [report.state for report in extras if report is not None and report.state is not None]

"""The backend that computes with compiled code: models with integers, on a CPU.

What NumPy has to embed, because the kernels cannot compute its info, is handed to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from waitinfo.model import Network
from waitinfo.model.integers.cache import ArrayRows
from waitinfo.model.integers.info import consistency
from waitinfo.model.native import NativeReading, NativeWriting, Side
from waitinfo.model.views import Embedded, Encoded
from waitinfo.streaming.engine.backend import Candidates, Rules
from waitinfo.streaming.engine.plain import PlainBackend
from waitinfo.streaming.engine.slots import Chosen, Numbers, Slots
from waitinfo.systems.base import System, by_head
from waitinfo.systems.interface import PolicyState, Step
from waitinfo.text.special import BOS


class NativeBackend(PlainBackend):
    """A `PlainBackend` whose passes are calls of compiled code, which need no padding.

    Of a system that rereads, each pass takes all new positions of all rows.
    """

    def __init__(self, network: Network, system: System, slots: Slots, rules: Rules) -> None:
        super().__init__(network, system, slots, rules)
        self.name, model = "native", self.model
        self.embeds = model.native_target is not None
        self.sees_all = type(system).visible is System.visible
        self._compares = self.next_info is not None and model.config.info_cross_attention
        aware = model.config.info_self_attention
        self.reading: NativeReading | None = None
        if self.causal:
            side = Side(
                self.native, model.native_source, self.source_positions, self.source_caches,
                self.memory,
            )  # fmt: skip
            info = (self.info, slots.received) if model.source_info is not None else None
            self.reading = NativeReading(side, info, aware)
        side = Side(
            self.native, model.native_target, self.target_positions, self.target_caches, self.memory
        )
        self.writing = NativeWriting(
            side, self.next_x, self.next_info, (slots.read, slots.written),
            self.info if self._compares else None, aware, "logits" in system.asks,
            "two_best" in system.asks, slots.capacity if "attention" in system.asks else 0,
        )  # fmt: skip

    def _new_caches(self, source: int, target: int) -> None:
        model, count = self.model, self.rows
        native = self.native = model.native
        # Whole sources need keys and values of one layer at a time.
        layers = model.config.encoder_layers if self.causal else int(sees_whole(model))
        self.source_caches = native.new_caches(layers, count, source)
        self.memory = native.new_caches(model.config.decoder_layers, count, source)
        self.target_caches = native.new_target_caches(count, target)

    # Source

    def _encode(self, group: list[int], starts: list[int], ends: list[int]) -> list[int]:
        if self.reading is None and sees_whole(self.model):
            sources = self.slots.sources
            return self._encode_sentences(
                group, [sources[slot, :end] for slot, end in zip(group, ends, strict=True)]
            )
        if self.reading is None:
            return super()._encode(group, starts, ends)
        tokens: list[int] = []
        rows: list[int] = []
        at: list[int] = []
        for slot, start, end in zip(group, starts, ends, strict=True):
            tokens += self.slots.sources[slot, start:end].tolist()
            rows += [slot] * (end - start)
            at += range(start, end)
        embedded = None if self.reading.embeds else self._embed_tokens(tokens, at)
        finite = self.reading(tokens, rows, at, embedded)
        if all(finite):
            return []
        return sorted({slot for slot, good in zip(rows, finite, strict=True) if not good})

    def _embed_tokens(
        self, tokens: Sequence[int] | Numbers, at: Sequence[int] | Numbers
    ) -> tuple[Numbers, Numbers | None]:
        """[N, d] and [N]."""
        with self.model.computing():
            source = self._embed_source(np.array([tokens]), np.array([at]))
        x: Any = source.x
        info: Any = source.info
        return x[0], None if info is None else info[0]

    def _encode_sentences(self, group: list[int], sentences: Sequence[Numbers]) -> list[int]:
        lengths = np.array(list(map(len, sentences)), np.int32)
        at = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        x, _ = self._embed_tokens(np.concatenate(sentences), at)
        rows = np.repeat(np.array(group, np.int32), lengths)
        self.native.encode_whole(
            x, rows, at, lengths.repeat(lengths), self.source_caches, self.memory
        )
        bad = ~np.isfinite(x).all(-1)
        return np.unique(rows[bad]).tolist() if bad.any() else []

    def _remember(
        self, group: list[int], ends: list[int], rows: ArrayRows, at: Numbers, encoded: Encoded
    ) -> None:
        """Of whole sources, each from its first position on."""
        joint: Any = encoded.joint
        index = np.repeat(np.array(group, np.int32), ends)
        places = np.concatenate([np.arange(end, dtype=np.int32) for end in ends])
        tokens = np.concatenate([row[:end] for row, end in zip(joint, ends, strict=True)])
        self.native.remember(tokens, index, places, self.memory)
        if encoded.info is not None:
            self.info[rows.index[:, None], at] = encoded.info

    # Target

    def _compute(
        self, rows: Chosen, state: PolicyState, forced: Numbers | None, before: Numbers | None
    ) -> Candidates:
        if self.computes_again:
            return self._compute_again(rows, state, forced, before)
        count = len(rows)
        self.writing(rows, None if self.sees_all else self._visible_now(state))
        arrays = self.writing.arrays
        tokens = arrays["token"][:count]
        if forced is not None:
            tokens = np.where(forced > 0, forced, tokens)
        tokens = tokens.tolist()
        if forced is not None or not self.embeds:
            self._embed_next(tokens, self.slots.written[rows] + 1)
        infos = [0.0] * count
        if self.next_info is not None:
            infos = arrays["embedded_info"][:count].tolist()
        finite = [math.isfinite(value) for value in arrays["value"][:count].tolist()]
        step = self._step(tokens, state, before) if self._decides_after else None
        return Candidates(tokens, infos, finite, step)

    def _compute_again(
        self, rows: Chosen, state: PolicyState, forced: Numbers | None, before: Numbers | None
    ) -> Candidates:
        asks = self.system.asks
        states, shares = self._decode_again(rows, rows, state)
        best, value, scored, two = self.native.best(states, "logits" in asks, "two_best" in asks)
        tokens: Any = best if forced is None else np.where(forced > 0, forced, best)
        every = {"logits": scored, "two_best": two, "states": states}
        every |= {"attention": shares, "before": before}
        asked: Any = {name: every[name] for name in every if name in asks}
        step = Step(tokens, [], self.model.write_logits(states), asked)
        return Candidates(tokens.tolist(), [0.0] * len(rows), np.isfinite(value).tolist(), step)

    def _decode_again(
        self, slots: Chosen, rows: Chosen, state: PolicyState
    ) -> tuple[Numbers, Numbers | None]:
        """The states [R, d] of the last position of some slots, in these rows of the caches.

        Also the weights of cross-attention [R, L, H, S], if the system asks for them.
        """
        read: Any = state.read
        written: Any = state.written
        seen = read
        if self.rereads:
            self._reread(slots, rows, read)
            seen = self._ends[rows]
        starts = np.where(self._seen[rows] == read, written, 0)
        self._seen[rows] = read
        counts = written - starts + 1
        index, last = np.arange(len(rows)).repeat(counts), counts.cumsum() - 1
        at = np.arange(len(index)) - (last - written)[index]
        tokens = np.where(at > 0, self.slots.targets[slots[index], at - 1], BOS)
        x: Any = self._embed(tokens[None].astype(np.int64), at[None]).x[0]
        seen = self._visible(seen, written, state.k, 1)[0][:, 0]
        shares = self.native.decode_again(
            x, rows[index].astype(np.int32), at.astype(np.int32), seen[index].astype(np.int32),
            self.target_caches, self.memory, "attention" in self.system.asks,
        )  # fmt: skip
        weights = None if shares is None else shares[last] / np.float32(2048)
        return x[last], weights

    def _predict(self, rows: Chosen, state: PolicyState) -> Numbers:
        if self.computes_again:
            others = rows + self.slots.count if self.rereads else rows
            states, _ = self._decode_again(rows, others, state)
            found: Numbers = self.native.best(states, False)[0]
            return found
        self.writing(rows, self._visible_now(state))
        return self.writing.arrays["token"][: len(rows)].copy()

    def _visible_now(self, state: PolicyState) -> Numbers:
        read: Any = state.read
        found: Numbers = self._visible(read, state.written, state.k, 1)[0][:, 0]  # type: ignore[arg-type]
        return found

    def _embed_next(self, tokens: list[int], at: Numbers) -> None:
        """Put other tokens than the best in the place of the next inputs."""
        arrays, count = self.writing.arrays, len(tokens)
        embedded = self._embed(np.array(tokens)[:, None], at[:, None])
        arrays["embedded_x"][:count] = embedded.x[:, 0]
        if embedded.info is not None:
            arrays["embedded_info"][:count] = embedded.info[:, 0]

    def _step(self, tokens: list[int], state: PolicyState, before: Numbers | None) -> Step:
        arrays, count, asks = self.writing.arrays, len(tokens), self.system.asks
        asked: dict[str, Any] = {}
        for name, array in (("logits", "scored"), ("two_best", "two"), ("states", "x")):
            if name in asks:
                asked[name] = arrays[array][:count]
        if "attention" in asks:
            seen = int(state.read.max())
            asked["attention"] = arrays["shares"][:count, ..., :seen] / np.float32(2048)
        if before is not None:
            asked["before"] = before
        chosen: Any = np.array(tokens)
        return Step(chosen, [], self.model.write_logits(arrays["x"][:count]), asked)

    def _keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        if self.computes_again:
            return  # it embeds what was written at every step
        arrays = self.writing.arrays
        for slot, number in zip(slots, numbers, strict=True):
            self.next_x[slot] = arrays["embedded_x"][number]
            if self.next_info is not None:
                self.next_info[slot] = arrays["embedded_info"][number]

    def _fill(
        self, slots: Chosen, inputs: Embedded, path: Numbers, visible: Numbers, last: Numbers
    ) -> None:
        """Position by position."""
        for place in range(path.shape[1]):
            some = np.flatnonzero(last >= place)
            x: Any = inputs.x
            info: Any = None if inputs.info is None else inputs.info[some, place]  # type: ignore[index]
            self._fill_place(slots[some], place, x[some, place], info, visible[some, place])

    def _fill_place(
        self, rows: Chosen, place: int, x: Numbers, info: Numbers | None, seen: Numbers
    ) -> None:
        """Put inputs [R, d] at one position of the caches; each sees `seen` [R] source tokens."""
        at, bias = np.full(len(rows), place, np.int32), None
        if self._compares and info is not None:
            theirs = self.info[rows, : int(seen.max())]
            bias = consistency(theirs, info[:, None]).reshape(theirs.shape)
        aware = info if self.model.config.info_self_attention else None
        self.native.decode(
            np.ascontiguousarray(x), rows.astype(np.int32), at, seen.astype(np.int32), aware, bias,
            self.target_caches, self.memory,
        )  # fmt: skip


def compiled(model: Network, system: System) -> bool:
    """Whether there is compiled code for a model that a system can use.

    Heads that see different prefixes, and targets with info that are computed again, are left to
    NumPy.
    """
    again = system.computes_again(model.config) and not sees_whole(model)
    native = getattr(model, "native", None)
    return native is not None and not (by_head(model, system) or again)


def sees_whole(model: Any) -> bool:
    """Whether its encoder needs whole sources, and neither side has info."""
    return (
        model.config.encoder != "causal" and model.source_info is None and model.target_info is None
    )

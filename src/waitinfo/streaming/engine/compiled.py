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


class NativeBackend(PlainBackend):
    """A `PlainBackend` whose passes are calls of compiled code, which need no padding."""

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
            slots.capacity if "attention" in system.asks else 0,
        )  # fmt: skip

    def _new_caches(self, source: int, target: int) -> None:
        model, count = self.model, self.slots.count
        native = self.native = model.native
        layers = model.config.encoder_layers if self.causal else 0
        self.source_caches = native.new_caches(layers, count, source)
        self.memory = native.new_caches(model.config.decoder_layers, count, source)
        self.target_caches = native.new_caches(model.config.decoder_layers, count, target)

    # Source

    def _encode(self, group: list[int], starts: list[int], ends: list[int]) -> list[int]:
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

    def _embed_tokens(self, tokens: list[int], at: list[int]) -> tuple[Numbers, Numbers | None]:
        """[N, d] and [N]."""
        with self.model.computing():
            source = self._embed_source(np.array([tokens]), np.array([at]))
        x: Any = source.x
        info: Any = source.info
        return x[0], None if info is None else info[0]

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

    def _predict(self, rows: Chosen, state: PolicyState) -> Numbers:
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
        for name, array in (("logits", "scored"), ("states", "x")):
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

    Heads that see different prefixes, and targets that are computed again, are left to NumPy.
    """
    again = system.computes_again(model.config)
    native = getattr(model, "native", None)
    return native is not None and not (by_head(model, system) or again)

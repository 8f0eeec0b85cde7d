"""The backend that computes with compiled code: models with integers, on a CPU.

What torch has to embed, because the kernels cannot compute its info, is handed to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.cache import CacheRows
from waitinfo.model.info import consistency
from waitinfo.model.integers.conversion import IntegerTransformer, native_model
from waitinfo.model.native import NativeReading, NativeWriting, Side
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import Embedded, Encoded
from waitinfo.streaming.engine.backend import Candidates, Rules
from waitinfo.streaming.engine.plain import TorchBackend
from waitinfo.streaming.engine.slots import Chosen, Numbers, Slots
from waitinfo.systems.base import System, by_head
from waitinfo.systems.interface import PolicyState, Step


class NativeBackend(TorchBackend):
    """A `TorchBackend` whose passes are calls of compiled code, which need no padding."""

    name = "native"

    def __init__(self, model: Transformer, system: System, slots: Slots, rules: Rules) -> None:
        assert isinstance(model, IntegerTransformer)
        super().__init__(model, system, slots, rules)
        self.embeds = model.native_target is not None
        self.sees_all = type(system).visible is System.visible
        self._next_x = self.next_x.numpy()
        self._next_info = None if self.next_info is None else self.next_info.numpy()
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
        assert isinstance(model, IntegerTransformer) and model.native is not None
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
        embedded = None if self.reading.embeds else self._embed_source(tokens, at)
        finite = self.reading(tokens, rows, at, embedded)
        if all(finite):
            return []
        return sorted({slot for slot, good in zip(rows, finite, strict=True) if not good})

    @torch.inference_mode()
    def _embed_source(self, tokens: list[int], at: list[int]) -> tuple[Tensor, Tensor | None]:
        """[N, d] and [N]."""
        places = torch.tensor([at])
        source = self.model.embed_source(torch.tensor([tokens]), places, self.source_positions)
        return source.x[0], None if source.info is None else source.info[0]

    def _remember(
        self, group: list[int], ends: list[int], rows: CacheRows, at: Tensor, encoded: Encoded
    ) -> None:
        """Of whole sources, each from its first position on."""
        assert encoded.joint is not None
        index = np.repeat(np.array(group, np.int32), ends)
        places = np.concatenate([np.arange(end, dtype=np.int32) for end in ends])
        tokens = torch.cat([row[:end] for row, end in zip(encoded.joint, ends, strict=True)])
        self.native.remember(tokens.contiguous().numpy(), index, places, self.memory)

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
        return self._visible(state.tensors(), 1)[0][:, 0].numpy()

    def _embed_next(self, tokens: list[int], at: Numbers) -> None:
        """Put other tokens than the best in the place of the next inputs."""
        arrays, count = self.writing.arrays, len(tokens)
        embedded = self._embed(torch.tensor(tokens)[:, None], torch.from_numpy(at)[:, None])
        arrays["embedded_x"][:count] = embedded.x[:, 0]
        if embedded.info is not None:
            arrays["embedded_info"][:count] = embedded.info[:, 0]

    @torch.inference_mode()
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
        write = self.model.write_logits(torch.from_numpy(arrays["x"][:count]))
        return Step(torch.tensor(tokens), [], write, asked)

    def _keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        arrays = self.writing.arrays
        for slot, number in zip(slots, numbers, strict=True):
            self._next_x[slot] = arrays["embedded_x"][number]
            if self._next_info is not None:
                self._next_info[slot] = arrays["embedded_info"][number]

    def _fill(
        self, slots: Chosen, inputs: Embedded, path: Tensor, visible: Tensor, last: Tensor
    ) -> None:
        """Position by position."""
        for place in range(path.shape[1]):
            some = (last >= place).nonzero()[:, 0]
            info = None if inputs.info is None else inputs.info[some, place]
            self._fill_place(slots[some.numpy()], place, inputs.x[some, place], info, visible[some])

    def _fill_place(
        self, rows: Chosen, place: int, x: Tensor, info: Tensor | None, visible: Tensor
    ) -> None:
        """Put inputs [R, d] at one position of the caches; visible [R, T] of all positions."""
        at, seen = np.full(len(rows), place, np.int32), visible[:, place].numpy()
        bias = None
        if self._compares and info is not None:
            theirs = self.info[rows, : int(seen.max())]
            near = consistency(theirs, info[:, None], exact=True)
            bias = near.reshape(theirs.shape).numpy()
        known: Any = None if info is None else info.numpy()
        aware = known if self.model.config.info_self_attention else None
        self.native.decode(
            x.contiguous().numpy(), rows.astype(np.int32), at, seen.astype(np.int32), aware, bias,
            self.target_caches, self.memory,
        )  # fmt: skip


def compiled(model: Transformer, system: System) -> bool:
    """Whether there is compiled code for a model that a system can use.

    Heads that see different prefixes, and targets that are computed again, are left to torch.
    """
    again = system.computes_again(model.config)
    return native_model(model) is not None and not (by_head(model, system) or again)

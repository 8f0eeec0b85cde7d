"""Computation of the next target token by compiled code."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.info import consistency
from waitinfo.model.integers.conversion import IntegerTransformer
from waitinfo.model.native import NativeCaches, NativeModel, NativeWriting, Side
from waitinfo.model.transformer import Embedded, Transformer
from waitinfo.streaming.engine.encoding import SourceEncoder
from waitinfo.streaming.engine.slots import Numbers, Slots, Standing
from waitinfo.streaming.engine.slots import Rows as Chosen
from waitinfo.streaming.engine.writing import Candidates, TargetWriter
from waitinfo.systems.base import Step, System, by_head


class NativeWriter(TargetWriter):
    """A `TargetWriter` whose steps are calls of compiled code."""

    def __init__(
        self, model: Transformer, system: System, slots: Slots, source: SourceEncoder
    ) -> None:
        super().__init__(model, system, slots, source)
        assert isinstance(model, IntegerTransformer) and source.native is not None
        assert isinstance(self.caches, NativeCaches) and isinstance(source.memory, NativeCaches)
        self.native, self.memory = source.native, source.memory
        self.accepts_all = type(system).accept is System.accept
        self.sees_all = type(system).visible is System.visible
        self._next_x = self.next_x.numpy()
        self._next_info = None if self.next_info is None else self.next_info.numpy()
        self.embeds = model.native_target is not None
        self._compares = self.next_info is not None and model.config.info_cross_attention
        self.writing = NativeWriting(
            Side(self.native, model.native_target, self.positions, self.caches, self.memory),
            self.next_x,
            self.next_info,
            (slots.read, slots.written),
            source.info if self._compares else None,
            model.config.info_self_attention,
            not self.accepts_all,
        )

    def step(self, rows: Chosen, standing: Standing) -> Candidates:
        """The best next token of every row."""
        count, forced = len(rows), self.slots.forced
        self.writing(rows, None if self.sees_all else self._visible_now(standing))
        arrays = self.writing.arrays
        tokens = arrays["token"][:count].tolist()
        if forced:
            tokens = forced.replace(rows, torch.tensor(tokens)).tolist()
        if forced or not self.embeds:
            self._embed_next(tokens, standing.written + 1)
        infos = [0.0] * count
        if self.next_info is not None:
            infos = arrays["embedded_info"][:count].tolist()
        finite = [math.isfinite(value) for value in arrays["value"][:count].tolist()]
        return Candidates(tokens, infos, finite, None if self.accepts_all else self._step(tokens))

    def _visible_now(self, standing: Standing) -> Numbers:
        policy = standing.tensors()
        return self._visible(policy, 1)[0][:, 0].numpy()

    def _embed_next(self, tokens: list[int], at: Numbers) -> None:
        """Put other tokens than the best in the place of the next inputs."""
        arrays, count = self.writing.arrays, len(tokens)
        embedded = self._embed(torch.tensor(tokens)[:, None], torch.from_numpy(at)[:, None])
        arrays["embedded_x"][:count] = embedded.x[:, 0]
        if embedded.info is not None:
            arrays["embedded_info"][:count] = embedded.info[:, 0]

    @torch.inference_mode()
    def _step(self, tokens: list[int]) -> Step:
        arrays, count = self.writing.arrays, len(tokens)
        x, scored = (torch.from_numpy(arrays[name][:count]) for name in ("x", "scored"))
        return Step(torch.tensor(tokens), scored, [], self.model.write_logits(x))

    def keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        """Carry on the state of accepted rows: some slots, and their numbers among the rows."""
        arrays = self.writing.arrays
        for slot, number in zip(slots, numbers, strict=True):
            self._next_x[slot] = arrays["embedded_x"][number]
            if self._next_info is not None:
                self._next_info[slot] = arrays["embedded_info"][number]

    def fill(self, rows: Chosen, place: int, inputs: Embedded, visible: Tensor) -> None:
        """Put inputs [R, d] at one position of the caches; visible [R, T] of all positions."""
        info = None if inputs.info is None else inputs.info.numpy()
        at, seen = np.full(len(rows), place, np.int32), visible[:, place].numpy()
        bias = None
        if self._compares and inputs.info is not None:
            theirs = self.source.info[rows, : int(seen.max())]
            near = consistency(theirs, inputs.info[:, None], exact=True)
            bias = near.reshape(theirs.shape).numpy()
        aware = info if self.model.config.info_self_attention else None
        x, some = inputs.x.contiguous().numpy(), rows.astype(np.int32)
        assert isinstance(self.caches, NativeCaches)
        self.native.decode(
            x, some, at, seen.astype(np.int32), aware, bias, self.caches, self.memory
        )


def native_for(model: Transformer, system: System) -> NativeModel | None:
    """Compiled code for a model, if there is some and the system can use it.

    Heads that see different prefixes, and targets that are computed again, are left to torch.
    """
    if not isinstance(model, IntegerTransformer) or by_head(model, system) or system.fresh_past:
        return None
    return model.native

"""Shifted slots: the kept source and target are computed again, as the beginning of a new source.

The kept source is encoded with what other slots read. The kept target goes through the decoder in
one pass for all shifted slots, each token with as much of the source as it was written with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition
from waitinfo.model.cache import LayerCaches, Rows
from waitinfo.model.transformer import Embedded, Transformer
from waitinfo.streaming.engine.encoding import SourceEncoder
from waitinfo.streaming.engine.native import NativeWriter
from waitinfo.streaming.engine.slots import Slots
from waitinfo.streaming.engine.writing import TargetWriter
from waitinfo.systems.base import System
from waitinfo.text.special import BOS, PAD


class Shifter:
    """Brings shifted slots up to date."""

    def __init__(
        self,
        model: Transformer,
        system: System,
        slots: Slots,
        source: SourceEncoder,
        target: TargetWriter,
    ) -> None:
        self.model, self.system, self.slots = model, system, slots
        self.source, self.target = source, target

    def restore(self, rows: Sequence[int]) -> list[int]:
        """Compute the kept tokens of shifted rows; the rows that can go on in this round."""
        slots = self.slots
        if not slots.shifted:
            return list(rows)
        waiting = [slot for slot in rows if slot in slots.shifted]
        encoded = [slot for slot in waiting if slots.encoded[slot] >= slots.read[slot]]
        for slot in encoded:
            slots.source_info[slot] = slots.received[slot, slots.read[slot]]
        if written := [slot for slot in encoded if slots.targets[slot]]:
            self._rewrite(written)
        slots.shifted.difference_update(encoded)
        return [slot for slot in rows if slot not in slots.shifted]

    @torch.inference_mode()
    def _rewrite(self, rows: list[int]) -> None:
        """Total the info, fill the decoder's caches and set its next input."""
        slots = self.slots
        targets = [slots.targets[slot] for slot in rows]
        width = max(map(len, targets))
        tokens = torch.tensor([[BOS, *t, *[PAD] * (width - len(t))] for t in targets])
        lengths = torch.tensor([len(target) for target in targets])
        at = torch.arange(width + 1).expand(tokens.shape)
        inputs = self.target._embed(tokens, at)
        index, every = torch.tensor(rows), torch.arange(len(rows))
        self.target.next_x[index] = inputs.x[every, lengths]
        if inputs.info is not None:
            real = (at > 0) & (at <= lengths[:, None])
            slots.target_info[rows] = (inputs.info.double().cpu() * real).sum(-1).numpy()
            assert self.target.next_info is not None
            self.target.next_info[index] = inputs.info[every, lengths]
        if self.system.fresh_past:
            return  # it computes what was written at every step
        path = [slots.paths[s] + [1] * (width - len(slots.paths[s])) for s in rows]
        k = torch.from_numpy(slots.k[rows])
        heads = self.model.config.heads
        visible = self.system.visible(torch.tensor(path), at[:, :-1], k[:, None], heads)
        if isinstance(self.target, NativeWriter):
            for place in range(width):
                going = [row for row in range(len(rows)) if place < lengths[row]]
                self.target.fill(
                    np.array(rows)[going], place, _column(inputs, going, place), visible[going]
                )
            return
        self._fill(rows, inputs, torch.tensor(path), visible, lengths - 1)

    def _fill(
        self, rows: list[int], inputs: Embedded, path: Tensor, visible: Tensor, last: Tensor
    ) -> None:
        """Fill the caches in one pass. What follows a target is padding.

        The next tokens replace the padding, which no earlier position sees.
        """
        device, caches = self.model.device, self.target.caches
        assert isinstance(caches, LayerCaches)
        some, width = Rows.of(rows, device), path.shape[1]
        info = None if inputs.info is None else inputs.info[:, :-1]
        decoded = self.model.step(
            Embedded(inputs.x[:, :-1], info, inputs.at[:, :-1]),
            self.source.view(some, int(path.max())),
            visible.to(device),
            caches,
            CachePosition(some, inputs.at[:, :-1], width),
            torch.from_numpy(self.slots.k[rows]).to(device, torch.float32),
            path.to(device) if visible.dim() == 3 else None,
            [some.take(state) for state in self.target.states],
        )
        for state, report in zip(self.target.states, decoded.extras, strict=False):
            assert report is not None and report.state is not None
            index = last.to(device)[:, None, None].expand(-1, state.shape[1], 1)
            state[some.index] = report.state.gather(-1, index)[..., 0].to(state.dtype)


def _column(inputs: Embedded, rows: list[int], place: int) -> Embedded:
    """One position of some rows: [R, d]."""
    info = None if inputs.info is None else inputs.info[rows, place]
    return Embedded(inputs.x[rows, place], info, inputs.at[rows, place])

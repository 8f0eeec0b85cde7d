"""Shifted slots: the kept source and target are computed again, as the beginning of a new source.

The kept source is encoded with what other slots read. The kept target goes through the decoder in
one pass for all shifted slots, each token with as much of the source as it was written with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition, CrossAttention
from waitinfo.model.cache import Rows
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.encoding import SourceEncoder
from waitinfo.streaming.engine.slots import Slots
from waitinfo.streaming.engine.writing import TargetWriter
from waitinfo.systems.base import System
from waitinfo.text.special import BOS, EOS, PAD


class Shifter:
    """Brings shifted slots up to date, and aligns what slots have written."""

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

    # The kept tokens

    def restore(self, rows: Sequence[int]) -> list[int]:
        """Compute the kept tokens of shifted rows; the rows that can go on in this round."""
        slots = self.slots
        if not slots.shifted:
            return list(rows)
        waiting = [slot for slot in rows if slot in slots.shifted]
        encoded = [s for s in waiting if slots.encoded[s] >= int(slots.policy.read[s])]
        for slot in encoded:
            read = int(slots.policy.read[slot])
            slots.policy.source_info[slot] = slots.received[slot, read]
        if written := [slot for slot in encoded if slots.targets[slot]]:
            self._rewrite(written)
        slots.shifted.difference_update(encoded)
        return [slot for slot in rows if slot not in slots.shifted]

    def _rewrite(self, rows: list[int]) -> None:
        """Fill the decoder's caches, and total the info."""
        slots, device = self.slots, self.model.device
        targets = [slots.targets[slot] for slot in rows]
        width = max(map(len, targets))
        tokens = torch.tensor([[BOS, *t, *[PAD] * (width - len(t))] for t in targets])
        lengths = torch.tensor([len(target) for target in targets])
        at = torch.arange(width + 1).expand(tokens.shape)
        info = self.model.embed_target(tokens.to(device), at.to(device)).info
        if info is not None:
            real = (at > 0) & (at <= lengths[:, None])
            totals = (info.double().cpu() * real).sum(-1)
            slots.policy.target_info[torch.tensor(rows)] = totals
        if not self.system.fresh_past:  # which computes what was written at every step
            self._fill(rows, tokens[:, :-1], at[:, :-1], lengths)

    def _fill(self, rows: list[int], tokens: Tensor, at: Tensor, lengths: Tensor) -> None:
        """Decoder inputs [R, T] at positions [R, T]; what follows the target is padding.

        The next tokens replace the padding, which no earlier position sees.
        """
        slots, model, device = self.slots, self.model, self.model.device
        read = [slots.paths[s] + [1] * (at.shape[1] - len(slots.paths[s])) for s in rows]
        k = slots.policy.k[torch.tensor(rows)]
        path = torch.tensor(read)
        visible = self.system.visible(path, at, k[:, None], model.config.heads).to(device)
        some = Rows.of(rows, device)
        place = CachePosition(some, at.to(device), at.shape[1])
        decoded = model.step(
            model.embed_target(tokens.to(device), place.at),
            self.source.view(some, int(path.max())),
            visible,
            self.target.caches,
            place,
            k.to(device, torch.float32),
            path.to(device) if visible.dim() == 3 else None,
            [some.take(state) for state in self.target.states],
        )
        last = (lengths - 1).to(device)
        for state, report in zip(self.target.states, decoded.extras, strict=False):
            assert report is not None and report.state is not None
            index = last[:, None, None].expand(-1, state.shape[1], 1)
            state[some.index] = report.state.gather(-1, index)[..., 0].to(state.dtype)

    # What was written for what

    def alignment(self, slot: int) -> Tensor:
        """[T, S] how much each token written has looked at each source token read.

        By cross-attention; where that is of a special kind, by when each token was written.
        """
        slots = self.slots
        tokens = [token for token in slots.targets[slot] if token != EOS]
        path, read = slots.paths[slot][: len(tokens)], int(slots.policy.read[slot])
        if type(self.model._crosses()[0]) is not CrossAttention:
            return by_path(path, read)
        device = self.model.device
        target = self.model.embed_target(torch.tensor([[BOS, *tokens[:-1]]], device=device))
        encoded = self.source.view(Rows.of([slot], device), read)
        visible = torch.tensor([path], device=device)
        return self.model.alignment(target, encoded, visible)[0].double().cpu()


def by_path(path: Sequence[int], read: int) -> Tensor:
    """[T, S] each token on the source token that it would follow without the initial wait."""
    found = torch.zeros(len(path), read, dtype=torch.float64)
    for row, seen in enumerate(path):
        found[row, max(0, seen - path[0])] = 1
    return found

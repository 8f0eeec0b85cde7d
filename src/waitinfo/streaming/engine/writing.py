"""Computation of the next target token, in one pass for all slots that may write."""

from __future__ import annotations

import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition
from waitinfo.model.cache import Rows
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.encoding import SourceEncoder
from waitinfo.streaming.engine.slots import Slots, length_limit
from waitinfo.systems.base import PolicyState, Step, System
from waitinfo.text.special import BOS, PAD


class TargetWriter:
    """The caches of the target side, and the step that computes the next token of some rows."""

    def __init__(
        self, model: Transformer, system: System, slots: Slots, source: SourceEncoder
    ) -> None:
        self.model, self.system, self.slots, self.source = model, system, slots, source
        positions = int(length_limit(torch.tensor(slots.capacity))) + 1
        self.caches = model.new_caches(model.config.decoder_layers, slots.count, positions)
        self.states = model.new_states(slots.count)  # of cross-attention, after the last token

    def reset(self, slot: int) -> None:
        """Start a new target in a slot."""
        for state in self.states:
            state[slot] = 0

    def clear(self, slot: int) -> None:
        """Remove every number of a slot."""
        for cache in self.caches:
            cache.clear(slot)

    def step(self, rows: Tensor, policy: PolicyState) -> tuple[Step, Tensor]:
        """The best next token of every row, and the info it would have (float64, on the host)."""
        model, device = self.model, self.model.device
        some = Rows.of(rows.tolist(), device)
        inputs, at, last = self._inputs(rows, policy)
        encoded = self.source.view(some, int(policy.read.max()))
        place = CachePosition(some, at.to(device), int(at.max()) + 1)
        target = model.embed_target(inputs.to(device), place.at)
        visible, read = self._visible(policy, at.shape[1])
        k = policy.k.to(device, torch.float32)
        carried = [some.take(state) for state in self.states]
        decoded = model.step(target, encoded, visible, self.caches, place, k, read, carried)
        states = decoded.states[:, 0]
        if any(last):
            states = decoded.states[range(len(rows)), last]
        logits = model.logits(states)
        logits[:, [PAD, BOS]] = -torch.inf
        tokens = logits.argmax(-1)
        if self.slots.forced:
            tokens = self.slots.forced.replace(rows, tokens)
        step = Step(tokens, logits, decoded.extras, model.write_logits(states))
        return step, self._info(tokens, policy.written[:, None].to(device) + 1)

    def keep_states(self, kept: Tensor, accepted: Tensor, step: Step) -> None:
        """Carry on the cross-attention states of accepted rows."""
        if not self.states:
            return
        kept, accepted = kept.to(self.model.device), accepted.to(self.model.device)
        for state, report in zip(self.states, step.extras, strict=True):
            assert report is not None and report.state is not None
            state[kept] = report.state[accepted, :, -1].to(state.dtype)

    def _inputs(self, rows: Tensor, policy: PolicyState) -> tuple[Tensor, Tensor, list[int]]:
        """Inputs of the decoder and their positions, [R, T] each, and the last input of each row.

        That is the last token alone, because the caches hold the others; or everything written so
        far where a system recomputes it with a longer source prefix. Padding is stored behind the
        longest target.
        """
        if not self.system.fresh_past:
            return self.slots.inputs[rows][:, None], policy.written[:, None], [0] * len(rows)
        pieces = []
        for slot, read in zip(rows.tolist(), policy.read.tolist(), strict=True):
            tokens = [BOS, *self.slots.targets[slot]]
            start = len(tokens) - 1 if self.slots.seen[slot] == read else 0
            self.slots.seen[slot] = read
            pieces.append((start, tokens[start:]))
        unused = int(policy.written.max()) + 1
        width = max(len(tokens) for _, tokens in pieces)
        inputs, at = [], []
        for start, tokens in pieces:
            padding = width - len(tokens)
            inputs.append([*tokens, *[PAD] * padding])
            at.append([*range(start, start + len(tokens)), *[unused] * padding])
        return torch.tensor(inputs), torch.tensor(at), [len(tokens) - 1 for _, tokens in pieces]

    def _visible(self, policy: PolicyState, count: int) -> tuple[Tensor, Tensor | None]:
        """Source tokens that `count` positions of every row see, [R, T] or [R, H, T].

        Where heads differ, also the number of tokens read, [R, T].
        """
        read, written, k = policy.read[:, None], policy.written[:, None], policy.k[:, None]
        visible = self.system.visible(read, written, k, self.model.config.heads)
        by_head = visible.dim() == 3
        device = self.model.device
        visible = visible.expand(*visible.shape[:-1], count)
        return visible.to(device), read.to(device) if by_head else None

    def _info(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Info of target tokens [R] at positions [R, 1], on the host."""
        if self.model.target_info is None:
            return torch.zeros(len(tokens), dtype=torch.float64)
        info = self.model.embed_target(tokens[:, None], at).info
        assert info is not None
        return info[:, 0].cpu().double()

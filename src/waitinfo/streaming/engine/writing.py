"""Computation of the next target token, in one pass for all slots that may write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition
from waitinfo.model.cache import LayerCaches, Rows
from waitinfo.model.native import NativeCaches
from waitinfo.model.transformer import Embedded, Transformer
from waitinfo.streaming.engine.encoding import SourceEncoder
from waitinfo.streaming.engine.slots import Numbers, Slots, Standing, length_limit
from waitinfo.streaming.engine.slots import Rows as Chosen
from waitinfo.systems.base import PolicyState, Step, System
from waitinfo.text.special import BOS, PAD


class Candidates(NamedTuple):
    """The best next token of every row, on the host, and what the system may ask about it."""

    tokens: list[int]  # [R]
    infos: list[float]  # [R] the info each would have
    finite: list[bool]  # [R] whether the model computed numbers
    step: Step | None  # None if the system accepts every token
    embedded: Embedded | None = None  # the tokens, as the next input


class TargetWriter:
    """The caches of the target side, and the step that computes the next token of some rows."""

    def __init__(
        self, model: Transformer, system: System, slots: Slots, source: SourceEncoder
    ) -> None:
        self.model, self.system, self.slots, self.source = model, system, slots, source
        positions = length_limit(slots.capacity) + 2
        self.positions = model.position_table(positions)
        self.caches: LayerCaches | NativeCaches
        layers, native = model.config.decoder_layers, source.native
        if native is not None:
            self.caches = native.new_caches(layers, slots.count, positions)
        else:
            self.caches = model.new_caches(layers, slots.count, positions)
        self.states = model.new_states(slots.count)  # of cross-attention, after the last token
        # The decoder's next input: embedded when it was chosen, since its info was needed then.
        self.first = self._embed(torch.tensor([[BOS]]), torch.zeros(1, 1, dtype=torch.long))
        self.next_x = self.first.x[0].repeat(slots.count, 1)
        self.next_info = None if self.first.info is None else self.first.info[0].repeat(slots.count)

    @torch.inference_mode()
    def _embed(self, tokens: Tensor, at: Tensor) -> Embedded:
        device = self.model.device
        return self.model.embed_target(tokens.to(device), at.to(device), self.positions)

    def reset(self, slot: int) -> None:
        """Start a new target in a slot."""
        for state in self.states:
            state[slot] = 0
        self.next_x[slot] = self.first.x[0, 0]
        if self.next_info is not None:
            self.next_info[slot] = 1

    def clear(self, slot: int) -> None:
        """Remove every number of a slot."""
        self.caches.erase(slot)

    @torch.inference_mode()
    def step(self, rows: Chosen, standing: Standing) -> Candidates:
        """The best next token of every row."""
        model, device, policy = self.model, self.model.device, standing.tensors()
        assert isinstance(self.caches, LayerCaches)
        some = Rows.of(rows.tolist(), device)
        target, last = self._inputs(rows, some, policy)
        encoded = self.source.view(some, int(policy.read.max()))
        place = CachePosition(some, target.at, int(policy.written.max()) + 1 + bool(last))
        visible, read = self._visible(policy, target.at.shape[1])
        k = policy.k.to(device, torch.float32)
        carried = [some.take(state) for state in self.states]
        decoded = model.step(target, encoded, visible, self.caches, place, k, read, carried)
        states = decoded.states[range(len(rows)), last] if last else decoded.states[:, 0]
        logits = model.logits(states)
        tokens, finite = best(logits)
        if self.slots.forced:
            tokens = self.slots.forced.replace(rows, tokens)
        step = Step(tokens, logits, decoded.extras, model.write_logits(states))
        embedded = self._embed(tokens[:, None], policy.written[:, None] + 1)
        infos = [0.0] * len(rows) if embedded.info is None else embedded.info[:, 0].tolist()
        return Candidates(tokens.tolist(), infos, finite.tolist(), step, embedded)

    @torch.inference_mode()
    def keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        """Carry on the state of accepted rows: some slots, and their numbers among the rows."""
        assert found.embedded is not None and found.step is not None
        device = self.model.device
        rows, chosen = (torch.tensor(x, dtype=torch.long, device=device) for x in (slots, numbers))
        self.next_x[rows] = found.embedded.x[chosen, 0]
        if self.next_info is not None and found.embedded.info is not None:
            self.next_info[rows] = found.embedded.info[chosen, 0]
        for state, report in zip(self.states, found.step.extras, strict=False):
            assert report is not None and report.state is not None
            state[rows] = report.state[chosen, :, -1].to(state.dtype)

    def _inputs(
        self, rows: Chosen, some: Rows, policy: PolicyState
    ) -> tuple[Embedded, list[int] | None]:
        """Inputs of the decoder [R, T], and the last one of each row if there are several.

        That is the last token alone, because the caches hold the others; or everything written so
        far where a system recomputes it with a longer source prefix. Padding is stored behind the
        longest target.
        """
        if not self.system.fresh_past:
            info = None if self.next_info is None else some.take(self.next_info)[:, None]
            at = policy.written[:, None].to(self.model.device)
            return Embedded(some.take(self.next_x)[:, None], info, at), None
        pieces = []
        for slot, read in zip(rows.tolist(), policy.read.tolist(), strict=True):
            tokens = [BOS, *self.slots.targets[slot]]
            start = len(tokens) - 1 if self.slots.seen[slot] == read else 0
            self.slots.seen[slot] = read
            pieces.append((start, tokens[start:]))
        unused = int(policy.written.max()) + 1
        width = max(len(tokens) for _, tokens in pieces)
        inputs, at_rows = [], []
        for start, tokens in pieces:
            padding = width - len(tokens)
            inputs.append([*tokens, *[PAD] * padding])
            at_rows.append([*range(start, start + len(tokens)), *[unused] * padding])
        embedded = self._embed(torch.tensor(inputs), torch.tensor(at_rows))
        return embedded, [len(tokens) - 1 for _, tokens in pieces]

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


def best(logits: Tensor) -> tuple[Tensor, Numbers]:
    """The best token of every row that may be written, and whether its logit is finite.

    Excludes tokens that are never written from the logits.
    """
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        values = logits.numpy()  # its argmax is many times as fast as torch's
        values[:, [PAD, BOS]] = -np.inf
        tokens = values.argmax(-1)
        return torch.from_numpy(tokens), np.isfinite(values[np.arange(len(values)), tokens])
    logits[:, PAD] = logits[:, BOS] = -torch.inf
    top = logits.max(-1)
    return top.indices, top.values.isfinite().cpu().numpy()

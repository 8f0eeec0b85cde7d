"""Computation of the next target token, in one pass for all slots that may write."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition
from waitinfo.model.cache import LayerCaches, Rows
from waitinfo.model.info import consistency
from waitinfo.model.native import NativeCaches, NativeModel
from waitinfo.model.transformer import Embedded, Transformer
from waitinfo.streaming.engine.encoding import SourceEncoder
from waitinfo.streaming.engine.slots import Numbers, Slots, length_limit
from waitinfo.streaming.engine.slots import Rows as Chosen
from waitinfo.systems.base import PolicyState, Step, System, by_head
from waitinfo.text.special import BOS, PAD


@dataclass(frozen=True)
class Candidates:
    """The best next token of every row, on the host, and what the system may ask about it."""

    tokens: Numbers  # [R]
    infos: Numbers  # [R] float64, the info each would have
    finite: Numbers  # [R] whether the model computed numbers
    step: Step
    embedded: Embedded  # the tokens, as the next input


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
        self.needs_logits = type(system).accept is not System.accept
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

    def step(self, rows: Chosen, policy: PolicyState) -> Candidates:
        """The best next token of every row."""
        model, device = self.model, self.model.device
        if self.source.native is not None:
            return self._step_natively(self.source.native, rows, policy)
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
        return Candidates(tokens.cpu().numpy(), self._infos(embedded), finite, step, embedded)

    def _step_natively(self, native: NativeModel, rows: Chosen, policy: PolicyState) -> Candidates:
        """The same by compiled code."""
        read, k = policy.read[:, None], policy.k[:, None]
        visible = self.system.visible(read, policy.written[:, None], k, self.model.config.heads)
        info = None if self.next_info is None else self.next_info.numpy()[rows]
        at = policy.written.numpy().astype(np.int32)
        x = self.next_x.numpy()[rows]
        self._decode_natively(native, rows, x, info, at, visible[:, 0].numpy())
        tokens, value, logits = native.best(x, self.needs_logits)
        found = torch.from_numpy(tokens)
        if self.slots.forced:
            found = self.slots.forced.replace(rows, found)
        every = torch.empty(0) if logits is None else torch.from_numpy(logits)
        step = Step(found, every, [], self.model.write_logits(torch.from_numpy(x)))
        embedded = self._embed(found[:, None], policy.written[:, None] + 1)
        finite = np.isfinite(value)
        return Candidates(found.numpy(), self._infos(embedded), finite, step, embedded)

    def _decode_natively(
        self,
        native: NativeModel,
        rows: Chosen,
        x: Numbers,
        info: Numbers | None,
        at: Numbers,
        visible: Numbers,
    ) -> None:
        """Decode inputs x [R, d], which become the states, with what is visible [R] to each."""
        config, source = self.model.config, self.source
        bias = None
        if config.info_cross_attention and info is not None:
            theirs = source.info.numpy()[rows, : int(visible.max())]
            near = consistency(torch.from_numpy(theirs), torch.from_numpy(info)[:, None])
            bias = near.reshape(theirs.shape).numpy()
        aware = info if config.info_self_attention else None
        some, seen = rows.astype(np.int32), visible.astype(np.int32)
        assert isinstance(self.caches, NativeCaches) and isinstance(source.memory, NativeCaches)
        native.decode(x, some, at, seen, aware, bias, self.caches, source.memory)

    def fill_natively(self, rows: Chosen, place: int, inputs: Embedded, visible: Tensor) -> None:
        """Put inputs [R, d] at one position of the caches; visible [R, T] of all positions."""
        assert self.source.native is not None
        info = None if inputs.info is None else inputs.info.numpy()
        at = np.full(len(rows), place, np.int32)
        x = inputs.x.contiguous().numpy()
        self._decode_natively(self.source.native, rows, x, info, at, visible[:, place].numpy())

    @staticmethod
    def _infos(embedded: Embedded) -> Numbers:
        if embedded.info is None:
            return np.zeros(len(embedded.x))
        return embedded.info[:, 0].double().cpu().numpy()

    def keep(self, kept: Chosen, accepted: Numbers, found: Candidates) -> None:
        """Carry on the state of accepted rows."""
        if self.source.native is not None:  # on a CPU NumPy is faster for a few rows
            self.next_x.numpy()[kept] = found.embedded.x[:, 0].numpy()[accepted]
            if self.next_info is not None and found.embedded.info is not None:
                self.next_info.numpy()[kept] = found.embedded.info[:, 0].numpy()[accepted]
            return
        rows, chosen = (torch.from_numpy(x).to(self.model.device) for x in (kept, accepted))
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


def native_for(model: Transformer, system: System) -> NativeModel | None:
    """Compiled code for a model, if there is some and the system can use it.

    Heads that see different prefixes, and targets that are computed again, are left to torch.
    """
    return None if by_head(model, system) or system.fresh_past else model.native

"""The backend that computes with torch: every model and system, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.cache import CacheRows
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import AttentionReport, CachePosition, Decoded, Embedded, Encoded, Memory
from waitinfo.streaming.engine.backend import PASS_TOKENS, Candidates, HostBackend, Rules
from waitinfo.streaming.engine.slots import Chosen, Numbers, Slots, target_positions
from waitinfo.systems.base import System
from waitinfo.systems.interface import PolicyState, Step
from waitinfo.text.special import BOS, EOS, PAD


class TorchBackend(HostBackend):
    """One cache row for each slot.

    A causal encoder takes tokens as they arrive. A bidirectional one encodes the whole source at
    once; for a system that does not wait for it, it encodes what was read, as if the source ended
    there, once for each prefix that a token is computed from, for all streams together. What was
    written is then computed again too. So a stream's next token is always the one of a sentence
    that consists of what was read, after what was written.

    The decoder's next input is embedded when its token is chosen, since its info is needed then.
    """

    name = "torch"

    def __init__(self, model: Transformer, system: System, slots: Slots, rules: Rules) -> None:
        super().__init__(model, system, slots, rules)
        # Padding of a shared pass is stored in one position more than a source or target can use.
        width, length = slots.capacity + 1, target_positions(slots.capacity) + 1
        self.source_positions = model.position_table(width)
        self.target_positions = model.position_table(length)
        exact = torch.promote_types(model.dtype, torch.float32)
        # Rows behind those of the slots hold the shorter prefix of `Step.before`.
        self.rows = slots.count * (1 + (self.rereads and "before" in system.asks))
        self.info = torch.ones(self.rows, width, device=model.device, dtype=exact)
        self.states = model.new_states(slots.count)  # of cross-attention, after the last token
        self.first = self._embed(torch.tensor([[BOS]]), torch.zeros(1, 1, dtype=torch.long))
        self.next_x = self.first.x[0].repeat(slots.count, 1)
        self.next_info = None if self.first.info is None else self.first.info[0].repeat(slots.count)
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

    @torch.inference_mode()
    def _embed(self, tokens: Tensor, at: Tensor) -> Embedded:
        device = self.model.device
        return self.model.embed_target(tokens.to(device), at.to(device), self.target_positions)

    # Source

    @torch.inference_mode()
    def _encode(self, group: list[int], starts: list[int], ends: list[int]) -> list[int]:
        model, sources = self.model, self.slots.sources
        spans = zip(group, starts, ends, strict=True)
        tokens, at = self._block([sources[s, a:b] for s, a, b in spans], starts)
        rows = CacheRows.of(group, model.device)
        if self.causal:
            source = model.embed_source(tokens, at, self.source_positions)
            place = CachePosition(rows, at, max(ends) + 1)
            encoded = model.extend(source, self.source_caches, place)
        else:
            positions = torch.arange(tokens.shape[1], device=at.device).expand(at.shape)
            source = model.embed_source(tokens, positions, self.source_positions)
            encoded = model.encode(source, torch.tensor(ends, device=at.device))
        self._remember(group, ends, rows, at, encoded)
        if encoded.info is not None:
            self.info[rows.index[:, None], at] = encoded.info.to(self.info.dtype)
            self._receive(group, starts, ends, encoded.info.double().cpu().numpy())
        sums = encoded.memories[0].values.sum((1, 2, 3), dtype=torch.float32).tolist()
        return [slot for slot, total in zip(group, sums, strict=True) if not math.isfinite(total)]

    def _reread(self, slots: Chosen, rows: Chosen, read: Numbers) -> None:
        """Encode what these slots have read into these rows, where it is not what they hold."""
        old = self._prefix[rows] != read
        order = np.flatnonzero(old)[(-read[old]).argsort(kind="stable")]
        while len(order):
            size = max(1, PASS_TOKENS // int(read[order[0]] + 1))
            some, order = np.sort(order[:size]), order[size:]
            counts = read[some].tolist()
            prefixes = [self._sentence(s, n) for s, n in zip(slots[some], counts, strict=True)]
            tokens, at = self._block(prefixes, [0] * len(some))
            ends = np.array([len(prefix) for prefix in prefixes])
            place = torch.arange(tokens.shape[1], device=at.device).expand(at.shape)
            source = self.model.embed_source(tokens, place, self.source_positions)
            encoded = self.model.encode(source, torch.from_numpy(ends).to(at.device))
            index = CacheRows.of(rows[some].tolist(), self.model.device)
            self._remember(rows[some].tolist(), ends.tolist(), index, at, encoded)
            if encoded.info is not None:
                self.info[index.index[:, None], at] = encoded.info.to(self.info.dtype)
            self._prefix[rows[some]], self._ends[rows[some]] = read[some], ends
            self._seen[rows[some]] = 0

    def _sentence(self, slot: int, read: int) -> Numbers:
        """What a slot has read, as a sentence of its own."""
        tokens = self.slots.sources[slot, :read]
        return tokens if tokens[-1] == EOS else np.append(tokens, EOS)

    def _block(self, parts: Sequence[Numbers], starts: list[int]) -> tuple[Tensor, Tensor]:
        """Tokens to encode and their positions: [R, T] each.

        Padding is stored behind the longest source, in an unused position that is always masked.
        """
        unused = max(start + len(part) for part, start in zip(parts, starts, strict=True))
        shape = len(parts), max(map(len, parts))
        tokens, at = np.full(shape, PAD), np.full(shape, unused)
        for row, (part, start) in enumerate(zip(parts, starts, strict=True)):
            tokens[row, : len(part)] = part
            at[row, : len(part)] = range(start, start + len(part))
        device = self.model.device
        return torch.from_numpy(tokens).to(device), torch.from_numpy(at).to(device)

    def _remember(
        self, group: list[int], ends: list[int], rows: CacheRows, at: Tensor, encoded: Encoded
    ) -> None:
        """Store the keys and values of cross-attention."""
        if encoded.joint is not None:
            self.memory.joint[:, :, rows.index[:, None], :, at] = encoded.joint
            return
        for cache, memory in zip(self.memory, encoded.memories, strict=True):
            cache.put(memory.keys, memory.values, rows, at)

    def _receive(
        self, group: list[int], starts: list[int], ends: list[int], infos: Numbers
    ) -> None:
        if infos.shape[1] == 1:
            self.slots.receive_each(np.array(group), np.array(starts), infos[:, 0])
            return
        for slot, start, end, info in zip(group, starts, ends, infos, strict=True):
            self.slots.receive(slot, start, info[: end - start])

    def _view(self, rows: CacheRows, length: int) -> Encoded:
        """The first `length` encoded positions of some rows."""
        memories = [Memory(*cache.view(rows, length)) for cache in self.memory]
        has_info = self.model.source_info is not None
        return Encoded(memories, rows.take(self.info[:, :length]) if has_info else None)

    # Target

    @torch.inference_mode()
    def _compute(
        self, rows: Chosen, state: PolicyState, forced: Numbers | None, before: Numbers | None
    ) -> Candidates:
        policy, asks = state.tensors(), self.system.asks
        decoded, states, last = self._decode(rows, rows, policy)
        logits = self.model.logits(states)
        tokens, finite = best(logits)
        if forced is not None:
            again = torch.from_numpy(forced).to(tokens.device)
            tokens = torch.where(again > 0, again, tokens)
        every = {"logits": logits, "states": states, "before": before}
        asked = {name: value for name, value in every.items() if name in asks}
        if "attention" in asks:
            asked["attention"] = decoded.attention(last)
        step = Step(tokens, decoded.extras, self.model.write_logits(states), asked)
        embedded = self._embed(tokens[:, None], policy.written[:, None] + 1)
        infos = [0.0] * len(rows) if embedded.info is None else embedded.info[:, 0].tolist()
        return Candidates(tokens.tolist(), infos, finite.tolist(), step, embedded)

    @torch.inference_mode()
    def _predict(self, rows: Chosen, state: PolicyState) -> Numbers:
        others = rows + self.slots.count if self.rereads else rows
        _, states, _ = self._decode(rows, others, state.tensors())
        return best(self.model.logits(states))[0].cpu().numpy()

    def _decode(
        self, slots: Chosen, rows: Chosen, policy: PolicyState
    ) -> tuple[Decoded, Tensor, list[int] | None]:
        """One step of some slots, in these rows of the caches.

        Also the states [R, d] of the last position of each, and which one that is of several.
        """
        model, device = self.model, self.model.device
        if self.rereads:
            self._reread(slots, rows, policy.read.numpy())
            policy = replace(policy, read=torch.from_numpy(self._ends[rows]))
        some = CacheRows.of(rows.tolist(), device)
        target, last = self._inputs(slots, rows, some, policy)
        encoded = self._view(some, int(policy.read.max()))
        place = CachePosition(some, target.at, int(policy.written.max()) + 1 + bool(last))
        visible, read = self._visible(policy, target.at.shape[1])
        k = policy.k.to(device, torch.float32)
        carried = [some.take(state) for state in self.states]
        decoded = model.step(
            target, encoded, visible, self.target_caches, place, k, read, carried,
            weigh="attention" in self.system.asks,
        )  # fmt: skip
        states = decoded.states[range(len(rows)), last] if last else decoded.states[:, 0]
        return decoded, states, last

    @torch.inference_mode()
    def _keep(self, slots: Sequence[int], numbers: Sequence[int], found: Candidates) -> None:
        assert found.step is not None
        device = self.model.device
        rows, chosen = (torch.tensor(x, dtype=torch.long, device=device) for x in (slots, numbers))
        self.next_x[rows] = found.embedded.x[chosen, 0]
        if self.next_info is not None:
            self.next_info[rows] = found.embedded.info[chosen, 0]
        for state, report in zip(self.states, _carried(found.step.extras), strict=False):
            state[rows] = report[chosen, :, -1].to(state.dtype)

    def _inputs(
        self, slots: Chosen, rows: Chosen, some: CacheRows, policy: PolicyState
    ) -> tuple[Embedded, list[int] | None]:
        """Inputs of the decoder [R, T], and the last one of each row if there are several.

        That is the last token alone, because the caches hold the others; or everything written so
        far where a system recomputes it with a longer source prefix. Padding is stored behind the
        longest target there can be.
        """
        if not self.computes_again:
            info = None if self.next_info is None else some.take(self.next_info)[:, None]
            at = policy.written[:, None].to(self.model.device)
            return Embedded(some.take(self.next_x)[:, None], info, at), None
        written, read = policy.written.numpy(), policy.read.numpy()
        starts = np.where(self._seen[rows] == read, written, 0)
        self._seen[rows] = read
        last = written - starts
        places = starts[:, None] + np.arange(int(last.max()) + 1)
        real = places <= written[:, None]
        before = self.slots.targets[slots[:, None], np.minimum(places, written[:, None]) - 1]
        tokens = np.where(real, np.where(places > 0, before, BOS), PAD).astype(np.int64)
        places = np.where(real, places, len(self.target_positions) - 1)
        return self._embed(torch.from_numpy(tokens), torch.from_numpy(places)), last.tolist()

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

    # What is kept

    @torch.inference_mode()
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
            torch.from_numpy(tokens.astype(np.int64)),
            torch.from_numpy(np.where(real, at, len(self.target_positions) - 1)),
        )
        index, every = torch.from_numpy(rows), torch.arange(len(rows))
        self.next_x[index] = inputs.x[every, lengths]
        if inputs.info is not None:
            counted = inputs.info.double().cpu().numpy() * (real & (at > 0))
            slots.target_info[rows] = counted.sum(-1)
            assert self.next_info is not None
            self.next_info[index] = inputs.info[every, lengths]
        if self.computes_again:
            return  # it computes what was written at every step
        path = np.where(real[:, 1:], slots.paths[rows, :width], 1).astype(np.int64)
        heads, k = self.model.config.heads, torch.from_numpy(slots.k[rows])
        seen, places = torch.from_numpy(path), torch.from_numpy(at[:-1]).expand(path.shape)
        visible = self.system.visible(seen, places, k[:, None], heads)
        self._fill(rows, inputs, seen, visible, torch.from_numpy(lengths - 1))

    def _fill(
        self, slots: Chosen, inputs: Embedded, path: Tensor, visible: Tensor, last: Tensor
    ) -> None:
        """Decode the inputs [R, T + 1] but the last; of each row, `last` is the last real one."""
        device = self.model.device
        rows, width = CacheRows.of(slots.tolist(), device), path.shape[1]
        info = None if inputs.info is None else inputs.info[:, :-1]
        decoded = self.model.step(
            Embedded(inputs.x[:, :-1], info, inputs.at[:, :-1]),
            self._view(rows, int(path.max())),
            visible.to(device),
            self.target_caches,
            CachePosition(rows, inputs.at[:, :-1], width),
            torch.from_numpy(self.slots.k[slots]).to(device, torch.float32),
            path.to(device) if visible.dim() == 3 else None,
            [rows.take(state) for state in self.states],
        )
        for state, report in zip(self.states, _carried(decoded.extras), strict=False):
            index = last.to(device)[:, None, None].expand(-1, state.shape[1], 1)
            state[rows.index] = report.gather(-1, index)[..., 0].to(state.dtype)


def _carried(extras: list[AttentionReport | None]) -> list[Tensor]:
    """The states [R, H, T] that each layer's cross-attention carries on, if it has one."""
    return [report.state for report in extras if report is not None and report.state is not None]


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

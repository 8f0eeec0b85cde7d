"""Encoding of the source that has arrived, in one pass for all slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition, Memory
from waitinfo.model.cache import Rows
from waitinfo.model.transformer import Encoded, Transformer
from waitinfo.streaming.engine.slots import Numbers, Slots
from waitinfo.streaming.engine.slots import Rows as Chosen
from waitinfo.text.special import PAD

PASS_TOKENS = 8192  # source tokens in one pass, padding counted
SMALLEST_SHARE = 16  # source tokens that every waiting slot may encode in a round


class SourceEncoder:
    """The caches of the source side, and what brings them up to date.

    A causal encoder takes tokens as they arrive. A bidirectional one has to wait for the whole
    source, and encodes it at once.
    """

    def __init__(self, model: Transformer, slots: Slots, round_tokens: int) -> None:
        self.model, self.slots, self.round_tokens = model, slots, round_tokens
        self.causal = model.config.encoder == "causal"
        # One position more than a source can use: padding of a shared pass is stored there.
        width = slots.capacity + 1
        layers = model.config.encoder_layers if self.causal else 0
        self.positions = model.position_table(width)
        self.caches = model.new_caches(layers, slots.count, width)
        self.memory = model.new_memories(slots.count, width)
        self.has_info = model.source_info is not None
        exact = torch.promote_types(model.dtype, torch.float32)
        self.info = torch.ones(slots.count, width, device=model.device, dtype=exact)

    def clear(self, slot: int) -> None:
        """Remove every number of a slot: a stored NaN would spread even from masked positions."""
        for cache in (*self.caches, *self.memory):
            cache.clear(slot)
        self.info[slot] = 1

    def view(self, rows: Rows, length: int) -> Encoded:
        """The first `length` encoded positions of some rows."""
        memories = [Memory(*cache.view(rows, length)) for cache in self.memory]
        return Encoded(memories, rows.take(self.info[:, :length]) if self.has_info else None)

    def available(self, rows: Chosen) -> Chosen:
        """Source tokens that each row may have read by now."""
        slots = self.slots
        if self.causal:
            return slots.encoded[rows]
        arrived = np.array([len(slots.sources[slot]) for slot in rows.tolist()])
        fed = np.array([slots.fed[slot] for slot in rows.tolist()])
        return np.where(fed & (slots.encoded[rows] == 0), slots.read[rows], arrived)

    def preview(self, slot: int) -> None:
        """The info of source tokens that a bidirectional encoder cannot encode yet."""
        if self.causal or not self.has_info:
            return
        tokens = torch.tensor([self.slots.sources[slot]], device=self.model.device)
        info = self.model.embed_source(tokens).info
        if info is not None:
            self.slots.receive(slot, 0, info[0].double().cpu().numpy())

    def advance(self, rows: Sequence[int]) -> list[int]:
        """Encode what has arrived, within the budget of a round.

        Returns the slots whose encoding is not finite.
        """
        shares = self._shares([slot for slot in rows if self._pending(slot)])
        waiting = sorted(shares, key=lambda slot: -shares[slot])
        broken: list[int] = []
        while waiting:
            size = max(1, PASS_TOKENS // shares[waiting[0]])
            group = sorted(waiting[:size])
            broken += self._encode(group, [shares[slot] for slot in group])
            waiting = waiting[size:]
        return broken

    def _pending(self, slot: int) -> int:
        """Source tokens that can be encoded now."""
        if not self.causal and not self.slots.fed[slot]:
            return 0
        return len(self.slots.sources[slot]) - int(self.slots.encoded[slot])

    def _shares(self, waiting: list[int]) -> dict[int, int]:
        """How many tokens each slot encodes in this round.

        Slots with a word or two always get through; a long text takes several rounds.
        """
        pending = {slot: self._pending(slot) for slot in waiting}
        if self.causal:
            share = max(SMALLEST_SHARE, self.round_tokens // max(1, len(waiting)))
            return {slot: min(count, share) for slot, count in pending.items()}
        totals = accumulate(pending.values())
        chosen = [s for s, total in zip(waiting, totals, strict=True) if total <= self.round_tokens]
        return {slot: pending[slot] for slot in chosen or waiting[:1]}

    def _encode(self, group: list[int], counts: list[int]) -> list[int]:
        slots, model = self.slots, self.model
        starts = slots.encoded[group].tolist()
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        tokens, at = self._block(group, starts, ends)
        rows = Rows.of(group, model.device)
        if self.causal:
            source = model.embed_source(tokens, at, self.positions)
            encoded = model.extend(source, self.caches, CachePosition(rows, at, max(ends) + 1))
        else:
            positions = torch.arange(tokens.shape[1], device=at.device).expand(at.shape)
            source = model.embed_source(tokens, positions, self.positions)
            encoded = model.encode(source, torch.tensor(ends, device=at.device))
        self._store(group, starts, ends, rows, at, encoded)
        sums = encoded.memories[0].values.sum((1, 2, 3), dtype=torch.float32).tolist()
        return [slot for slot, total in zip(group, sums, strict=True) if not math.isfinite(total)]

    def _block(self, group: list[int], starts: list[int], ends: list[int]) -> tuple[Tensor, Tensor]:
        """Tokens to encode and their positions: [R, T] each.

        Padding is stored behind the longest source, in an unused position that is always masked.
        """
        unused = max(ends)
        width = max(end - start for start, end in zip(starts, ends, strict=True))
        tokens, at = [], []
        for slot, start, end in zip(group, starts, ends, strict=True):
            padding = width - (end - start)
            tokens.append([*self.slots.sources[slot][start:end], *[PAD] * padding])
            at.append([*range(start, end), *[unused] * padding])
        device = self.model.device
        return torch.tensor(tokens, device=device), torch.tensor(at, device=device)

    def _store(
        self,
        group: list[int],
        starts: list[int],
        ends: list[int],
        rows: Rows,
        at: Tensor,
        encoded: Encoded,
    ) -> None:
        if encoded.joint is not None:
            assert self.memory.joint is not None
            self.memory.joint[:, :, rows.index[:, None], :, at] = encoded.joint
        else:
            for cache, memory in zip(self.memory, encoded.memories, strict=True):
                cache.put(memory.keys, memory.values, rows, at)
        if encoded.info is not None:
            self.info[rows.index[:, None], at] = encoded.info.to(self.info.dtype)
            self._receive(group, starts, ends, encoded.info.double().cpu().numpy())
        self.slots.encoded[group] = ends

    def _receive(
        self, group: list[int], starts: list[int], ends: list[int], infos: Numbers
    ) -> None:
        if infos.shape[1] == 1:
            self.slots.receive_one(np.array(group), np.array(starts), infos[:, 0])
            return
        for slot, start, end, info in zip(group, starts, ends, infos, strict=True):
            self.slots.receive(slot, start, info[: end - start])

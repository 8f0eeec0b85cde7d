"""Encoding of the source that has arrived, in one pass for all slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from waitinfo.model.attention import CachePosition, Memory
from waitinfo.model.cache import LayerCaches, Rows
from waitinfo.model.integers.conversion import IntegerTransformer
from waitinfo.model.native import NativeCaches, NativeModel, NativeReading, Side
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

    def __init__(
        self, model: Transformer, slots: Slots, round_tokens: int, native: NativeModel | None
    ) -> None:
        self.model, self.slots, self.round_tokens, self.native = model, slots, round_tokens, native
        self.causal = model.config.encoder == "causal"
        # One position more than a source can use: padding of a shared pass is stored there.
        width = slots.capacity + 1
        layers = model.config.encoder_layers if self.causal else 0
        self.positions = model.position_table(width)
        self.caches: LayerCaches | NativeCaches
        self.memory: LayerCaches | NativeCaches
        if native is not None:
            self.caches = native.new_caches(layers, slots.count, width)
            self.memory = native.new_caches(model.config.decoder_layers, slots.count, width)
        else:
            self.caches = model.new_caches(layers, slots.count, width)
            self.memory = model.new_memories(slots.count, width)
        self.has_info = model.source_info is not None
        exact = torch.promote_types(model.dtype, torch.float32)
        self.info = torch.ones(slots.count, width, device=model.device, dtype=exact)
        self._reading: NativeReading | None = None
        if native is not None and self.causal:
            assert isinstance(self.caches, NativeCaches) and isinstance(self.memory, NativeCaches)
            assert isinstance(model, IntegerTransformer)
            side = Side(native, model.native_source, self.positions, self.caches, self.memory)
            info = (self.info, slots.received) if self.has_info else None
            self._reading = NativeReading(side, info, model.config.info_self_attention)

    def clear(self, slot: int) -> None:
        """Remove every number of a slot: a stored NaN would spread even from masked positions."""
        self.caches.erase(slot)
        self.memory.erase(slot)
        self.info[slot] = 1

    def view(self, rows: Rows, length: int) -> Encoded:
        """The first `length` encoded positions of some rows."""
        assert isinstance(self.memory, LayerCaches)
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
        if self.causal or not self.has_info or not self.slots.sources[slot]:
            return
        tokens = torch.tensor([self.slots.sources[slot]], device=self.model.device)
        with torch.inference_mode():
            info = self.model.embed_source(tokens).info
        if info is not None:
            self.slots.receive(slot, 0, info[0].double().cpu().numpy())

    def advance(self, rows: Sequence[int]) -> list[int]:
        """Encode what has arrived, within the budget of a round.

        Returns the slots whose encoding is not finite.
        """
        pending = {slot: count for slot in rows if (count := self._pending(slot))}
        if not pending:
            return []
        shares = self._shares(pending)
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
        return len(self.slots.sources[slot]) - self.slots.encoded.item(slot)

    def _shares(self, pending: dict[int, int]) -> dict[int, int]:
        """How many of the pending tokens each slot encodes in this round.

        Slots with a word or two always get through; a long text takes several rounds.
        """
        if self.causal:
            share = max(SMALLEST_SHARE, self.round_tokens // len(pending))
            return {slot: min(count, share) for slot, count in pending.items()}
        totals = accumulate(pending.values())
        chosen = [s for s, total in zip(pending, totals, strict=True) if total <= self.round_tokens]
        return {slot: pending[slot] for slot in chosen or list(pending)[:1]}

    def _encode(self, group: list[int], counts: list[int]) -> list[int]:
        starts = [self.slots.encoded.item(slot) for slot in group]
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        if self._reading is not None:
            return self._encode_natively(self._reading, group, starts, ends)
        return self._encode_by_torch(group, starts, ends)

    @torch.inference_mode()
    def _encode_by_torch(self, group: list[int], starts: list[int], ends: list[int]) -> list[int]:
        model = self.model
        tokens, at = self._block(group, starts, ends)
        rows = Rows.of(group, model.device)
        if self.causal:
            source = model.embed_source(tokens, at, self.positions)
            assert isinstance(self.caches, LayerCaches)
            encoded = model.extend(source, self.caches, CachePosition(rows, at, max(ends) + 1))
        else:
            positions = torch.arange(tokens.shape[1], device=at.device).expand(at.shape)
            source = model.embed_source(tokens, positions, self.positions)
            encoded = model.encode(source, torch.tensor(ends, device=at.device))
        self._store(group, starts, ends, rows, at, encoded)
        sums = encoded.memories[0].values.sum((1, 2, 3), dtype=torch.float32).tolist()
        return [slot for slot, total in zip(group, sums, strict=True) if not math.isfinite(total)]

    def _encode_natively(
        self, reading: NativeReading, group: list[int], starts: list[int], ends: list[int]
    ) -> list[int]:
        """The same by compiled code, which needs no padding."""
        tokens: list[int] = []
        rows: list[int] = []
        at: list[int] = []
        for slot, start, end in zip(group, starts, ends, strict=True):
            tokens += self.slots.sources[slot][start:end]
            rows += [slot] * (end - start)
            at += range(start, end)
        embedded = None if reading.embeds else self._embed(tokens, at)
        finite = reading(tokens, rows, at, embedded)
        for slot, end in zip(group, ends, strict=True):
            self.slots.encoded[slot] = end
        if all(finite):
            return []
        return sorted({slot for slot, good in zip(rows, finite, strict=True) if not good})

    @torch.inference_mode()
    def _embed(self, tokens: list[int], at: list[int]) -> tuple[Tensor, Tensor | None]:
        """[N, d] and [N]."""
        places = torch.tensor([at])
        source = self.model.embed_source(torch.tensor([tokens]), places, self.positions)
        return source.x[0], None if source.info is None else source.info[0]

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
        if isinstance(self.memory, NativeCaches):
            self._store_natively(group, ends, encoded)
        elif encoded.joint is not None:
            assert self.memory.joint is not None
            self.memory.joint[:, :, rows.index[:, None], :, at] = encoded.joint
        else:
            for cache, memory in zip(self.memory, encoded.memories, strict=True):
                cache.put(memory.keys, memory.values, rows, at)
        if encoded.info is not None:
            self.info[rows.index[:, None], at] = encoded.info.to(self.info.dtype)
            self._receive(group, starts, ends, encoded.info.double().cpu().numpy())
        self.slots.encoded[group] = ends

    def _store_natively(self, group: list[int], ends: list[int], encoded: Encoded) -> None:
        """Of whole sources, each from its first position on."""
        assert self.native is not None and encoded.joint is not None
        assert isinstance(self.memory, NativeCaches)
        rows = np.repeat(np.array(group, np.int32), ends)
        at = np.concatenate([np.arange(end, dtype=np.int32) for end in ends])
        tokens = torch.cat([row[:end] for row, end in zip(encoded.joint, ends, strict=True)])
        self.native.remember(tokens.contiguous().numpy(), rows, at, self.memory)

    def _receive(
        self, group: list[int], starts: list[int], ends: list[int], infos: Numbers
    ) -> None:
        if infos.shape[1] == 1:
            self.slots.receive_one(np.array(group), np.array(starts), infos[:, 0])
            return
        for slot, start, end, info in zip(group, starts, ends, infos, strict=True):
            self.slots.receive(slot, start, info[: end - start])

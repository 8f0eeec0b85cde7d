"""A batch of sentences that write in lockstep: what searches share, and the greedy one.

Several models with one vocabulary can write together: their probabilities are averaged.

The whole source is there, so every row writes one token in every step, and all rows are at the same
position. Finished rows leave the batch every few steps; between these points the host never waits
for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model import Network
from waitinfo.model.batch import pad_rows
from waitinfo.model.cache import CacheRows, KeyValueCache
from waitinfo.model.integers.in_torch import in_torch
from waitinfo.model.views import CachePosition, Encoded, Memory
from waitinfo.streaming.engine import NOT_FINITE, length_limit
from waitinfo.streaming.engine.loops import first_loop
from waitinfo.text.languages import Opening
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.translation.decoding import Candidate

STRIDE = {"cpu": 1, "cuda": 8}  # steps between two looks at which rows are finished
CROWDED = 0.7  # share of unfinished rows above which letting the others go costs more than it saves
GROWTH = 32  # positions by which full caches grow

# Chooses the next tokens [R] from logits [R, V], given the original rows [R] and their position.
Choice = Callable[[Tensor, Tensor, int], Tensor]
# The constants of SplitMix64 (Steele et al., 2014), as signed numbers.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
SHIFTS = (30, 27, 31)


class StepCache(KeyValueCache):
    """Keys and values of rows that are all at the same position: [2, R, H, capacity, d/H]."""

    both: Tensor

    def __init__(self, both: Tensor) -> None:
        self.position = 0  # where the next keys and values go
        self._set(both)

    def _set(self, both: Tensor) -> None:
        self.both, self.keys, self.values = both, both[0], both[1]

    def put(self, keys: Tensor, values: Tensor, rows: CacheRows, at: Tensor) -> None:
        self.keys[:, :, self.position] = keys[:, :, 0]
        self.values[:, :, self.position] = values[:, :, 0]

    def view(self, rows: CacheRows, length: int) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, :length], self.values[:, :, :length]

    def resize(self, index: Tensor | None, capacity: int, length: int) -> None:
        """Keep some rows (None: all) and their first `length` positions."""
        kept = self.both[:, :, :, :length]
        if index is not None:
            kept = kept.index_select(1, index)
        _, rows, heads, _, width = kept.shape
        both = kept.new_zeros(2, rows, heads, capacity, width)
        both[:, :, :, :length] = kept
        self._set(both)

    def reorder(self, index: Tensor) -> None:
        """Replace each row i with the former row index[i], as far as it is filled."""
        filled = self.both[:, :, :, : self.position + 1]
        filled.copy_(filled.index_select(1, index))


def best_tokens(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of every row [R, V], and its token: [R] each."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        # NumPy's argmax is many times as fast as torch's.
        tokens = torch.from_numpy(logits.numpy().argmax(-1))
        return logits.gather(1, tokens[:, None])[:, 0], tokens
    found = logits.max(-1)
    return found.values, found.indices


def _together(encoded: Encoded) -> Encoded:
    """Keys and values, those of each head contiguous in memory: every step reads them."""
    memories = [Memory(m.keys.contiguous(), m.values.contiguous()) for m in encoded.memories]
    return Encoded(memories, encoded.info)


class Search:
    """A batch of sentences with `copies` rows each; the `others` are models that write along."""

    @torch.inference_mode()
    def __init__(
        self,
        model: Network,
        sources: Sequence[Sequence[int]],
        copies: int,
        others: Sequence[Network] = (),
        opening: Opening | None = None,
    ) -> None:
        self.model = model = in_torch(model)
        self.copies, self.opening = copies, opening
        if opening is not None:
            sources = [[opening.source, *source] for source in sources]
        self.others = [Search(other, sources, copies) for other in others]
        device = model.device
        counts = np.fromiter(map(len, sources), np.int64, len(sources))
        flat = np.fromiter(chain.from_iterable(sources), np.int64, int(counts.sum()))
        lengths = torch.from_numpy(counts + 1).to(device, non_blocking=True)
        tokens = pad_rows(flat, counts, None, EOS).to(device, non_blocking=True)
        encoded = model.encode(model.embed_source(tokens), lengths)
        each = torch.arange(len(sources), device=device).repeat_interleave(copies)
        self.lengths = lengths[each]  # [R] of the sources, including end-of-sentence
        self.encoded = _together(encoded.select(each) if copies > 1 else encoded)
        self.written = 0  # tokens of every row
        self.longest: int = length_limit(int(counts.max()) + 1)
        self.positions = model.position_table(self.longest + 1)
        self.stride = STRIDE.get(device.type, 1)
        self.capacity = min(self.longest, int(counts.max()) + GROWTH)
        self.caches = self._new_caches(len(each))
        self.inputs = torch.full((len(each), 1), BOS, device=device)  # [R, 1]
        self._prepare_rows()

    def _new_caches(self, rows: int) -> Any:
        config = self.model.config
        if config.decoder != "attention":
            return self.model.new_target_caches(rows, self.capacity)
        like = torch.empty(0, device=self.model.device, dtype=self.model.dtype)
        shape = (2, rows, config.heads, self.capacity, config.width // config.heads)
        return [StepCache(like.new_zeros(shape)) for _ in range(config.decoder_layers)]

    def _prepare_rows(self) -> None:
        count = len(self.lengths)
        index = torch.arange(count, device=self.lengths.device)
        self.rows = CacheRows(index, slice(0, count))
        self.visible = self.lengths[:, None]
        self.limit = length_limit(self.lengths)  # [R]

    def next_logits(self) -> Tensor:
        """Run one step of all rows: [R, V], with tokens that are never written.

        Of several models it is the logarithm of their mean probabilities.
        """
        logits = self._own_logits()
        if not self.others:
            return logits
        exact = torch.promote_types(logits.dtype, torch.float32)
        total = logits.to(exact).log_softmax(-1)
        for other in self.others:
            other.inputs = self.inputs
            total = torch.logaddexp(total, other._own_logits().to(exact).log_softmax(-1))
        return total - math.log(1 + len(self.others))

    def _own_logits(self) -> Tensor:
        model = self.model
        for cache in self.caches:
            cache.position = self.written
        at = torch.full_like(self.visible, self.written)
        target = model.embed_target(self.inputs, at, self.positions)
        position = CachePosition(self.rows, at, self.written + 1)
        decoded = model.step(target, self.encoded, self.visible, list(self.caches), position)
        self.written += 1
        return model.logits(decoded.states[:, -1])

    def restrict(self, logits: Tensor) -> Tensor:
        """Rule out the tokens that are never written, and at first all but the language's."""
        if self.opening is not None and self.written == 1:
            others = torch.ones_like(logits, dtype=torch.bool)
            others[:, self.opening.target] = False
            logits.masked_fill_(others, -torch.inf)
        logits[:, PAD].fill_(-torch.inf)
        logits[:, BOS].fill_(-torch.inf)
        return logits

    @staticmethod
    def log_total(logits: Tensor) -> Tensor:
        """log sum exp of logits, in float32 or better: what makes them log-probabilities."""
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).logsumexp(-1)

    def keep(self, index: Tensor | None) -> None:
        """Go on with some rows (None: all), with room for the steps up to the next look."""
        for other in self.others:
            other.keep(index)
        if self.written + self.stride > self.capacity:
            self.capacity = self.written + GROWTH
        elif index is None:
            return
        for cache in self.caches:
            cache.resize(index, self.capacity, self.written)
        if index is not None:
            self.encoded = _together(self.encoded.select(index))
            self.lengths, self.inputs = self.lengths[index], self.inputs[index]
            self._prepare_rows()

    def reorder(self, rows: Tensor) -> None:
        """Continue each row i where the former row rows[i] was."""
        for cache in self.caches:
            cache.reorder(rows)
        for other in self.others:
            other.reorder(rows)

    @staticmethod
    def check_finite(number: Tensor) -> None:
        """Raise an error if the sum of the numbers that decided is not finite."""
        if not bool(number.isfinite()):
            raise WaitinfoError(NOT_FINITE)


class GreedySearch(Search):
    """Every row writes its best token, or the one that `choose` takes."""

    def __init__(
        self,
        model: Network,
        sources: Sequence[Sequence[int]],
        copies: int = 1,
        choose: Choice | None = None,
        scores: bool = False,
        others: Sequence[Network] = (),
        opening: Opening | None = None,
    ) -> None:
        super().__init__(model, sources, copies, others, opening)
        self.choose, self.scores, self.sources = choose, scores, sources
        count, device, model = len(self.lengths), self.lengths.device, self.model
        self.origin = torch.arange(count, device=device)  # [R] which of all rows these are
        self.done = torch.zeros(count, dtype=torch.bool, device=device)
        self.found = torch.full((count, self.longest), PAD, dtype=torch.int32, device=device)
        exact = torch.promote_types(model.dtype, torch.float32)
        self.total = torch.zeros(count, device=device, dtype=exact)  # log p of all rows
        self.sum = torch.zeros((), device=device, dtype=exact)  # of every step's best logits

    @torch.inference_mode()
    def run(self) -> list[list[Candidate]]:
        """The translations of every sentence, `copies` of each."""
        while len(self.origin):
            start = self.written
            steps = [self._step() for _ in range(min(self.stride, self.longest - start))]
            self.found[self.origin, start : self.written] = torch.stack(steps, 1)
            self._settle()
        self.check_finite(self.sum)
        return self._candidates()

    def _step(self) -> Tensor:
        """Write one token in every row that is not done: [R], PAD in the others."""
        logits = self.next_logits()
        normaliser = self.log_total(logits) if self.scores else None
        best, tokens = best_tokens(self.restrict(logits))
        self.sum = self.sum + best.sum(dtype=self.sum.dtype)
        if self.choose is not None:
            tokens = self.choose(logits, self.origin, self.written - 1)
        if normaliser is not None:
            logp = logits.gather(1, tokens[:, None])[:, 0].to(self.total.dtype) - normaliser
            self.total[self.origin] += logp.masked_fill(self.done, 0)
        tokens = tokens.masked_fill(self.done, PAD)
        self.done = self.done | (tokens == EOS) | (self.limit <= self.written)
        self.inputs = tokens[:, None]
        return tokens.to(torch.int32)

    def _settle(self) -> None:
        """Let finished rows go; here the host waits for the device."""
        alive = (~self.done).nonzero()[:, 0]
        index = alive if len(alive) <= CROWDED * len(self.origin) else None
        if index is not None:
            self.origin, self.done = self.origin[index], self.done[index]
        if len(self.origin):
            self.keep(index)

    def _candidates(self) -> list[list[Candidate]]:
        rows, totals = self.found.cpu().numpy(), self.total.tolist()
        counts = (rows != PAD).sum(1).tolist()
        found = []
        for number, (row, count, logp) in enumerate(zip(rows, counts, totals, strict=True)):
            tokens = row[:count].tolist()
            if self.choose is None:  # the engine would have ended where a loop begins
                source = [*self.sources[number // self.copies], EOS]
                loop = first_loop(tokens, source)
                tokens = tokens if loop is None else [*tokens[:loop], EOS]
            ended = tokens[-1] == EOS
            tokens = tokens[self.opening is not None : -1 if ended else None]
            found.append(Candidate(tokens, logp, ended))
        return [found[i : i + self.copies] for i in range(0, len(found), self.copies)]


def mix(numbers: Tensor) -> Tensor:
    """A hash of 64-bit integers, each alone; products wrap around."""
    for shift, factor in zip(SHIFTS, (*FACTORS, 1), strict=True):
        # A shift of a negative number keeps its sign; the mask makes it the shift of its bits.
        numbers = (numbers ^ ((numbers >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return numbers


def combine(key: Tensor, number: Tensor | int) -> Tensor:
    """The hash of a key and one more number."""
    return mix(key + GOLDEN * (torch.as_tensor(number, device=key.device) + 1))


def uniform(key: Tensor) -> Tensor:
    """Numbers in [0, 1) in float64 from the upper 53 bits of keys."""
    return ((key >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


def sentence_keys(seed: int, sentences: Iterable[tuple[int, int]], copies: int) -> Tensor:
    """A key for each copy of each sentence, given as (line, part of the line)."""
    places = torch.from_numpy(np.array(list(sentences), np.int64).reshape(-1, 2))
    key = combine(torch.zeros((), dtype=torch.int64), seed).expand(len(places))
    key = combine(combine(key, places[:, 0]), places[:, 1])
    return combine(key[:, None], torch.arange(copies)[None]).flatten()


class Sampler:
    """Draws tokens from softmax(logits / temperature), among the `top_k` best if it is not 0.

    Every draw is a hash of the seed, the sentence, the copy and the position, and never depends on
    the batch. So the same sentence gets the same translations in any batch, on any number of
    processes, and after resuming.
    """

    def __init__(self, keys: Tensor, temperature: float, top_k: int) -> None:
        self.keys, self.temperature, self.top_k = keys, temperature, top_k

    def __call__(self, logits: Tensor, rows: Tensor, position: int) -> Tensor:
        """Choose from logits [R, V]; `rows` [R] says whose keys to use."""
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
        tokens = None
        if 0 < self.top_k < logits.shape[1]:
            # In the order of the vocabulary, which does not depend on equal scores.
            tokens = exact.topk(self.top_k).indices.sort(-1).values
            exact = exact.gather(1, tokens)
        shares = (exact.double() / self.temperature).softmax(-1).cumsum(-1)
        drawn = uniform(combine(self.keys[rows], position))[:, None] * shares[:, -1:]
        # The first token whose cumulated share is above the drawn number.
        chosen = (shares <= drawn).sum(-1, keepdim=True).clamp_max(shares.shape[1] - 1)
        return (chosen if tokens is None else tokens.gather(1, chosen))[:, 0]

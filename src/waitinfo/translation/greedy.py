"""Greedy search and sampling for whole sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from waitinfo.model.transformer import Transformer
from waitinfo.streaming.engine.loops import first_loop
from waitinfo.text.special import EOS, PAD
from waitinfo.translation.search import CROWDED, Candidate, Search, best_tokens

# Chooses the next tokens [R] from logits [R, V], given the original rows [R] and their position.
Choice = Callable[[Tensor, Tensor, int], Tensor]


class GreedySearch(Search):
    """Every row writes its best token, or the one that `choose` takes."""

    def __init__(
        self,
        model: Transformer,
        sources: Sequence[Sequence[int]],
        copies: int = 1,
        choose: Choice | None = None,
        scores: bool = False,
        others: Sequence[Transformer] = (),
    ) -> None:
        super().__init__(model, sources, copies, others)
        self.choose, self.scores, self.sources = choose, scores, sources
        count, device = len(self.lengths), model.device
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
            found.append(Candidate(tokens[:-1] if ended else tokens, logp, ended))
        return [found[i : i + self.copies] for i in range(0, len(found), self.copies)]

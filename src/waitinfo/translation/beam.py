"""Beam search for whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from waitinfo.model import Network
from waitinfo.text.languages import Opening
from waitinfo.text.special import EOS, PAD
from waitinfo.translation.decoding import Candidate
from waitinfo.translation.search import CROWDED, Search

UNFINISHED = 1e9  # how far translations cut off at the length limit rank behind all others


@dataclass
class Finished:
    """The N best finished translations of each sentence, best first."""

    ranks: Tensor  # [B, N] log p / length^penalty; -inf where there is none yet
    logp: Tensor  # [B, N]
    tokens: Tensor  # [B, N, L] padded with PAD

    def add(self, ranks: Tensor, logp: Tensor, tokens: Tensor) -> None:
        """Rank further translations among them: [B, M], [B, M] and [B, M, L]."""
        size = self.ranks.shape[1]
        self.ranks, order = torch.cat([self.ranks, ranks], 1).topk(size)
        self.logp = torch.cat([self.logp, logp], 1).gather(1, order)
        self.tokens = take(torch.cat([self.tokens, tokens], 1), order)

    def select(self, index: Tensor) -> Finished:
        return Finished(self.ranks[index], self.logp[index], self.tokens[index])


def take(tokens: Tensor, order: Tensor) -> Tensor:
    """Select sequences: [B, M, L], [B, N] -> [B, N, L]."""
    return tokens.gather(1, order[..., None].expand(*order.shape, tokens.shape[-1]))


class BeamSearch(Search):
    """B sentences with W beams each, as B * W rows of the model.

    A sentence is done when W translations have ended, or at the length limit.
    """

    def __init__(
        self,
        model: Network,
        sources: Sequence[Sequence[int]],
        width: int,
        penalty: float = 1.0,
        best: int = 1,
        others: Sequence[Network] = (),
        opening: Opening | None = None,
    ) -> None:
        super().__init__(model, sources, width, others, opening)
        self.width, self.penalty = width, penalty
        count, device = len(sources), self.model.device
        exact = torch.promote_types(self.model.dtype, torch.float32)
        self.origin = torch.arange(count, device=device)  # [B] which of all sentences these are
        self.done = torch.zeros(count, dtype=torch.bool, device=device)
        self.ended = torch.zeros(count, dtype=torch.long, device=device)
        # All beams of a sentence are equal at the start, so the first step uses only one of them.
        self.scores = torch.full((count, width), -torch.inf, device=device, dtype=exact)
        self.scores[:, 0] = 0
        self.tokens = torch.full((count, width, self.longest), PAD, device=device)
        nothing = torch.full((count, best), -torch.inf, device=device, dtype=exact)
        self.finished = Finished(nothing, nothing, self.tokens[:, :1].repeat(1, best, 1))
        self.results: list[list[Candidate]] = [[] for _ in sources]
        self.sum = torch.zeros((), device=device, dtype=exact)

    @torch.inference_mode()
    def run(self) -> list[list[Candidate]]:
        """The best translations of every sentence, best first."""
        while len(self.origin):
            for _ in range(min(self.stride, self.longest - self.written)):
                self._step()
            self._settle()
        self.check_finite(self.sum)
        return self.results

    def _step(self) -> None:
        logits = self.next_logits()
        normaliser = self.log_total(logits)[:, None]
        # The 2W best of a sentence are among the 2W best of its beams. At most W of them are
        # end-of-sentence, so at least W continue.
        best, tokens = self.restrict(logits).topk(min(2 * self.width, logits.shape[1]))
        exact = best.to(self.scores.dtype)
        self.sum = self.sum + exact[:, 0].sum()
        totals = (self.scores.flatten()[:, None] + exact - normaliser).view(len(self.scores), -1)
        scores, order = totals.topk(2 * self.width)
        beams = order // best.shape[1]
        self._continue(scores, beams, tokens.view(len(self.scores), -1).gather(1, order))

    def _continue(self, scores: Tensor, beams: Tensor, tokens: Tensor) -> None:
        """Take the candidates [B, 2W], best first: beams that end, and beams that go on."""
        ends = tokens == EOS
        alive, order = scores.masked_fill(ends, -torch.inf).topk(self.width)
        parents = beams.gather(1, order)
        following = take(self.tokens, parents)
        following[:, :, self.written - 1] = tokens.gather(1, order)
        full = self.limit.view(-1, self.width)[:, 0] <= self.written
        self._finish(scores, beams, ends, alive, following, full)
        self.scores, self.tokens = alive, following
        offset = torch.arange(len(parents), device=parents.device)[:, None] * self.width
        self.reorder((parents + offset).flatten())
        self.inputs = following[:, :, self.written - 1].reshape(-1, 1)

    def _finish(
        self,
        scores: Tensor,
        beams: Tensor,
        ends: Tensor,
        alive: Tensor,
        following: Tensor,
        full: Tensor,
    ) -> None:
        """Keep translations that end among the W best, and the beams of sentences cut off now."""
        best = slice(0, self.width)
        ending = ends[:, best] & ~self.done[:, None]
        cut = (full & ~self.done)[:, None].expand(alive.shape)
        length = self.written**self.penalty
        logp = torch.cat([scores[:, best], alive], 1)
        ranks = logp / length
        ranks = torch.cat([ranks[:, best], ranks[:, self.width :] - UNFINISHED], 1)
        ranks = ranks.masked_fill(~torch.cat([ending, cut], 1), -torch.inf)
        ended = take(self.tokens, beams[:, best])
        ended[:, :, self.written - 1] = EOS
        self.finished.add(ranks, logp, torch.cat([ended, following], 1))
        self.ended = self.ended + ending.sum(1)
        self.done = self.done | (self.ended >= self.width) | full

    def _settle(self) -> None:
        """Let finished sentences go; here the host waits for the device."""
        alive = (~self.done).nonzero()[:, 0]
        if len(alive) > CROWDED * len(self.origin):
            self.keep(None)
            return
        self._collect(self.done.nonzero()[:, 0])
        self.origin, self.done, self.ended = self.origin[alive], self.done[alive], self.ended[alive]
        self.scores, self.tokens = self.scores[alive], self.tokens[alive]
        self.finished = self.finished.select(alive)
        if len(alive):
            beams = torch.arange(self.width, device=alive.device)
            self.keep((alive[:, None] * self.width + beams).flatten())

    def _collect(self, index: Tensor) -> None:
        """Bring finished sentences to the host."""
        found = self.finished.select(index)
        values = (self.origin[index], found.ranks, found.logp, found.tokens)
        for place, ranks, logps, rows in zip(*(v.tolist() for v in values), strict=True):
            for rank, logp, row in zip(ranks, logps, rows, strict=True):
                if rank == -float("inf"):
                    continue
                tokens = row[: row.index(PAD)] if PAD in row else row
                ended = tokens[-1] == EOS
                tokens = tokens[self.opening is not None : -1 if ended else None]
                self.results[place].append(Candidate(tokens, logp, ended))

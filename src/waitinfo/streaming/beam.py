"""Beam search for full-sentence translation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import CachePosition
from waitinfo.model.batch import pad_sources
from waitinfo.model.cache import Rows
from waitinfo.model.transformer import Transformer
from waitinfo.streaming.decoder import Hypothesis
from waitinfo.streaming.engine import length_limit
from waitinfo.text.special import BOS, EOS, PAD


class BeamDecoder:
    """Keeps the `beam` best partial translations. The score is log p / length^penalty."""

    def __init__(self, model: Transformer, beam: int, penalty: float = 1.0, rows: int = 64) -> None:
        if beam < 1:
            raise WaitinfoError(f"--beam {beam}: must be at least 1")
        self.model, self.beam, self.penalty, self.rows = model, beam, penalty, rows

    def decode(self, sentences: Sequence[list[int]]) -> list[Hypothesis]:
        """Translate token lists; results are in the order of the sentences."""
        found = dict(self.results(sentences))
        return [found[i] for i in range(len(sentences))]

    def results(self, sentences: Sequence[list[int]]) -> Iterator[tuple[int, Hypothesis]]:
        """Yield translations with the indices of their sentences, one batch at a time."""
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        for start in range(0, len(order), self.rows):
            indices = order[start : start + self.rows]
            yield from zip(indices, self.decode_batch([sentences[i] for i in indices]), strict=True)

    @torch.inference_mode()
    def decode_batch(self, sentences: Sequence[list[int]]) -> list[Hypothesis]:
        search = _Search(self, sentences)
        while search.unfinished:
            search.advance()
        return search.hypotheses()


class _Search:
    """One batch: B sentences with W beams each, as B * W rows of the model."""

    def __init__(self, decoder: BeamDecoder, sentences: Sequence[list[int]]) -> None:
        self.model, self.width, self.penalty = decoder.model, decoder.beam, decoder.penalty
        device = self.model.device
        source, lengths = pad_sources(list(sentences))
        self.lengths = lengths.to(device)
        embedded = self.model.embed_source(source.to(device))
        encoded = self.model.encode(embedded, self.lengths)
        self.count = len(sentences)
        each = torch.arange(self.count, device=device).repeat_interleave(self.width)
        self.encoded = encoded.select(each)
        self.visible = self.lengths[each][:, None]
        self.limit = length_limit(self.lengths)  # [B]
        layers = self.model.config.decoder_layers
        self.caches = self.model.new_caches(layers, len(each), int(self.limit.max()) + 1)
        self.rows = Rows.of(range(len(each)), device)
        self.tokens = torch.full((len(each), 1), BOS, device=device)  # [B * W, 1 + written]
        # All beams of a sentence are equal at the start, so the first step uses only one of them.
        self.scores = torch.full((self.count, self.width), -torch.inf, device=device)
        self.scores[:, 0] = 0
        self.best: list[tuple[float, list[int], bool]] = [(-torch.inf, [], False)] * self.count
        self.ended = [0] * self.count
        self.done = [False] * self.count
        self.source_info = None if embedded.info is None else embedded.info.cpu().tolist()

    @property
    def unfinished(self) -> bool:
        return not all(self.done)

    def advance(self) -> None:
        written = self.tokens.shape[1] - 1
        at = torch.full((len(self.tokens), 1), written, device=self.tokens.device)
        target = self.model.embed_target(self.tokens[:, -1:], at)
        position = CachePosition(self.rows, at, written + 1)
        decoded = self.model.step(target, self.encoded, self.visible, self.caches, position)
        logp = self.model.logits(decoded.states[:, -1]).float().log_softmax(-1)
        logp[:, PAD] = logp[:, BOS] = -torch.inf
        totals = (self.scores.flatten()[:, None] + logp).view(self.count, -1)
        # At most W candidates are end-of-sentence, so at least W of these 2W continue.
        scores, indices = totals.topk(2 * self.width)
        self._continue(scores, indices, logp.shape[1], written + 1)

    def _continue(self, scores: Tensor, indices: Tensor, size: int, length: int) -> None:
        beams, tokens = indices // size, indices % size
        ends = tokens == EOS
        self._finish(scores, beams, ends, length)
        alive, order = scores.masked_fill(ends, -torch.inf).topk(self.width)
        self.scores = alive
        offset = torch.arange(self.count, device=beams.device)[:, None] * self.width
        rows = (beams.gather(1, order) + offset).flatten()
        chosen = tokens.gather(1, order).flatten()
        self.tokens = torch.cat([self.tokens[rows], chosen[:, None]], 1)
        for cache in self.caches:
            cache.reorder(rows)
        self._close(length)

    def _finish(self, scores: Tensor, beams: Tensor, ends: Tensor, length: int) -> None:
        """Count the ended candidates among the W best of each sentence, and keep the best one."""
        for row, column in ends[:, : self.width].nonzero().tolist():
            if self.done[row]:
                continue
            self.ended[row] += 1
            score = float(scores[row, column]) / length**self.penalty
            if score > self.best[row][0]:
                beam = row * self.width + int(beams[row, column])
                self.best[row] = (score, self.tokens[beam, 1:].tolist(), True)

    def _close(self, length: int) -> None:
        """Mark sentences as done when W translations have ended, or at the length limit."""
        for row, limit in enumerate(self.limit.tolist()):
            if not self.done[row] and (self.ended[row] >= self.width or length >= limit):
                self.done[row] = True
                if not self.best[row][2]:
                    self.best[row] = (0.0, self.tokens[row * self.width, 1:].tolist(), False)

    def hypotheses(self) -> list[Hypothesis]:
        found = []
        for row, (_, tokens, ended) in enumerate(self.best):
            n = int(self.lengths[row])
            info = [] if self.source_info is None else self.source_info[row][:n]
            found.append(Hypothesis(tokens, [n] * (len(tokens) + ended), n, info, [], ended))
        return found

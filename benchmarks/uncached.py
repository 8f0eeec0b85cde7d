"""Decoding that recomputes the whole prefix at every step, as published implementations do."""

from __future__ import annotations

import torch

from waitinfo.model import Transformer
from waitinfo.text.special import BOS, EOS, PAD


class Uncached:
    """Decoding without caches: every step recomputes the source prefix and the target."""

    def __init__(self, model: Transformer) -> None:
        self.model = model

    def _row(self, tokens: list[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self.model.device)

    @torch.inference_mode()
    def step(self, read: list[int], written: list[int], path: list[int]) -> int:
        """The best next token."""
        model = self.model
        encoded = model.encode(model.embed_source(self._row(read)), self._row([len(read)])[0])
        target = model.embed_target(self._row([BOS, *written]))
        decoded = model.decode(target, encoded, self._row(path))
        logits = model.logits(decoded.states[:, -1])
        logits[:, [PAD, BOS]] = -torch.inf
        return int(logits.argmax(-1))


def uncached_sentence(
    model: Transformer, source: list[int], k: int, count: int, reads: bool
) -> None:
    """Wait-k without caches. With `reads`, every READ also recomputes everything, to decide."""
    reference = Uncached(model)
    tokens, written, path = [*source, EOS], [], []
    read = 0
    while len(written) < count:
        if read < min(k + len(written), len(tokens)):
            read += 1
            if reads:
                reference.step(tokens[:read], written, [*path, read])
            continue
        path.append(read)
        written.append(reference.step(tokens[:read], written, path))

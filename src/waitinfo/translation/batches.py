"""Batches of sentences of similar length, within what a device can compute at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from waitinfo.errors import WaitinfoError
from waitinfo.model.transformer import Transformer

# Rows of a batch by device. More rows than this make a step slower, not a token faster.
ROWS = {"cpu": 128, "cuda": 4096}
TOKENS = {"cpu": 8192, "cuda": 262_144}  # source tokens of a batch, padding counted
MEMORY_SHARE = 0.5  # of the free memory of a GPU; the rest is for activations and copies


@dataclass(frozen=True)
class Budget:
    """The size of a batch: at most `rows` rows, and `tokens` source tokens with their padding."""

    rows: int
    tokens: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.tokens < 1:
            raise WaitinfoError(f"a batch of {self.rows} rows: must be at least 1")

    @classmethod
    def for_model(cls, model: Transformer, rows: int | None = None) -> Budget:
        """The budget of a model's device, with another number of rows if it is given."""
        kind = model.device.type if model.device.type in ROWS else "cpu"
        rows = ROWS[kind] if rows is None else rows
        tokens = max(TOKENS[kind], 32 * rows)
        if kind == "cuda":
            free, _ = torch.cuda.mem_get_info(model.device)
            unused = torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(
                model.device
            )
            tokens = min(tokens, int(MEMORY_SHARE * (free + unused)) // bytes_per_token(model))
        return cls(rows, max(1, tokens))

    def halved(self) -> Budget:
        return Budget(max(1, self.rows // 2), max(1, self.tokens // 2))

    def shared(self, models: int) -> Budget:
        """The budget where several models keep their caches."""
        return Budget(self.rows, max(1, self.tokens // models))

    def batches(self, lengths: Sequence[int], copies: int = 1) -> Iterator[list[int]]:
        """Indices of sentences, longest first, in batches; every sentence takes `copies` rows."""
        order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
        start = 0
        while start < len(order):
            # The first sentence is the longest; one more token is end-of-sentence.
            rows = min(self.rows, self.tokens // (lengths[order[start]] + 1)) // copies
            yield order[start : start + max(1, rows)]
            start += max(1, rows)


def bytes_per_token(model: Transformer) -> int:
    """Memory for one source token of a row: its keys and values, and those of its translation.

    A translation may be twice as long as its source, and growing caches are copied.
    """
    config = model.config
    size = torch.empty(0, dtype=model.dtype).element_size()
    return size * (2 * config.width * config.decoder_layers * (1 + 3) + 4 * config.ffn)

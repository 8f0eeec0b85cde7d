"""Sums of losses between two lines of the display."""

from __future__ import annotations

import torch
from torch import Tensor

from waitinfo.training.distributed import ProcessGroup


class Tally:
    """What was computed since the last line; skipped updates count for speed alone."""

    def __init__(self, now: float) -> None:
        self.clear(now)

    def clear(self, now: float) -> None:
        self.sums: dict[str, Tensor] = {}
        self.tokens = self.updates = 0  # of all processes
        self.began = now  # seconds

    def add(self, losses: dict[str, Tensor], used: Tensor, tokens: int) -> None:
        """An update's losses, the tokens they are sums over, and the tokens of all processes."""
        for name, value in (*losses.items(), ("tokens", used)):
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.tokens += tokens
        self.updates += 1

    def means(self, processes: ProcessGroup) -> dict[str, float] | None:
        """Losses a token over all processes; None if every update was skipped."""
        names = sorted(self.sums)
        sums = torch.stack([self.sums[name].double() for name in names])
        totals = dict(zip(names, processes.total(sums).tolist(), strict=True))
        tokens = totals.pop("tokens")
        return {name: total / tokens for name, total in totals.items()} if tokens else None

"""Several processes, started by torchrun: one model, gradients averaged by torch itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from waitinfo.errors import WaitinfoError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run, and which of them this is."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all processes."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def agree(self, value: float) -> float:
        """The first process's value, everywhere."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise WaitinfoError(
            f"training.device {name}: unknown; use auto, cpu, cuda or cuda:N"
        ) from None
    try:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", local_rank)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise WaitinfoError(f"training.device {name}: cannot be used ({reason})") from None
    return device


@contextmanager
def join_processes(device_name: str) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = pick_device(device_name, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield ProcessGroup(device=device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield ProcessGroup(dist.get_rank(), size, device)
    finally:
        dist.destroy_process_group()


class Tally:
    """Sums of losses since the last line of the display; skipped updates count for speed alone."""

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

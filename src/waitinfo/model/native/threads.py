"""Rows divided among threads: compiled code runs without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

LEAST_ROWS = 8  # fewer are not divided: each thread reads all weights
MOST_ROWS = 256


def divide(count: int, rows: NDArray[np.int32] | None = None) -> list[slice]:
    """Parts of `count` rows for each of torch's threads; equal `rows` stay together.

    Parts have at most about MOST_ROWS, whose numbers fit into a cache.
    """
    if count < LEAST_ROWS:
        return [slice(0, count)]
    parts = max(torch.get_num_threads(), -(-count // MOST_ROWS))
    ends = [count * (i + 1) // parts for i in range(parts)]
    if rows is not None:
        starts = np.flatnonzero(np.diff(rows)) + 1  # where another row begins
        places = np.append(starts, count)
        ends = [int(places[np.searchsorted(places, end)]) for end in ends]
    bounds = sorted({0, *ends})
    return [slice(a, b) for a, b in pairwise(bounds)]


def run(parts: list[slice], compute: Callable[[slice], None]) -> None:
    """Compute all parts, on this thread and others."""
    if len(parts) == 1:
        compute(parts[0])
        return
    waiting = iter(parts)

    def work() -> None:
        for part in waiting:
            compute(part)

    others = min(torch.get_num_threads(), len(parts)) - 1
    running = [_pool(others).submit(work) for _ in range(others)]
    try:
        work()
    finally:
        for other in running:
            other.result()


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="waitinfo-kernels")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child process has no other threads

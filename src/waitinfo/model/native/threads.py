"""Rows divided among threads: compiled code runs without Python's lock."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

LEAST_ROWS = 8  # fewer are not divided: each thread reads all weights


def divide(count: int, rows: NDArray[np.int32] | None = None) -> list[slice]:
    """Parts of `count` rows, one for each of torch's threads; equal `rows` stay together."""
    threads = torch.get_num_threads()
    if threads == 1 or count < LEAST_ROWS:
        return [slice(0, count)]
    ends = [count * (i + 1) // threads for i in range(threads)]
    if rows is not None:
        starts = np.flatnonzero(np.diff(rows)) + 1  # where another row begins
        places = np.append(starts, count)
        ends = [int(places[np.searchsorted(places, end)]) for end in ends]
    bounds = sorted({0, *ends})
    return [slice(a, b) for a, b in pairwise(bounds)]


def run(parts: list[slice], compute: Callable[[slice], None]) -> None:
    """Compute all parts, the first on this thread."""
    others = [_pool(len(parts) - 1).submit(compute, part) for part in parts[1:]]
    compute(parts[0])
    for other in others:
        other.result()


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="waitinfo-kernels")

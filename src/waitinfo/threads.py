"""How many CPU threads compute: one number for compiled code and, where it is loaded, for torch."""

from __future__ import annotations

import os
import sys
from typing import Any

_chosen = 0


def usable_cores() -> int:
    """Cores that this process may run on: containers and `taskset` allow fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count() -> int:
    """Threads that compute now."""
    if (torch := _torch()) is not None:
        return torch.get_num_threads()  # type: ignore[no-any-return]
    if _chosen:
        return _chosen
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) else usable_cores()


def set_thread_count(count: int) -> None:
    """Compute with this many threads."""
    global _chosen  # noqa: PLW0603 (it is the process's)
    _chosen = count
    tell_torch()


def tell_torch() -> None:
    """If torch is loaded, it computes with as many threads as were chosen before."""
    global _chosen  # noqa: PLW0603
    if _chosen and (torch := _torch()) is not None:
        torch.set_num_threads(_chosen)
        _chosen = 0


def _torch() -> Any:
    found = sys.modules.get("torch")
    return found if hasattr(found, "get_num_threads") else None  # it may be loading just now

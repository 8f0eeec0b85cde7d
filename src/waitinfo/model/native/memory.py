"""Memory for weights, in large pages where the system has them.

One pass reads every weight once. With pages of 4 KB a processor spends more time looking up pages
than reading them: on a virtual machine, weights in pages of 2 MB are read twice as fast.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

PAGE = 2**21  # bytes of a large page
CHUNK = 8 * PAGE  # taken from the system at a time
ALIGNMENT = 64


class _Chunks:
    """Hands out pieces of large blocks; a block is freed when all of its pieces are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest: NDArray[np.uint8] = np.empty(0, np.uint8)

    def take(self, size: int) -> NDArray[np.uint8]:
        size = -(-size // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if size > len(self._rest):
                self._rest = _new_chunk(max(size, CHUNK))
            taken, self._rest = self._rest[:size], self._rest[size:]
            return taken


def _new_chunk(size: int) -> NDArray[np.uint8]:
    """At least so many bytes, from the start of a large page on."""
    if os.name == "nt":
        return np.empty(size, np.uint8)
    # Private memory: what is shared between processes may not get large pages.
    room = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # the system was built without large pages
            room.madvise(mmap.MADV_HUGEPAGE)
    everything = np.frombuffer(room, np.uint8)
    start = -everything.ctypes.data % PAGE
    return everything[start : start + size]


_chunks = _Chunks()


def weight_memory(size: int) -> NDArray[np.int8]:
    """An array of so many bytes that starts at a multiple of 64 bytes."""
    return _chunks.take(size)[:size].view(np.int8)


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it for later."""
    if os.name != "nt" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)

"""Weights in the order that the kernels read them in, in memory of large pages."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.model.native.library import Embedding, Library, Linear, address, divide, run
from waitinfo.text.special import BOS

if TYPE_CHECKING:
    from waitinfo.model.integers.info import ArrayInfo
    from waitinfo.model.integers.matrix import IntegerEmbedding
    from waitinfo.model.integers.packing import Preparation

# Memory

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
    """At least `size` bytes that start where a large page starts."""
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
    """An array of `size` bytes that starts at a multiple of 64 bytes."""
    return _chunks.take(size)[:size].view(np.int8)


def return_freed_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it for later."""
    if os.name != "nt" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


# Matrices


class NativeMatrix:
    """Integers [out, in] with a factor and a bias per output; see `IntegerMatrix`."""

    def __init__(
        self,
        code: Library,
        weight: NDArray[np.int8],
        factor: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        positive: bool = False,
        prepared: Preparation | None = None,
    ) -> None:
        self.code = code
        outputs, inputs = weight.shape
        self._prepared = [] if prepared is None else _arrays(prepared)
        repeated = None if prepared is None else self._prepared[2]
        repeats = 0 if repeated is None else len(repeated)
        size = code.code.waitinfo_packed_size(outputs, inputs + repeats)
        self.weights = weight_memory(size)
        # An address keeps no array alive: these may be copies.
        plain, *scaling = (
            None if part is None else np.ascontiguousarray(part) for part in (weight, factor, bias)
        )
        groups = code.code.waitinfo_pack(
            address(plain), outputs, inputs, address(repeated), repeats, int(positive),
            *map(address, scaling), address(self.weights),
        )  # fmt: skip
        self.linear = Linear(
            self.weights.ctypes.data, inputs, outputs, groups, positive,
            *(array.ctypes.data for array in self._prepared),
        )  # fmt: skip
        self.linear.repeats = repeats

    def __call__(self, x: NDArray[np.float32], whole: bool = False) -> NDArray[np.float32]:
        """x W^T + b for rows x [R, in]; `whole`: of whole numbers, which are not scaled."""
        rows = np.ascontiguousarray(x, np.float32)
        result = np.empty((len(rows), self.linear.outputs), np.float32)
        pointer = ctypes.byref(self.linear)

        def compute(part: slice) -> None:
            self.code.call(
                "waitinfo_linear", pointer, len(rows[part]), address(rows[part]),
                address(result[part]), int(whole),
            )  # fmt: skip

        run(divide(len(rows)), compute)
        return result

    def best(
        self, rows: NDArray[Any], never: NDArray[np.int32], scores: bool, two_best: bool = False
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """The best output of every row [R, in] but those in `never`, and its score.

        If asked for, all scores, and the probabilities [R, 2] of the two best.
        """
        count = len(rows)
        best, value = np.empty(count, np.int32), np.empty(count, np.float32)
        everything = np.empty((count, self.linear.outputs), np.float32) if scores else None
        two = np.empty((count, 2)) if two_best else None

        def compute(part: slice) -> None:
            numbers = (best, value, everything, two)
            some = [address(None if array is None else array[part]) for array in numbers]
            self.code.call(
                "waitinfo_best", ctypes.byref(self.linear), len(rows[part]), address(rows[part]),
                address(never), len(never), *some,
            )  # fmt: skip

        run(divide(count), compute)
        return best.astype(np.int64), value, everything, two


def _arrays(prepared: Preparation) -> list[NDArray[Any]]:
    """In the order of `Linear`."""
    arrays = (prepared.center, prepared.share, prepared.repeated, prepared.before)
    return [np.ascontiguousarray(array) for array in arrays]


# Embeddings


class NativeEmbedding:
    """An embedding of integers, and the info of its tokens.

    It holds addresses of the modules' weights, and so belongs to their model.
    """

    def __init__(self, code: Library, embedding: IntegerEmbedding, info: ArrayInfo | None) -> None:
        self.code, self.has_info = code, info is not None
        table, hidden, out = None, Linear(), None
        if info is not None:
            table, hidden, out = info.native()
        width = embedding.weight.shape[1]
        given = (embedding.weight, embedding.scale.ravel(), table, out)
        arrays = [None if array is None else np.ascontiguousarray(array) for array in given]
        self._kept = (*arrays, info)
        self.width = width
        self.embedding = Embedding(*map(address, arrays), hidden, width, BOS, math.sqrt(width))

    def __call__(
        self, tokens: NDArray[Any], at: NDArray[Any], table: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Tokens [B, T] at positions [B, T] -> [B, T, d], and their info [B, T]."""
        shape = tokens.shape
        flat, places = (part.reshape(-1).astype(np.int32) for part in (tokens, at))
        x = np.empty((len(flat), self.width), np.float32)
        info = np.empty(len(flat), np.float32) if self.has_info else None
        positions = address(table)

        def compute(part: slice) -> None:
            some = None if info is None else info[part]
            self.code.call(
                "waitinfo_embed", ctypes.byref(self.embedding), len(flat[part]),
                address(flat[part]), address(places[part]), 0, positions, address(x[part]),
                address(some),
            )  # fmt: skip

        run(divide(len(flat)), compute)
        return x.reshape(*shape, -1), None if info is None else info.reshape(shape)

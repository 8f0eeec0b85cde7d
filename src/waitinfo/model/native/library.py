"""The compiled kernels, if they were built for this machine; see kernels.c.

They are optional. A wheel brings them, and installing from source builds them where there is a C
compiler; without them the same arithmetic is done by NumPy (`model.integers`), more slowly.
"""

from __future__ import annotations

import ctypes
import os
import warnings
import zlib
from collections.abc import Callable
from ctypes import (
    POINTER,
    Structure,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint32,
    c_void_p,
    sizeof,
)
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.threads import thread_count

if TYPE_CHECKING:  # what sentences of a word need starts sooner
    from concurrent.futures import ThreadPoolExecutor

SWITCH = "WAITINFO_NATIVE"  # 0: do without; one of KINDS: use this kind of code
JUDGED = 32  # as in types.h
KINDS = ("plain", "avx2", "avxvnni", "avx512", "amx", "sdot", "i8mm")  # later ones are faster
BUILD = "python setup.py build_ext --inplace --force"
KEYS = 16  # of a vector; capacities are filled up to a multiple
MOST_WIDTH = 256  # of a head


class Linear(Structure):
    _fields_ = (
        ("weights", c_void_p), ("inputs", c_int32), ("outputs", c_int32), ("groups", c_int32),
        ("positive", c_int32),
        ("center", c_void_p), ("share", c_void_p), ("repeated", c_void_p), ("before", c_void_p),
        ("repeats", c_int64),
    )  # fmt: skip


class Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p), ("eps", c_double))


class Layer(Structure):
    _fields_ = (
        ("project", Linear), ("out", Linear), ("queries", Linear), ("cross_out", Linear),
        ("inner", Linear), ("outer", Linear), ("norm_attention", Norm), ("norm_cross", Norm),
        ("norm_feed_forward", Norm), ("round_values", c_float),
    )  # fmt: skip


class Model(Structure):
    _fields_ = (
        ("width", c_int32), ("heads", c_int32), ("encoder_layers", c_int32),
        ("decoder_layers", c_int32), ("before", c_int32), ("recurrent", c_int32),
        ("swish", c_int32), ("encoder", POINTER(Layer)),
        ("decoder", POINTER(Layer)), ("encoder_norm", Norm), ("decoder_norm", Norm),
        ("memory", Linear), ("round_memory", c_void_p),
    )  # fmt: skip


class Embedding(Structure):
    _fields_ = (
        ("weight", c_void_p), ("scale", c_void_p), ("table", c_void_p), ("out", c_void_p),
        ("hidden", Linear), ("width", c_int32), ("begin", c_int32), ("factor", c_float),
    )  # fmt: skip


class Cache(Structure):
    _fields_ = (
        ("keys", c_void_p), ("values", c_void_p), ("units", c_void_p),
        ("keys_capacity", c_int64), ("values_capacity", c_int64),
    )  # fmt: skip


class Reading(Structure):
    _fields_ = (
        ("model", POINTER(Model)), ("embedding", POINTER(Embedding)), ("positions", c_void_p),
        ("caches", POINTER(Cache)), ("memories", POINTER(Cache)), ("token", c_void_p),
        ("row", c_void_p), ("at", c_void_p), ("x", c_void_p), ("info", c_void_p),
        ("finite", c_void_p), ("source_info", c_void_p), ("received", c_void_p),
        ("source_width", c_int32), ("received_width", c_int32), ("aware", c_int32),
    )  # fmt: skip


class Writing(Structure):
    _fields_ = (
        ("model", POINTER(Model)), ("scores", POINTER(Linear)), ("embedding", POINTER(Embedding)),
        ("positions", c_void_p), ("caches", POINTER(Cache)), ("memories", POINTER(Cache)),
        ("next_x", c_void_p), ("next_info", c_void_p), ("read", c_void_p), ("written", c_void_p),
        ("source_info", c_void_p), ("never", c_void_p), ("row", c_void_p), ("at", c_void_p),
        ("visible", c_void_p), ("bias", c_void_p), ("x", c_void_p), ("info", c_void_p),
        ("token", c_void_p), ("value", c_void_p), ("scored", c_void_p), ("embedded_x", c_void_p),
        ("embedded_info", c_void_p), ("two", c_void_p), ("shares", c_void_p),
        ("nevers", c_int32), ("aware", c_int32), ("source_width", c_int32),
        ("shares_width", c_int32),
    )  # fmt: skip


class Judge(Structure):
    _fields_ = (
        ("weights", c_void_p), ("bias", c_void_p), ("out", c_void_p),
        ("width", c_int32), ("numbers", c_int32), ("room", c_int32),
    )  # fmt: skip


STRUCTS = (Model, Layer, Embedding, Reading, Writing, Judge)


class Library:
    """The functions of kernels.c for one kind of code."""

    def __init__(self, path: Path, kind: str | None = None) -> None:
        self.code = ctypes.CDLL(str(path))
        stamp: Any = getattr(self.code, "waitinfo_sources", lambda: None)  # older code has none
        stamp.restype = c_uint32
        if stamp() != source_stamp() or self.code.waitinfo_layout() != sum(map(sizeof, STRUCTS)):
            raise ValueError(f"built from other sources; build it again: {BUILD}")
        self.code.waitinfo_packed_size.restype = c_int64
        numbers = range(len(KINDS))
        self.kinds = [KINDS[number] for number in numbers if self.code.waitinfo_runs(number)]
        if kind is not None and kind not in self.kinds:
            raise ValueError(f"this CPU cannot run {kind}")
        self.kind = KINDS.index(kind or self.kinds[-1])

    def call(self, name: str, *arguments: object) -> None:
        if not getattr(self.code, name)(self.kind, *arguments):
            raise MemoryError(name)


def source_stamp() -> int:
    """A checksum of the C code beside this file; setup.py compiles the same one in."""
    sources = sorted(Path(__file__).parent.glob("*.[ch]"))
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))


@lru_cache(maxsize=1)
def find_kernels() -> Library | None:
    """The kernels for this CPU; None where they were not built, or are only plain C."""
    wanted = os.environ.get(SWITCH)
    found = sorted(Path(__file__).parent.glob("_kernels*.so"))
    if wanted == "0" or not found:
        return None
    try:
        loaded = Library(found[-1], wanted if wanted in KINDS else None)
    except (OSError, ValueError) as error:
        message = f"the compiled code is not used, which is slower: {found[-1]}: {error}"
        warnings.warn_explicit(message, RuntimeWarning, "waitinfo", 1)
        return None
    return loaded if loaded.kind > 0 or wanted == KINDS[0] else None


def address(array: NDArray[np.generic] | None) -> c_void_p:
    """The address of a contiguous array, or NULL."""
    if array is None:
        return c_void_p(None)
    assert array.flags.c_contiguous
    return c_void_p(array.ctypes.data)


# Threads: compiled code runs without Python's lock

LEAST_ROWS = 8  # fewer are not divided: each thread reads all weights
MOST_ROWS = 256


def divide(count: int, rows: NDArray[np.int32] | None = None) -> list[slice]:
    """Parts of `count` rows for each thread; equal `rows` stay together.

    Parts have at most about MOST_ROWS, whose numbers fit into a cache.
    """
    if count < LEAST_ROWS:
        return [slice(0, count)]
    parts = max(thread_count(), -(-count // MOST_ROWS))
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

    others = min(thread_count(), len(parts)) - 1
    running = [_pool(others).submit(work) for _ in range(others)]
    try:
        work()
    finally:
        for other in running:
            other.result()


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="waitinfo-kernels")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child process has no other threads

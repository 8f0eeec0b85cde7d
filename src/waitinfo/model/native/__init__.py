"""Integer models computed by compiled code: the same numbers as by torch, several times as fast.

`kernels` finds the compiled code, `matrices` holds weights in their order, `embedding` and `model`
run passes, and `passes` those of an engine, with little in Python.
"""

from waitinfo.model.native.embedding import NativeEmbedding
from waitinfo.model.native.kernels import KINDS, SWITCH, Library, find_kernels
from waitinfo.model.native.matrices import NativeMatrix
from waitinfo.model.native.model import NativeCaches, NativeModel
from waitinfo.model.native.passes import NativeReading, NativeWriting, Side

__all__ = [
    "KINDS",
    "SWITCH",
    "Library",
    "NativeCaches",
    "NativeEmbedding",
    "NativeMatrix",
    "NativeModel",
    "NativeReading",
    "NativeWriting",
    "Side",
    "find_kernels",
]

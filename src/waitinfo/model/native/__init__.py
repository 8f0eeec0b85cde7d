"""Integer models computed by compiled code: the same numbers as by torch, several times as fast.

`library` finds the compiled code, `weights` holds weights in its order, `model` runs passes, and
`passes` those of an engine, with little in Python.
"""

from waitinfo.model.native.library import KINDS, SWITCH, Library, find_kernels
from waitinfo.model.native.model import NativeCaches, NativeModel
from waitinfo.model.native.passes import NativeReading, NativeWriting, Side
from waitinfo.model.native.weights import NativeEmbedding, NativeMatrix

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

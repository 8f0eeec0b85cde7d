"""Integer models computed by compiled code: the same numbers as by torch, several times as fast.

`library` finds the kernels, `matrices` holds weights in their order, `model` runs whole passes.
"""

from waitinfo.model.native.library import KINDS, SWITCH, library
from waitinfo.model.native.matrices import NativeMatrix
from waitinfo.model.native.model import NativeCaches, NativeModel

__all__ = ["KINDS", "SWITCH", "NativeCaches", "NativeMatrix", "NativeModel", "library"]

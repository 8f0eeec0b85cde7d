"""Models computed with integers, and compiled code for them, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from waitinfo.model import native
from waitinfo.model.integers.measuring import with_integers as integers

FOUND = sorted(Path(native.__file__).parent.glob("_kernels*.so"))
NEEDS_KERNELS = pytest.mark.skipif(not FOUND, reason="the kernels were not built: no C compiler")

__all__ = ["FOUND", "NEEDS_KERNELS", "integers"]

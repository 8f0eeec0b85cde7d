"""Models computed with integers, and compiled code for them, for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from waitinfo.model import Transformer, native
from waitinfo.model.integers.conversion import IntegerTransformer, integer_model
from waitinfo.model.integers.packing import measure_inputs, quantize

FOUND = sorted(Path(native.__file__).parent.glob("_kernels*.so"))
NEEDS_KERNELS = pytest.mark.skipif(not FOUND, reason="the kernels were not built: no C compiler")


def integers(model: Transformer, prepared: bool = False) -> IntegerTransformer:
    weights = {name: tensor.float() for name, tensor in model.weights().items()}
    inputs = measure_inputs(model) if prepared else {}
    return integer_model(model.config, {**quantize(weights), **inputs})

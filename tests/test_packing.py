"""Weights as integers, prepared inputs of their products, and that every way computes the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import tiny_config
from tests.integers import FOUND, NEEDS_KERNELS
from waitinfo.model import Transformer
from waitinfo.model.integers import matrix as products
from waitinfo.model.integers.matrix import IntegerLinear
from waitinfo.model.integers.measuring import CENTER_STEP, REPEATS, measure_inputs
from waitinfo.model.integers.packing import (
    CENTER,
    REPEATED,
    Preparation,
    Rounding,
    dequantize,
    quantize,
)
from waitinfo.model.native import KINDS, NativeMatrix
from waitinfo.model.native.library import Library


def test_rounding_error_is_at_most_half_a_step() -> None:
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((5, 40)) * np.array([[1e-4], [1], [1e3], [0], [1e-30]])
    weights = {"m": matrix.astype(np.float32), "b": np.arange(7, dtype=np.float32)}
    stored = quantize(weights)
    assert stored["m"].dtype == np.int8 and stored["b"] is weights["b"]
    back = dequantize(stored)
    assert back.keys() == weights.keys()
    step = np.abs(weights["m"]).max(1, keepdims=True) / 127
    assert (np.abs(back["m"] - weights["m"]) <= step / 2 * 1.001 + 1e-37).all()
    # By hand: the largest value is 127 steps, a third of it is 42.
    assert quantize({"m": np.array([[3.0, -1.0]])})["m"].tolist() == [[127, -42]]


def prepared(center: list[float], repeated: list[int]) -> Preparation:
    return Preparation(np.array(center, np.float32), np.array(repeated, np.int32))


def test_by_hand() -> None:
    """Inputs 5, 11 and 1 less 1 are 4, 10 and 0; the second comes three times, so 4 is largest."""
    how = prepared([1.0, 1.0, 1.0], [1, 1])
    assert how.share.tolist() == pytest.approx([1, 1 / 3, 1])
    assert how.before.tolist() == [127, 254]
    rows = np.array([[5.0, 11.0, 1.0], [1.0, -11.0, 0.0]], np.float32)
    whole, largest = Rounding(127, how)(rows, 1e-30)
    # 10 is 317.5 steps of 4 / 127, to even 318 = 127 + 127 + 64; -12 is all that three bytes hold.
    assert whole.tolist() == [[127, 127, 0, 127, 64], [0, -127, -32, -127, -127]]
    assert largest.flatten().tolist() == [4, 4]


rows_of_inputs = st.tuples(
    st.integers(1, 70), st.integers(1, 40), st.integers(0, 8), st.integers(0, 10**6)
)


@given(rows_of_inputs)
def test_a_product_is_near_that_of_float64(sizes: tuple[int, int, int, int]) -> None:
    """Off by at most half a step in every input, also where few inputs are by far the largest."""
    outputs, inputs, repeats, seed = sizes
    draw = np.random.default_rng(seed)
    how = drawn(draw, inputs, repeats)
    stored = quantize({"w": normal(draw, outputs, inputs)})
    weight, scale, bias = stored["w"], stored["w:scale"], normal(draw, outputs)
    x = how.center + normal(draw, 5, inputs) / how.share
    found = IntegerLinear(weight, scale, bias, prepared=how)(x)
    matrix = weight.astype(float) * scale.astype(float)[:, None]
    right = x.astype(float) @ matrix.T + bias
    step = np.abs((x - how.center) * how.share).max(1, keepdims=True).astype(float) / 127
    allowed = step / 2 * np.abs(matrix).sum(1) + 1e-4 * (1 + np.abs(right))
    assert (np.abs(found - right) <= allowed).all()


def normal(draw: np.random.Generator, *shape: int) -> np.ndarray:
    return draw.standard_normal(shape).astype(np.float32)


def drawn(draw: np.random.Generator, inputs: int, repeats: int) -> Preparation:
    some = draw.integers(0, inputs, min(repeats, inputs)).astype(np.int32)
    center = (normal(draw, inputs) * 3 / CENTER_STEP).round() * CENTER_STEP
    return Preparation(center.astype(np.float32), some)


@NEEDS_KERNELS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "inputs", "repeats"), [(5, 3, 2), (70, 18, 4), (130, 384, 9)])
def test_kernels_give_the_bits_of_numpy(
    kind: str, outputs: int, inputs: int, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        code = Library(FOUND[-1], kind)
    except ValueError:
        pytest.skip(f"this CPU has no {kind}")
    monkeypatch.setattr(products, "find_kernels", lambda: None)
    draw = np.random.default_rng(inputs)
    how = drawn(draw, inputs, repeats)
    weight = draw.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    scale = draw.random(outputs).astype(np.float32)
    plain = IntegerLinear(weight, scale, normal(draw, outputs), prepared=how)
    x = how.center + normal(draw, 200, inputs) / how.share * 10 ** normal(draw, 200, 1)
    x[0], x[1], x[2, 0] = how.center, 0, np.nan
    native = NativeMatrix(code, weight, plain.factor, plain.bias, False, how)
    found, right = native(x), plain(x)
    numbers = [0, 1, *range(3, 200)]
    assert np.array_equal(found[numbers], right[numbers])
    assert np.isnan(found[2]).all() and np.array_equal(native(x[5:6])[0], found[5])
    best, value, scores, _ = native.best(x[3:], np.array([], np.int32), True)
    assert (scores == found[3:]).all()
    assert (best == found[3:].argmax(1)).all()
    assert (value == found[3:].max(1)).all()


def test_measured_inputs() -> None:
    """An input that a norm makes large in all rows is centered and comes again."""
    torch.manual_seed(1)
    model = Transformer(tiny_config(norm="post")).eval()
    norm = model.encoder_layers[0].around_attention.norm
    norm.bias.data[3], norm.weight.data[5] = 40.0, 30.0
    found = measure_inputs(model)
    name = "encoder_layers.0.feed_forward.inner.weight"
    assert abs(found[name + CENTER][3] - 40) < 2 and abs(found[name + CENTER][5]) < 20
    assert found[name + REPEATED].tolist() == [5] * REPEATS
    units = found[name + CENTER] / CENTER_STEP
    assert torch.equal(units, units.round())
    assert all(not module._forward_pre_hooks for module in model.modules())
    matrices = {key.removesuffix(CENTER) for key in found if key.endswith(CENTER)}
    layers = {name for name in model.weights() if "_layers." in name and name.endswith("weight")}
    products = {name for name in layers if "norm" not in name and "forward.out" not in name}
    assert matrices == products | {"source_embedding.weight" if model.config.joint else
                                   "target_embedding.weight"}  # fmt: skip
    assert measure_inputs(Transformer(tiny_config(cross_attention="mma")).eval()) == {}

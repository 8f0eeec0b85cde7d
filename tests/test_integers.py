"""Models computed with integers: exact products, the same result in any company."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import NAMES, build, sentences, trickle
from tests.integers import integers
from tests.oracle import dial_near, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.model import layers
from waitinfo.model.attention import cross_attention
from waitinfo.model.info import cross_bias
from waitinfo.model.integers import exact
from waitinfo.model.integers import matrix as products
from waitinfo.model.integers.crosses import SPECIAL
from waitinfo.model.integers.in_torch import as_arrays, in_torch
from waitinfo.model.integers.matrix import IntegerEmbedding, IntegerLinear
from waitinfo.model.integers.model import sinusoids
from waitinfo.model.integers.packing import quantize
from waitinfo.model.views import SourceView
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model, save_model


def linear(outputs: int, inputs: int, bias: bool = True) -> tuple[IntegerLinear, np.ndarray]:
    """An integer map, and the matrix it stands for."""
    draw = np.random.default_rng(outputs)
    stored = quantize({"w": draw.standard_normal((outputs, inputs)).astype(np.float32)})
    shift = draw.standard_normal(outputs).astype(np.float32) if bias else None
    found = IntegerLinear(stored["w"], stored["w:scale"], shift)
    return found, stored["w"].astype(float) * stored["w:scale"].astype(float)[:, None]


# Products


@pytest.mark.parametrize("inputs", [8, 64, 2048])
@pytest.mark.parametrize("rows", [1, 5, 60])
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("positive", [False, True])
def test_products_are_exact(
    inputs: int, rows: int, native: bool, positive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against int64, at the largest sums there can be too; by compiled code and by NumPy."""
    if not native:
        monkeypatch.setattr(products, "find_kernels", lambda: None)
    elif products.find_kernels() is None:
        pytest.skip("the kernels were not built, or not for this CPU")
    draw = np.random.default_rng(inputs)
    left = draw.integers(0, 256, (rows, inputs)) - (0 if positive else 128)
    left = left.clip(0 if positive else -127)
    weight = draw.integers(-127, 128, (24, inputs)).astype(np.int8)
    left[0], weight[0] = left.max(), 127
    left[-1], weight[1] = left.min(), -127
    factor = draw.random(24).astype(np.float32)
    matrix = products.IntegerMatrix(weight, factor, None, positive)
    found = matrix.multiply(left.astype(np.float32))
    assert np.array_equal(found, (left @ weight.astype(int).T).astype(np.float32) * factor)


def test_a_row_is_rounded_to_its_own_scale() -> None:
    """By hand: inputs 1, -0.5 and 0.1 of a row whose largest is 1 are 127, -64 (63.5) and 13."""
    identity = IntegerLinear(np.eye(3, dtype=np.int8), np.ones(3, np.float32), None)
    found = identity(np.array([[1.0, -0.5, 0.1], [1000.0, -500.0, 100.0], [0.0, 0.0, 0.0]]))
    steps = np.array([127, -64, 13]) / 127
    assert np.allclose(found, [steps, 1000 * steps, np.zeros(3)], rtol=1e-6)


def test_a_map_is_near_the_one_it_stands_for() -> None:
    found, matrix = linear(30, 64)
    x = np.random.default_rng(1).standard_normal((7, 3, 64)).astype(np.float32)
    right = x.astype(float) @ matrix.T + found.bias
    # A row is off by at most half a step of its own in every input.
    step = np.abs(x).max(-1, keepdims=True).astype(float) / 127
    assert (np.abs(found(x) - right) <= step / 2 * np.abs(matrix).sum(1) + 1e-4).all()
    assert np.linalg.norm(found(x) - right) < 0.02 * np.linalg.norm(right)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 10**6))
def test_company_changes_no_bit(rows: int, which: int, seed: int) -> None:
    found, _ = linear(33, 48)
    draw = np.random.default_rng(seed)
    x = (draw.standard_normal((rows, 48)) * draw.random((rows, 1)) * 100).astype(np.float32)
    row = which % rows
    assert np.array_equal(found(x)[row], found(x[row : row + 1])[0])


def test_embeddings() -> None:
    draw = np.random.default_rng(0)
    stored = quantize({"w": draw.standard_normal((9, 16)).astype(np.float32)})
    embedding = IntegerEmbedding(stored["w"], stored["w:scale"])
    tokens = np.array([[3, 0], [8, 3]])
    expected = stored["w"].astype(np.float32) * stored["w:scale"][:, None]
    assert np.array_equal(embedding(tokens), expected[tokens])
    assert embedding.scores(expected[:2]).shape == (2, 9)


@pytest.mark.parametrize("width", [30, 64])
def test_positions_are_those_of_torch(width: int) -> None:
    for closed in (True, False):
        right = layers.sinusoids(torch.arange(300)[None].double(), width, closed)[0].numpy()
        found = sinusoids(np.arange(300), width, closed)
        assert found.dtype == np.float32 and np.abs(found - right).max() < 1e-4


# Attention


def test_rounding_leaves_few_bits() -> None:
    draw = np.random.default_rng(2)
    x = (draw.standard_normal((50, 64)) * 10 ** draw.standard_normal((50, 1))).astype(np.float32)
    rounded = exact.round_rows(x)
    largest = np.abs(x).max(-1, keepdims=True)
    assert (np.abs(rounded - x) <= largest / 2**exact.SCORE_BITS).all()
    units = rounded / 2 ** (np.floor(np.log2(largest)) - exact.SCORE_BITS - 1)
    assert np.array_equal(units, units.round()), "multiples of a power of two"
    c = exact.rounding_constant(2)
    assert exact.round_to(np.array([0.3, -0.3], np.float32), c).tolist() == [0.25, -0.25]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 40), st.integers(0, 10**6))
def test_padding_changes_no_bit_of_attention(
    company: int, length: int, padding: int, seed: int
) -> None:
    """One query alone, and among others, behind which keys are hidden."""
    draw = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    c = exact.rounding_constant(exact.value_bits(60.0))
    queries = exact.round_rows(normal(company, 2, 3, 64))
    keys = exact.round_rows(normal(company, 2, length + padding, 64) * 3)
    values = exact.round_to(normal(company, 2, length + padding, 64) * 10, c)
    bias = normal(company, 1, 3, length + padding)
    bias[..., length:] = -np.inf
    together, _ = exact.attend(queries, keys, values, bias)
    alone, _ = exact.attend(
        queries[:1, :, 1:2], keys[:1, :, :length], values[:1, :, :length], bias[:1, :, 1:2, :length]
    )
    assert np.array_equal(together[:1, :, 1:2], alone)
    given = map(torch.from_numpy, (queries, keys, values, bias))
    left, right, mixed, added = given
    exactly = torch.softmax(left @ right.transpose(-1, -2) + added, -1) @ mixed
    assert np.abs(together - exactly.numpy()).max() < 0.2


# Models


@pytest.mark.parametrize("name", NAMES)
def test_streams_equal_decoding_without_caches(name: str) -> None:
    """Token for token, for every system, in random company."""
    model, system = build(name, 200)
    model = integers(model, prepared=True)
    sources = [[4 + 7 * token % 196 for token in s[:8]] for s in sentences(14, seed=11)]
    dials = [dial_near(system, 1.0 + i % 4) for i in range(len(sources))]
    records = trickle(name, sources, dials, slots=6, seed=1, made=(model, system))
    expected = uncached_decodes(in_torch(model), system, sources, dials)
    for (tokens, path), record in zip(expected, records, strict=True):
        assert [event.token for event in record.writes] == tokens
        assert [event.read for event in record.writes] == path


@pytest.mark.parametrize("k", [1.0, 5.0])
def test_the_bundled_model_does_not_depend_on_company(k: float) -> None:
    """Real sentences: alone and token by token, against all at once."""
    loaded = load_model(find_model(None), "cpu", "int8")
    corpus = Path(__file__).parents[1] / "examples" / "data" / "tatoeba.de-en.tsv"
    lines = [line.split("\t")[0] for line in corpus.read_text("utf-8").splitlines()]
    chosen = random.Random(int(k)).sample(lines, 10)
    sources = [loaded.vocabulary.source.encode(line) for line in chosen]
    made = (loaded.model, loaded.system)
    records = trickle("wait-info", sources, [k] * len(sources), slots=4, seed=3, made=made)
    expected = uncached_decodes(in_torch(loaded.model), loaded.system, sources, [k] * len(sources))
    for (tokens, path), record in zip(expected, records, strict=True):
        assert [event.token for event in record.writes] == tokens
        assert [event.read for event in record.writes] == path


def test_integers_are_near_floats() -> None:
    """The same words in nearly all positions, when both see the same."""
    whole, narrow = (load_model(find_model(None), "cpu", dtype) for dtype in ("float32", "int8"))
    source = torch.tensor([[*whole.vocabulary.source.encode("Das ist eine gute Idee."), 3]])
    target = torch.tensor([[2, *whole.vocabulary.target.encode("That is a good idea.")]])
    states = []
    for model in (whole.model, in_torch(narrow.model)):
        encoded = model.encode(model.embed_source(source), torch.tensor([source.shape[1]]))
        visible = torch.full(target.shape, source.shape[1])
        decoded = model.decode(model.embed_target(target), encoded, visible)
        states.append(model.logits(decoded.states).log_softmax(-1))
    assert (states[0] - states[1]).abs().mean() < 0.3
    assert torch.equal(states[0].argmax(-1), states[1].argmax(-1))


def test_integers_align_like_float64() -> None:
    """What decides where a full window is cut; integers keep the factor of scores in queries."""
    whole, narrow = (load_model(find_model(None), "cpu", dtype) for dtype in ("float32", "int8"))
    source = torch.tensor([[*whole.vocabulary.source.encode("Das ist eine gute Idee."), 3]])
    target = torch.tensor([[2, *whole.vocabulary.target.encode("That is a good idea.")]])
    found = []
    for model in (whole.model.double(), in_torch(narrow.model)):
        encoded = model.encode(model.embed_source(source), torch.tensor([source.shape[1]]))
        visible = torch.full(target.shape, source.shape[1])
        found.append(model.alignment(model.embed_target(target), encoded, visible).double())
    assert torch.allclose(found[0], found[1], atol=0.03)


def test_info_is_that_of_floats() -> None:
    whole, narrow = (load_model(find_model(None), "cpu", dtype) for dtype in ("float32", "int8"))
    tokens = torch.tensor([whole.vocabulary.source.encode("Das ist eine gute Idee.")])
    one, other = (in_torch(found.model).embed_source(tokens).info for found in (whole, narrow))
    assert other.dtype == torch.float32 and torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("stored", ["float32", "float16", "int8"])
def test_info_is_that_of_floats_however_it_is_stored(stored: str, tmp_path: Path) -> None:
    """A trained model that was not packed can be computed with integers, too."""
    whole = load_model(find_model(None), "cpu")
    parts = whole.model, whole.model.weights(), whole.system, whole.vocabulary
    save_model(tmp_path / "model", *parts, dtype=stored)
    one, other = (load_model(tmp_path / "model", "cpu", kind) for kind in ("float32", "int8"))
    tokens = torch.arange(4, 400)[None]
    for name in ("embed_source", "embed_target"):
        infos = [getattr(in_torch(found.model), name)(tokens).info for found in (one, other)]
        assert infos[0].std() > 0.1  # not all the same
        # The weights were integers before, so that rounding them again changes little.
        torch.testing.assert_close(*infos, atol=1e-3, rtol=0)


def test_a_gpu_does_not_attract_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert load_model(find_model(None), dtype="int8").model.device.type == "cpu"


def test_bad_uses(tmp_path: Path) -> None:
    with pytest.raises(WaitinfoError, match="int8: is for CPUs"):
        load_model(find_model(None), device="cuda", dtype="int8")
    with pytest.raises(WaitinfoError, match="unknown dtype 'int4'"):
        load_model(find_model(None), dtype="int4")


@pytest.mark.parametrize("name", sorted(SPECIAL))
@pytest.mark.parametrize("begun", [False, True])
def test_special_attention_is_that_of_torch(name: str, begun: bool) -> None:
    """The same hard decisions and outputs in float64, with the same linear maps."""
    torch.manual_seed(len(name))
    other = cross_attention(name)(16, 4, 0.0).double().eval()
    for parameter in other.parameters():
        parameter.data = torch.randn_like(parameter) * 0.7
    maps = {"queries", "project", "out"}
    state = {key: t.detach().numpy() for key, t in other.state_dict().items()}
    own = {key: array for key, array in state.items() if key.partition(".")[0] not in maps}

    def linear(part: str) -> Any:
        return lambda x: x @ state[f"{part}.weight"].T + state[f"{part}.bias"]

    ours = SPECIAL[name](4, linear, own)
    x, source = torch.randn(3, 5, 16).double(), torch.randn(3, 9, 16).double()
    visible = torch.arange(3, 8).expand(3, -1)
    seen = (visible[:, None] - torch.tensor([0, 1, 0, 2])[:, None]) if name == "moe" else visible
    views = []
    for in_tensors in (True, False):
        bias = cross_bias(seen, 9).double()
        everything = cross_bias(visible, 9).double() if name == "moe" else None
        before = torch.tensor([[1.0, 0, 2, 1]] * 3).double() if begun else None
        parts = seen, bias, torch.tensor([0.4, 0.5, 0.6]).double(), everything
        at = torch.arange(5).expand(3, -1) + 3 * begun
        view = SourceView(*parts, at, before, True)
        views.append(view if in_tensors else as_arrays(view))
    with torch.no_grad():
        right, report = other(x, other.memory(source), views[0])
    found, told = ours(x.numpy(), ours.memory(source.numpy()), views[1])
    assert np.allclose(found, right.numpy(), atol=1e-12)
    for field in ("state", "stopped", "gates"):
        one, two = getattr(report, field), getattr(told, field)
        assert (one is None) == (two is None)
        assert one is None or np.allclose(one.numpy(), two, atol=1e-12)

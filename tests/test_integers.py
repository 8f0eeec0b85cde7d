"""Models computed with integers: exact products, the same result in any company."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import NAMES, build, sentences, trickle
from tests.integers import integers
from tests.oracle import dial_near, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.model.integers import exact
from waitinfo.model.integers import matrix as products
from waitinfo.model.integers.matrix import IntegerEmbedding, IntegerLinear
from waitinfo.model.integers.packing import quantize
from waitinfo.systems import System
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model, save_model


def linear(outputs: int, inputs: int, bias: bool = True) -> tuple[IntegerLinear, torch.Tensor]:
    """An integer map, and the matrix it stands for."""
    stored = quantize({"w": torch.randn(outputs, inputs)})
    shift = torch.randn(outputs) if bias else None
    found = IntegerLinear(stored["w"], stored["w:scale"], shift)
    return found, stored["w"].double() * stored["w:scale"].double()[:, None]


# Products


@pytest.mark.parametrize("inputs", [8, 64, 2048])
@pytest.mark.parametrize("rows", [1, 5, 60])
@pytest.mark.parametrize("ways", ["native", "packed", "plain", ""])
@pytest.mark.parametrize("positive", [False, True])
def test_products_are_exact(
    inputs: int, rows: int, ways: str, positive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against int64, at the largest sums there can be too; by every way to multiply."""
    if ways != "native":
        monkeypatch.setattr(products, "find_kernels", lambda: None)
    elif products.find_kernels() is None:
        pytest.skip("the kernels were not built, or not for this CPU")
    for way in ("packed", "plain"):
        check = {"packed": "packed_product_works", "plain": "integer_product_works"}[way]
        if way not in ways:
            monkeypatch.setattr(products, check, lambda: False)
        elif not getattr(products, check)():
            pytest.skip(f"this CPU has no exact {way} product")
    torch.manual_seed(inputs)
    left = torch.randint(0, 256, (rows, inputs)) - (0 if positive else 128)
    left.clamp_min_(0 if positive else -127)
    weight = torch.randint(-127, 128, (24, inputs), dtype=torch.int8)
    left[0], weight[0] = left.max(), 127
    left[-1], weight[1] = left.min(), -127
    factor = torch.rand(24)
    found = products.IntegerMatrix(weight, factor, None, positive).multiply(left.float())
    assert torch.equal(found, (left @ weight.long().t()).float() * factor)


def test_a_row_is_rounded_to_its_own_scale() -> None:
    """By hand: inputs 1, -0.5 and 0.1 of a row whose largest is 1 are 127, -64 (63.5) and 13."""
    identity = IntegerLinear(torch.eye(3, dtype=torch.int8), torch.ones(3), None)
    found = identity(torch.tensor([[1.0, -0.5, 0.1], [1000.0, -500.0, 100.0], [0.0, 0.0, 0.0]]))
    steps = torch.tensor([127, -64, 13]) / 127
    expected = torch.stack([steps, 1000 * steps, torch.zeros(3)])
    assert torch.allclose(found, expected, rtol=1e-6)


def test_a_map_is_near_the_one_it_stands_for() -> None:
    torch.manual_seed(1)
    found, matrix = linear(30, 64)
    x = torch.randn(7, 3, 64)
    right = x.double() @ matrix.t() + found.bias.double()
    # A row is off by at most half a step of its own in every input.
    step = x.abs().amax(-1, keepdim=True).double() / 127
    assert ((found(x) - right).abs() <= step / 2 * matrix.abs().sum(1) + 1e-4).all()
    assert (found(x) - right).norm() < 0.02 * right.norm()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 10**6))
def test_company_changes_no_bit(rows: int, which: int, seed: int) -> None:
    torch.manual_seed(seed)
    found, _ = linear(33, 48)
    x = torch.randn(rows, 48) * torch.rand(rows, 1) * 100
    row = which % rows
    assert torch.equal(found(x)[row], found(x[row : row + 1])[0])


def test_embeddings() -> None:
    stored = quantize({"w": torch.randn(9, 16)})
    embedding = IntegerEmbedding(stored["w"], stored["w:scale"])
    tokens = torch.tensor([[3, 0], [8, 3]])
    expected = stored["w"].float() * stored["w:scale"][:, None]
    assert torch.equal(embedding(tokens), expected[tokens])
    assert embedding.scores(torch.randn(2, 16)).shape == (2, 9)


# Attention


def test_rounding_leaves_few_bits() -> None:
    torch.manual_seed(2)
    x = torch.randn(50, 64) * 10 ** torch.randn(50, 1)
    rounded = exact.round_rows(x)
    largest = x.abs().amax(-1, keepdim=True)
    assert ((rounded - x).abs() <= largest / 2**exact.SCORE_BITS).all()
    units = rounded / 2 ** (largest.log2().floor() - exact.SCORE_BITS - 1)
    assert torch.equal(units, units.round()), "multiples of a power of two"
    c = exact.rounding_constant(2)
    assert torch.equal(torch.tensor([0.3, -0.3]) + c - c, torch.tensor([0.25, -0.25]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 40), st.integers(0, 10**6))
def test_padding_changes_no_bit_of_attention(
    company: int, length: int, padding: int, seed: int
) -> None:
    """One query alone, and among others, behind which keys are hidden."""
    torch.manual_seed(seed)
    c = exact.rounding_constant(exact.value_bits(60.0))
    queries = exact.round_rows(torch.randn(company, 2, 3, 64))
    keys = exact.round_rows(torch.randn(company, 2, length + padding, 64) * 3)
    values = torch.randn(company, 2, length + padding, 64) * 10 + c - c
    bias = torch.randn(company, 1, 3, length + padding)
    bias[..., length:] = -torch.inf
    together, _ = exact.attend(queries, keys, values, bias)
    alone, _ = exact.attend(
        queries[:1, :, 1:2], keys[:1, :, :length], values[:1, :, :length], bias[:1, :, 1:2, :length]
    )
    assert torch.equal(together[:1, :, 1:2], alone)
    right = torch.softmax(queries @ keys.transpose(-1, -2) + bias, -1) @ values
    assert (together - right).abs().max() < 0.2


# Models


@pytest.mark.parametrize("name", NAMES)
def test_streams_equal_decoding_without_caches(name: str) -> None:
    """Token for token, for every system, in random company."""
    model, system = build(name, 200)
    model = integers(model, prepared=True)
    sources = [[4 + 7 * token % 196 for token in s[:8]] for s in sentences(14, seed=11)]
    dials = [dial_near(system, 1.0 + i % 4) for i in range(len(sources))]
    records = trickle(name, sources, dials, slots=6, seed=1, made=(model, system))
    expected = uncached_decodes(model, system, sources, dials)
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
    made: tuple[Transformer, System] = (loaded.model, loaded.system)
    records = trickle("wait-info", sources, [k] * len(sources), slots=4, seed=3, made=made)
    expected = uncached_decodes(loaded.model, loaded.system, sources, [k] * len(sources))
    for (tokens, path), record in zip(expected, records, strict=True):
        assert [event.token for event in record.writes] == tokens
        assert [event.read for event in record.writes] == path


def test_integers_are_near_floats() -> None:
    """The same words in nearly all positions, when both see the same."""
    whole, narrow = (load_model(find_model(None), "cpu", dtype) for dtype in ("float32", "int8"))
    source = torch.tensor([[*whole.vocabulary.source.encode("Das ist eine gute Idee."), 3]])
    target = torch.tensor([[2, *whole.vocabulary.target.encode("That is a good idea.")]])
    states = []
    for model in (whole.model, narrow.model):
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
    for model in (whole.model.double(), narrow.model):
        encoded = model.encode(model.embed_source(source), torch.tensor([source.shape[1]]))
        visible = torch.full(target.shape, source.shape[1])
        found.append(model.alignment(model.embed_target(target), encoded, visible).double())
    assert torch.allclose(found[0], found[1], atol=0.03)


def test_info_is_that_of_floats() -> None:
    whole, narrow = (load_model(find_model(None), "cpu", dtype) for dtype in ("float32", "int8"))
    tokens = torch.tensor([whole.vocabulary.source.encode("Das ist eine gute Idee.")])
    one, other = (found.model.embed_source(tokens).info for found in (whole, narrow))
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
        infos = [getattr(found.model, name)(tokens).info for found in (one, other)]
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

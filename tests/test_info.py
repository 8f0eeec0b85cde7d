"""Info, biases and paths against the paper's formulas written out literally, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle import literal_cross_attention, literal_path, literal_self_attention
from waitinfo.model.attention import attend
from waitinfo.model.info import (
    InfoQuantizer,
    TokenInfo,
    consistency,
    cross_bias,
    info_sum_loss,
    self_bias,
)
from waitinfo.systems import build_system
from waitinfo.text.special import BOS

B, H, T, S, D = 2, 3, 5, 7, 4


def random_inputs(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    shapes = {"q": (B, H, T, D), "k": (B, H, S, D), "v": (B, H, S, D)}
    tensors = {n: torch.randn(s, dtype=torch.float64) for n, s in shapes.items()}
    tensors["target_info"] = 2 * torch.rand(B, T, dtype=torch.float64)
    tensors["source_info"] = 2 * torch.rand(B, S, dtype=torch.float64)
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).double()
    return list(torch.autograd.grad((output * weight).sum(), inputs))


@pytest.mark.parametrize("seed", range(3))
def test_cross_attention_is_softmax_scale_renormalise(seed: int) -> None:
    x = random_inputs(seed)
    path = torch.tensor([[1, 2, 2, 5, 7], [3, 3, 4, 6, 7]])
    bias = cross_bias(path, S, consistency(x["source_info"], x["target_info"]))
    ours = attend(x["q"], x["k"], x["v"], bias, False, 0.0)
    literal = torch.stack(
        [
            torch.stack(
                [
                    literal_cross_attention(
                        x["q"][b, h], x["k"][b, h], x["v"][b, h],
                        x["target_info"][b], x["source_info"][b], path[b].tolist(),
                    )
                    for h in range(H)
                ]
            )
            for b in range(B)
        ]
    )  # fmt: skip
    torch.testing.assert_close(ours, literal, rtol=1e-10, atol=1e-12)
    inputs = list(x.values())
    for mine, theirs in zip(gradients(ours, inputs), gradients(literal, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_self_attention_biases_the_diagonal(seed: int) -> None:
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, 1, T, D, dtype=torch.float64, requires_grad=True) for _ in range(3))
    info = (2 * torch.rand(1, T, dtype=torch.float64)).requires_grad_()
    ours = attend(q, k, v, self_bias(torch.arange(T)[None], T, info), False, 0.0)
    literal = literal_self_attention(q[0, 0], k[0, 0], v[0, 0], info[0], causal=True)[None, None]
    torch.testing.assert_close(ours, literal, rtol=1e-10, atol=1e-12)
    inputs = [q, k, v, info]
    for mine, theirs in zip(gradients(ours, inputs), gradients(literal, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_quantizer_equals_the_formula_of_the_paper() -> None:
    torch.manual_seed(0)
    quantizer = InfoQuantizer(8).double()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    inner = torch.tanh(torch.tanh(x) @ quantizer.hidden.weight.T)
    expected = 2 / (1 + torch.exp(-(inner @ quantizer.out.weight.T)))
    torch.testing.assert_close(quantizer(x), expected[..., 0])


def test_consistency_stays_finite_at_the_extremes() -> None:
    source = torch.tensor([[0.0, 2.0]], requires_grad=True)
    target = torch.tensor([[2.0, 0.0]], requires_grad=True)
    for dtype in (torch.float32, torch.bfloat16):
        bias = consistency(source.to(dtype), target.to(dtype))
        assert torch.isfinite(bias).all()
        bias.sum().backward()
    assert torch.isfinite(source.grad).all() and torch.isfinite(target.grad).all()


@pytest.mark.parametrize("total", ["mean", "source", "target"])
def test_info_sum_loss_by_hand(total: str) -> None:
    source_info = torch.tensor(
        [[1.0, 0.5, 9.0], [2.0, 9.0, 9.0]]
    )  # 9 marks values that must be ignored
    target_info = torch.tensor([[9.0, 1.5], [9.0, 0.5]])
    source_mask = torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()
    target_mask = torch.tensor([[0, 1], [0, 1]]).bool()
    zetas = {"mean": [1.5, 1.0], "source": [2.0, 1.0], "target": [1.0, 1.0]}[total]
    sums = [(1.5, 1.5), (2.0, 0.5)]
    expected = sum(abs(s - z) + abs(t - z) for (s, t), z in zip(sums, zetas, strict=True))
    found = info_sum_loss(source_info, target_info, source_mask, target_mask, total)
    assert float(found) == pytest.approx(expected)
    # One norm for each side: I - I zeta / sum I, of all sentences.
    rows = [((1.0, 0.5), zetas[0]), ((2.0,), zetas[1])], [((1.5,), zetas[0]), ((0.5,), zetas[1])]
    norms = [
        sum((i - i * zeta / sum(row)) ** 2 for row, zeta in side for i in row) ** 0.5
        for side in rows
    ]
    found = info_sum_loss(source_info, target_info, source_mask, target_mask, total, "batch")
    assert float(found) == pytest.approx(sum(norms))
    # The goal is fixed: the gradient is that of the distance alone.
    leaf = source_info.clone().requires_grad_()
    info_sum_loss(leaf, target_info, source_mask, target_mask, total, "batch").backward()
    away = [[i - i * zeta / sum(row) for i in row] for row, zeta in rows[0]]
    expected = torch.tensor([[*away[0], 0.0], [*away[1], 0.0, 0.0]]) / max(norms[0], 1e-12)
    assert torch.allclose(leaf.grad, expected, atol=1e-6)


@pytest.mark.parametrize("norm", ["sentence", "batch"])
def test_info_sum_loss_is_smooth_where_there_is_nothing_to_do(norm: str) -> None:
    """Totals that are right, and a sentence without tokens on one side."""
    source = torch.tensor([[1.2, 0.8], [1.0, 1.0]], requires_grad=True)
    target = torch.tensor([[0.7, 1.3], [1.0, 1.0]], requires_grad=True)
    mask = torch.tensor([[1, 1], [1, 1]]).bool()
    info_sum_loss(source, target, mask, mask, norm=norm).backward()
    empty = torch.tensor([[1, 1], [0, 0]]).bool()
    info_sum_loss(source, target, empty, mask, norm=norm).backward()
    assert torch.isfinite(source.grad).all() and torch.isfinite(target.grad).all()


infos = st.lists(st.floats(0.01, 1.99), min_size=1, max_size=9)


def info_path(
    source: torch.Tensor, target: torch.Tensor, k: float, lengths: torch.Tensor, floor: bool
) -> torch.Tensor:
    return build_system("wait-info", {"floor": floor}).info_path(source, target, k, lengths)


@settings(max_examples=300)
@given(infos, st.lists(st.floats(0.01, 1.99), max_size=9), st.floats(0, 8), st.booleans())
def test_path_equals_the_algorithm(
    source: list[float], target: list[float], k: float, floor: bool
) -> None:
    expected = literal_path(source, target, k, len(source), floor)
    found = info_path(
        torch.tensor([source], dtype=torch.float64),
        torch.tensor([[1.0, *target]], dtype=torch.float64),
        k,
        torch.tensor([len(source)]),
        floor,
    )
    assert found[0].tolist() == expected


def test_path_ignores_padding() -> None:
    source = torch.tensor([[1.0, 1.0, 0.5, 1.9, 1.9]])
    target = torch.ones(1, 4)
    assert info_path(source, target, 1, torch.tensor([3]), False).tolist() == [[1, 2, 3, 3]]


@pytest.mark.parametrize(("k", "floor"), list(itertools.product([1, 2, 5], [True, False])))
def test_all_infos_one_is_wait_k(k: int, floor: bool) -> None:
    n, m = 9, 6
    path = info_path(torch.ones(1, n), torch.ones(1, m), k, torch.tensor([n]), floor)
    start = max(k, 2) if floor else k
    assert path[0].tolist() == [min(start + i, n) for i in range(m)]


def test_begin_of_sequence_has_info_one() -> None:
    torch.manual_seed(0)
    tokens = torch.tensor([[BOS, 5, 6]])
    x, matrix = torch.randn(1, 3, 8), torch.randn(10, 8)
    for kind in ("attention", "frequency", "norm"):
        info = TokenInfo(kind, 10, 8, fixed=False)
        info.fit(torch.arange(10), 1.3)
        assert info(tokens, x, matrix)[0, 0] == 1


def test_norm_info_averages_over_the_text() -> None:
    torch.manual_seed(0)
    info = TokenInfo("norm", 6, 8, fixed=False)
    matrix = torch.rand(6, 8) + 0.5
    counts = torch.tensor([0, 0, 0, 0, 30, 10])
    info.fit(counts, 0.9)
    found = info(torch.tensor([[4, 5]]), torch.zeros(1, 2, 8), matrix)[0]
    assert float(0.75 * found[0] + 0.25 * found[1]) == pytest.approx(0.9, abs=1e-5)
    assert float(found[0] / found[1]) == pytest.approx(float(matrix[4].norm() / matrix[5].norm()))


def counted_norms(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Shapes of all tensors whose norm is computed from now on."""
    shapes: list[torch.Size] = []
    real = torch.Tensor.norm

    def norm(self: torch.Tensor, *given: object, **named: object) -> torch.Tensor:
        shapes.append(self.shape)
        return real(self, *given, **named)

    monkeypatch.setattr(torch.Tensor, "norm", norm)
    return shapes


def test_norm_info_is_computed_once_for_a_trained_model(
    tiny_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(info="norm", joint=False)
    for info in (model.source_info, model.target_info):
        info.fit(torch.arange(40.0), 1.1)
    tokens = torch.tensor([[5, 6, 7, 39]])

    def expected() -> torch.Tensor:
        matrix = model.source_embedding.weight.detach()
        lengths = (matrix * matrix).sum(-1).sqrt()
        share = torch.arange(40.0) / torch.arange(40.0).sum()
        average = (lengths * share.double()).sum()
        return (1.1 * lengths / average).clamp(0.05, 1.95)[tokens]

    shapes = counted_norms(monkeypatch)
    with torch.inference_mode():
        for _ in range(5):
            torch.testing.assert_close(model.embed_source(tokens).info, expected())
            model.embed_target(tokens)
    assert len(shapes) == 2, "one for each side, however many steps"
    loss = (model.embed_source(tokens).info * model.embed_source(tokens).x.sum(-1)).sum()
    loss.backward()  # the value cached without gradients can be used with gradients

    with torch.no_grad():
        model.source_embedding.weight[5].mul_(2)
    torch.testing.assert_close(model.embed_source(tokens).info, expected())
    other = {name: tensor * 3 for name, tensor in model.weights().items()}
    other["source_info.share"] = model.source_info.share.clone()
    other["source_info.scale"] = model.source_info.scale.clone()
    for assign in (False, True):
        model.load_weights({**other, "source_embedding.weight": torch.randn(40, 32).double()},
                           assign=assign)  # fmt: skip
        torch.testing.assert_close(model.embed_source(tokens).info, expected())
    narrow = model.half().embed_source(tokens).info
    assert narrow.dtype == torch.float16
    torch.testing.assert_close(narrow.double(), expected().double(), rtol=5e-3, atol=5e-3)


def test_norm_info_follows_the_embedding_in_training() -> None:
    info = TokenInfo("norm", 6, 8, fixed=False).train()
    info.fit(torch.ones(6), 1.0)
    matrix = torch.rand(6, 8)
    tokens = torch.tensor([[4, 5]])
    before = info(tokens, torch.zeros(1, 2, 8), matrix)
    matrix[4] *= 0.5
    after = info(tokens, torch.zeros(1, 2, 8), matrix)
    assert after[0, 0] < before[0, 0] and after[0, 1] > before[0, 1]


def test_frequency_info_is_surprisal_scaled_to_the_mean() -> None:
    info = TokenInfo("frequency", 4, 8, fixed=False)
    counts = torch.tensor([9, 9, 19, 59])
    info.fit(counts, 0.7)
    p = (counts + 1).double() / 100
    average = (p * info.table.double()).sum()
    assert float(average) == pytest.approx(0.7, abs=1e-6)
    assert info.table[0] == info.table[1] > info.table[2] > info.table[3]
    ratio = torch.log(p[0]) / torch.log(p[3])
    assert float(info.table[0] / info.table[3]) == pytest.approx(float(ratio), rel=1e-5)


def test_info_before_or_after_dropout(tiny_model) -> None:
    tokens = torch.tensor([[5, 6, 7, 8]])
    infos = {}
    for after in (True, False):
        model = tiny_model(info="attention", dropout=0.5, info_dropout=after)
        clean = model.eval().embed_source(tokens).info
        infos[after] = clean, model.train().embed_source(tokens).info
    torch.testing.assert_close(infos[True][0], infos[False][0])
    torch.testing.assert_close(infos[False][0], infos[False][1])
    assert (infos[True][0] - infos[True][1]).abs().max() > 1e-3

"""The fused kernels, forward and backward, against the formulas in float64.

On a GPU they run in bfloat16, as in training. Without one, Triton's interpreter runs them on the
CPU in float32 (`conftest.py` turns it on).
"""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn import functional as F

from tests.oracle import batch_of
from waitinfo.model import ModelConfig, Transformer, loss
from waitinfo.systems import LossContext, System, build_system
from waitinfo.systems.networks.monotonic_heads import expected_alignment, lookback, stop_probability

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("without a GPU the kernels need TRITON_INTERPRET=1", allow_module_level=True)
kernels = pytest.importorskip("waitinfo.model.kernels", reason="Triton is not installed")
fuse = pytest.importorskip("waitinfo.training.fusing").fuse
of_layers = kernels.layers

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
TOLERANCE = 1e-5 if INTERPRETED else 6e-3
OF_GRADIENTS = 1e-5 if INTERPRETED else 0.1  # plain autocast to bfloat16 errs by up to 0.05


def close(found: Tensor, expected: Tensor) -> None:
    """By norm: half precision errs by element."""
    found, expected = found.double(), expected.double().nan_to_num()
    assert (found - expected).norm() <= TOLERANCE * expected.norm()


def draw(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_()


def same(out: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and gradients agree."""
    close(out, expected)
    weights = torch.randn(expected.shape, device=DEVICE)
    found = torch.autograd.grad((out.float() * weights).sum(), inputs)
    right = torch.autograd.grad((expected * weights).sum(), inputs)
    for one, other in zip(found, right, strict=True):
        close(one, other)


def formula(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.double()
    if causal:
        future = torch.ones(scores.shape[-2:], device=DEVICE, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize(
    ("targets", "sources", "heads_of_bias", "rows_of_bias"),
    [(24, 16, 1, 24), (8, 40, 2, 8), (100, 72, 1, 1), (130, 128, 1, 130), (1, 5, 2, 1)],
)
def test_attention(targets: int, sources: int, heads_of_bias: int, rows_of_bias: int) -> None:
    torch.manual_seed(1)
    q, k, v = draw(2, targets, 2, 32), draw(2, sources, 2, 32), draw(2, sources, 2, 32)
    bias = torch.randn(2, heads_of_bias, rows_of_bias, sources, device=DEVICE)
    hidden = torch.rand_like(bias) > 0.6
    hidden[..., 0] = False  # something is always visible
    bias = bias.masked_fill(hidden, -torch.inf).requires_grad_()
    inputs = [q, k, v, bias]
    same(kernels.attention(q, k, v, bias, False), formula(q, k, v, bias, False), inputs)


@pytest.mark.parametrize("length", [7, 40, 128])
@pytest.mark.parametrize("biased", [False, True])
def test_self_attention(length: int, biased: bool) -> None:
    torch.manual_seed(1)
    packed = draw(2, length, 3, 2, 64)
    bias = None
    if biased:
        future = torch.ones(length, length, device=DEVICE, dtype=torch.bool).triu(1)
        bias = torch.randn(2, 1, length, length, device=DEVICE)
        bias = bias.masked_fill(future, -torch.inf).requires_grad_()
    inputs = [packed] if bias is None else [packed, bias]
    found = kernels.self_attention(packed, bias, not biased)
    same(found, formula(*packed.unbind(2), bias, not biased), inputs)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_without_a_bias(causal: bool) -> None:
    torch.manual_seed(1)
    q, k, v = draw(2, 21, 2, 16), draw(2, 21, 2, 16), draw(2, 21, 2, 16)
    found = kernels.attention(q, k, v, None, causal)
    same(found, formula(q, k, v, None, causal), [q, k, v])


def test_attention_where_nothing_is_visible() -> None:
    """A hidden row is zero and has no gradient, where a softmax would give NaN."""
    torch.manual_seed(1)
    q, k, v = draw(1, 3, 1, 16), draw(1, 5, 1, 16), draw(1, 5, 1, 16)
    bias = torch.zeros(1, 1, 3, 5, device=DEVICE)
    bias[:, :, 1] = -torch.inf
    out = kernels.attention(q, k, v, bias, False)
    by_q, by_k, by_v = torch.autograd.grad(out.float().sum(), [q, k, v])
    seen = [0, 2]
    assert not out[:, 1].any() and not by_q[:, 1].any()
    few = kernels.attention(q[:, seen], k, v, bias[:, :, seen], False)
    close(out[:, seen], few)
    for found, expected in zip(
        (by_k, by_v), torch.autograd.grad(few.float().sum(), [k, v]), strict=True
    ):
        close(found, expected)


@pytest.mark.parametrize(("rows", "width"), [(5, 512), (7, 96)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("programs", [of_layers.NORM_PROGRAMS, 3])
def test_add_norm(
    rows: int, width: int, dropout: float, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_layers, "NORM_PROGRAMS", programs)  # few: each takes several blocks
    torch.manual_seed(1)
    x, y = draw(3, rows, width, dtype=torch.float32), draw(3, rows, width)
    shift, weight, bias = (draw(width, dtype=torch.float32) for _ in range(3))
    out = kernels.add_norm(x, y, shift, weight, bias, dropout, 1e-5)
    # Dropout fell where y has no gradient.
    probe = torch.randn(out.shape, device=DEVICE)
    (by_y,) = torch.autograd.grad((out.float() * probe).sum(), y, retain_graph=True)
    kept = by_y != 0
    spread = (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(kept.double().mean().item() - (1 - dropout)) <= 5 * spread
    total = x.double() + (y.double() + shift.double()) * kept / (1 - dropout)
    expected = F.layer_norm(total, (width,), weight.double(), bias.double())
    same(out, expected, [x, y, shift, weight, bias])


def test_dropout_falls_elsewhere_each_time() -> None:
    torch.manual_seed(1)
    x, y = torch.zeros(8, 64, device=DEVICE), torch.ones(8, 64, device=DEVICE, dtype=DTYPE)
    ones, zeros = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)
    once, again = (kernels.add_norm(x, y, zeros, ones, zeros, 0.5, 1e-5) for _ in range(2))
    assert not torch.equal(once, again)


@pytest.mark.parametrize("programs", [of_layers.RELU_PROGRAMS, 3])
def test_linear_relu(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_layers, "RELU_PROGRAMS", programs)
    torch.manual_seed(1)
    x, weight, bias = draw(3, 30, 64), draw(600, 64), draw(600)
    expected = F.relu(x.double() @ weight.double().T + bias.double())
    same(kernels.linear_relu(x, weight, bias), expected, [x, weight, bias])


@pytest.mark.parametrize(("targets", "sources"), [(1, 1), (7, 5), (12, 33), (3, 130)])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_monotonic_attention(targets: int, sources: int, scale: float) -> None:
    """The walks of MMA's heads and their lookback, with energies of any size, against float64."""
    torch.manual_seed(1)
    visible = torch.tensor([sources, sources // 2 + 1], device=DEVICE)[:, None, None]
    stop, soft = (
        (scale * torch.randn(2, 3, targets, sources, device=DEVICE)).requires_grad_()
        for _ in range(2)
    )
    stop_exact, soft_exact = (x.detach().double().requires_grad_() for x in (stop, soft))
    alpha = kernels.expected_alignment(stop_probability(stop, visible))
    beta = kernels.lookback(alpha, soft)
    exact_alpha = expected_alignment(stop_probability(stop_exact, visible))
    exact_beta = lookback(exact_alpha, soft_exact)
    weights = torch.randn(beta.shape, device=DEVICE)
    by = [*torch.autograd.grad((beta * weights + alpha * weights.flip(-1)).sum(), [stop, soft])]
    exact = (exact_beta * weights.double() + exact_alpha * weights.double().flip(-1)).sum()
    by_exact = [*torch.autograd.grad(exact, [stop_exact, soft_exact])]
    pairs = zip([alpha, beta, *by], [exact_alpha, exact_beta, *by_exact], strict=True)
    for found, right in pairs:
        assert (found.double() - right).norm() <= 1e-4 * right.norm() + 1e-6


@pytest.mark.parametrize(("rows", "width"), [(1, 7), (256, 16), (600, 40)])
def test_sum_parts(rows: int, width: int) -> None:
    torch.manual_seed(1)
    parts = torch.randn(rows, width, device=DEVICE)
    close(of_layers.sum_parts(parts), parts.double().sum(0))


def small_model(name: str, norm: str = "post", layers: int = 1) -> tuple[System, Transformer]:
    torch.manual_seed(1)
    system = build_system(name, {})
    config = ModelConfig(
        50, 50, width=64, ffn=128, heads=2, encoder_layers=layers, decoder_layers=layers,
        dropout=0.0, norm=norm, **system.model_defaults,
    )  # fmt: skip
    return system, Transformer(config).to(DEVICE).eval()  # MMA draws noise in training


def loss_of(
    system: System, model: Transformer, before_loss: Callable[[], None] | None = None
) -> Tensor:
    """The loss of two made-up pairs, in the kernels' precision."""
    pairs = [([4, 9, 30], [7, 41, 8, 22, 5]), ([11, 6, 49, 17, 25], [33, 12])]
    batch = batch_of(pairs).to(torch.device(DEVICE))
    if before_loss is not None:
        before_loss()
    exact = next(model.parameters()).dtype == torch.float64
    with torch.autocast(DEVICE, torch.bfloat16, enabled=not (INTERPRETED or exact)):
        return system.loss(model, batch, LossContext(10, random.Random(1), 0.1)).total


@pytest.mark.parametrize("name", ["wait-info", "mma"])
def test_a_loss_keeps_nothing_of_the_one_before(name: str) -> None:
    """Or a CUDA graph would be recorded into another stream's gradients."""
    system, model = small_model(name)
    before_loss = fuse(model, DTYPE)
    total = loss_of(system, model, before_loss)
    fired: list[object] = []
    for parameter in model.parameters():  # hooks at the ends of this loss's graph
        get_gradient_edge(parameter).node.register_prehook(fired.append)
    total.backward()
    del total
    assert fired
    fired.clear()
    loss_of(system, model, before_loss).backward()
    assert not fired


def operations(total: Tensor) -> set[str]:
    """Names of all functions whose gradients a loss needs."""
    found: set[str] = set()
    seen: set[Node | None] = {None}
    waiting: list[Node | None] = [total.grad_fn]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found.add(node.name())
            waiting += [before for before, _ in node.next_functions]
    return found


@pytest.mark.parametrize(
    ("name", "norm", "layers"),
    [("wait-info", "post", 2), ("wait-info", "pre", 1), ("multipath", "post", 1),
     ("full", "post", 1), ("gma", "post", 1), ("mma", "post", 1), ("gsimt", "post", 1)],
)  # fmt: skip
def test_a_fused_model_computes_the_same(name: str, norm: str, layers: int) -> None:
    system, fused = small_model(name, norm, layers)
    plain = copy.deepcopy(fused).double()
    before_loss = fuse(fused, DTYPE)
    assert fused.token_terms is kernels.token_terms
    found, used = [], []
    for model, before in ((fused, before_loss), (plain, None)):
        total = loss_of(system, model, before)
        used.append(operations(total))
        total.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append((total.detach().double(), torch.cat(gradients).double()))
    expected = {"_AttentionBackward", "_LinearReluBackward"}
    expected |= {"_AddNormBackward"} if norm == "post" else set()
    expected |= {"_LookbackBackward"} if name == "mma" else set()
    assert expected <= used[0] and not expected & used[1]
    (value, gradient), (exact_value, exact_gradient) = found
    assert (value - exact_value).abs() < TOLERANCE * exact_value
    assert (gradient - exact_gradient).norm() < OF_GRADIENTS * exact_gradient.norm()


@pytest.mark.parametrize("vocabulary", [1000, 8192, 9001])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_token_terms(vocabulary: int, smoothing: float) -> None:
    torch.manual_seed(1)
    logits = 3 * draw(19, vocabulary).detach()
    target = torch.randint(vocabulary, (19,), device=DEVICE)
    real = (torch.arange(19, device=DEVICE) % 3 > 0).float()
    expected = loss.token_terms(logits.double(), target, real.double(), smoothing)
    for one, other in zip(
        kernels.token_terms(logits, target, real, smoothing), expected, strict=True
    ):
        close(one, other)

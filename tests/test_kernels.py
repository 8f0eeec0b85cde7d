"""The fused kernels against the formulas in float64.

They need a GPU; with TRITON_INTERPRET=1 and Triton installed all but one run on a CPU as well.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from tests.oracle import batch_of
from waitinfo.model import ModelConfig, Transformer, loss
from waitinfo.model.batch import Batch
from waitinfo.systems import LossContext, System, build_system

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("the fused kernels need a GPU", allow_module_level=True)
kernels = pytest.importorskip("waitinfo.model.kernels", reason="Triton is not installed")

DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPE = torch.float32 if INTERPRETED else torch.bfloat16
HALF = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter cannot multiply bfloat16
TOLERANCE = 1e-6 if INTERPRETED else 6e-3


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


@pytest.mark.parametrize(("rows", "width"), [(37, 512), (1700, 384)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_add_norm(rows: int, width: int, dropout: float) -> None:
    torch.manual_seed(1)
    x, y = draw(3, rows, width, dtype=torch.float32), draw(3, rows, width)
    shift, weight, bias = (draw(width, dtype=torch.float32) for _ in range(3))
    out = kernels.add_norm(x, y, shift, weight, bias, dropout, 1e-5)
    # Where dropout fell is where y has no gradient.
    probe = torch.randn(out.shape, device=DEVICE)
    (by_y,) = torch.autograd.grad((out.float() * probe).sum(), y, retain_graph=True)
    kept = by_y != 0
    assert abs(kept.double().mean().item() - (1 - dropout)) < 0.01
    total = x.double() + (y.double() + shift.double()) * kept / (1 - dropout)
    expected = F.layer_norm(total, (width,), weight.double(), bias.double())
    same(out, expected, [x, y, shift, weight, bias])


def test_dropout_falls_elsewhere_each_time() -> None:
    torch.manual_seed(1)
    x, y = torch.zeros(8, 64, device=DEVICE), torch.ones(8, 64, device=DEVICE, dtype=DTYPE)
    ones, zeros = torch.ones(64, device=DEVICE), torch.zeros(64, device=DEVICE)
    once, again = (kernels.add_norm(x, y, zeros, ones, zeros, 0.5, 1e-5) for _ in range(2))
    assert not torch.equal(once, again)


@pytest.mark.skipif(INTERPRETED, reason="its matrix product is fused on a GPU only")
def test_linear_relu() -> None:
    torch.manual_seed(1)
    x, weight, bias = draw(3, 70, 64), draw(200, 64), draw(200)
    expected = F.relu(x.double() @ weight.double().T + bias.double())
    same(kernels.linear_relu(x, weight, bias), expected, [x, weight, bias])


def small_model(name: str) -> tuple[System, Transformer, Batch]:
    torch.manual_seed(1)
    system = build_system(name, {})
    config = ModelConfig(
        50, 50, width=64, ffn=128, heads=2, encoder_layers=2, decoder_layers=2, dropout=0.0,
        norm="post", **system.model_defaults,
    )  # fmt: skip
    model = Transformer(config).to(DEVICE)
    pairs = [[torch.randint(4, 50, (n,)).tolist() for n in pair] for pair in ((7, 9), (12, 5))]
    batch = batch_of([(source, target) for source, target in pairs]).to(torch.device(DEVICE))
    return system, model, batch


@pytest.mark.parametrize("name", ["wait-info", "mma"])
def test_a_loss_keeps_nothing_of_the_one_before(name: str) -> None:
    """Or a CUDA graph would be recorded into another stream's gradients."""
    from waitinfo.training.fusing import fuse

    system, model, batch = small_model(name)
    fuse(model, HALF)

    def compute() -> Tensor:
        assert model.before_loss
        model.before_loss()
        with torch.autocast(DEVICE, HALF):
            return system.loss(model, batch, LossContext(10, random.Random(1), 0.1)).total

    total = compute()
    fired: list[object] = []
    for parameter in model.parameters():  # hooks at the ends of this loss's graph
        get_gradient_edge(parameter).node.register_prehook(fired.append)
    total.backward()
    del total
    assert fired
    fired.clear()
    compute().backward()
    assert not fired


@pytest.mark.parametrize("name", ["wait-info", "multipath", "full", "gma", "mma", "gsimt"])
def test_a_fused_model_computes_the_same(name: str) -> None:
    from waitinfo.training.fusing import fuse

    system, model, batch = small_model(name)
    found = {}
    for way in ("exact", "half", "fused"):
        if way == "fused":
            fuse(model, HALF)
            assert model.before_loss
            model.before_loss()
        model.zero_grad()
        with torch.autocast(DEVICE, HALF, enabled=way != "exact"):
            total = system.loss(model, batch, LossContext(10, random.Random(1), 0.1)).total
        total.backward()
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found[way] = torch.cat([total.detach()[None], *gradients])
    half, fused = ((found[way] - found["exact"]).norm() for way in ("half", "fused"))
    assert fused < 1.5 * half + 1e-3 * found["exact"].norm()  # as exact as half precision is
    assert (found["fused"][0] - found["exact"][0]).abs() < 5e-3 * found["exact"][0]


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

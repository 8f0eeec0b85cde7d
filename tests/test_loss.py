"""The chunked cross-entropy against torch with all logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from waitinfo.model import loss as module
from waitinfo.model.loss import linear_cross_entropy


def case(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    states = torch.randn(3, 5, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 8, dtype=dtype, requires_grad=True)
    target = torch.randint(0, 11, (3, 5))
    real = torch.rand(3, 5) < 0.7
    return states, weight, target, real


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [11, 40, 10**6])  # one token at a time, a few, all
def test_equals_torch(monkeypatch: pytest.MonkeyPatch, smoothing: float, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    states, weight, target, real = case()
    logits = states @ weight.T
    wanted = target.masked_fill(~real, -1)
    expected = F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum",
        label_smoothing=smoothing,
    )  # fmt: skip
    plain = F.cross_entropy(
        logits.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum"
    )
    expected_gradients = torch.autograd.grad(3 * expected, (states, weight))
    found, nll = linear_cross_entropy(states, weight, target, real, smoothing)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(nll, plain.detach())
    assert not nll.requires_grad
    gradients = torch.autograd.grad(3 * found, (states, weight))
    for a, b in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_in_half_precision_it_is_close() -> None:
    states, weight, target, real = case(torch.float32)
    exact, _ = linear_cross_entropy(states, weight, target, real, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        half, _ = linear_cross_entropy(states, weight, target, real, 0.1)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, exact, rtol=0.02, atol=0.1)
    gradients = [torch.autograd.grad(total, (states, weight)) for total in (half, exact)]
    for a, b in zip(*gradients, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.1)


def test_nothing_is_saved_without_gradients() -> None:
    states, weight, target, real = case()
    with torch.no_grad():
        found, nll = linear_cross_entropy(states, weight, target, real)
    assert not found.requires_grad and float(found) == pytest.approx(float(nll))

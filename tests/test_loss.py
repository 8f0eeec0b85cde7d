"""Chunked losses against torch with all logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from waitinfo.model import loss as module
from waitinfo.model.loss import linear_cross_entropy, linear_log_probability


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


# Log-probabilities of single tokens


def tokens_case(
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    states = torch.randn(7, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 8, dtype=dtype, requires_grad=True)
    return states, weight, torch.randint(0, 11, (7,))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_probabilities_equal_torch(size: int) -> None:
    states, weight, tokens = tokens_case()
    logits = states @ weight.T
    expected = logits.log_softmax(-1)[torch.arange(7), tokens], logits.logsumexp(-1)
    found = linear_log_probability(states, weight, tokens, size)
    torch.testing.assert_close(found, expected)
    shares = torch.randn(2, 7, dtype=torch.float64)
    by_found, by_torch = (
        torch.autograd.grad((torch.stack(pair) * shares).sum(), (states, weight))
        for pair in (found, expected)
    )
    torch.testing.assert_close(by_found, by_torch)


def test_gradients_of_probabilities_equal_finite_differences() -> None:
    states, weight, tokens = tokens_case()
    torch.autograd.gradcheck(lambda *x: linear_log_probability(*x, tokens, 3), (states, weight))


def test_probabilities_in_half_precision_are_close() -> None:
    states, weight, tokens = tokens_case(torch.float32)
    exact = linear_log_probability(states, weight, tokens, 3)
    with torch.autocast("cpu", torch.bfloat16):
        half = linear_log_probability(states, weight, tokens, 3)
    torch.testing.assert_close(half, exact, rtol=0.02, atol=0.1)
    gradients = [
        torch.autograd.grad((gold + 0.1 * total).sum(), (states, weight))
        for gold, total in (half, exact)
    ]
    for a, b in zip(*gradients, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.1)

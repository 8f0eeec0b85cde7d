"""Chunked log-probabilities of tokens against torch with all logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from waitinfo.model.loss import linear_log_probability


def case(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    states = torch.randn(7, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 8, dtype=dtype, requires_grad=True)
    return states, weight, torch.randint(0, 11, (7,))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_equals_torch(size: int) -> None:
    states, weight, tokens = case()
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


def test_gradients_equal_finite_differences() -> None:
    states, weight, tokens = case()
    torch.autograd.gradcheck(lambda *x: linear_log_probability(*x, tokens, 3), (states, weight))


def test_in_half_precision_it_is_close() -> None:
    states, weight, tokens = case(torch.float32)
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

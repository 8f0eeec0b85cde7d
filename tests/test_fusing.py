"""A fused model is the same model: modules are replaced, parameters are kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")

from waitinfo.training.fusing import HalfLinear, fuse


@pytest.mark.parametrize("changes", [{"info": "attention"}, {"norm": "post", "write_head": True}])
def test_fusing_keeps_parameters_and_their_names(tiny_model, changes: dict) -> None:
    model = tiny_model(**changes)
    before = dict(model.named_parameters())
    saved = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fuse(model)
    after = dict(model.named_parameters())
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)
    assert model.state_dict().keys() == saved.keys()
    model.load_state_dict(saved)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert linears and all(isinstance(linear, HalfLinear) for linear in linears)
    assert all(not linear.training for linear in linears)


def test_a_half_linear_computes_with_its_copies() -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        linear = nn.Linear(5, 3, bias=bias)
        fused = HalfLinear(linear)
        assert fused.weight is linear.weight and fused.bias is linear.bias
        x = torch.randn(2, 5)
        fused.copies = {n: p.detach().to(torch.float16) for n, p in linear.named_parameters()}
        found = fused(x)
        assert found.dtype == torch.float16
        torch.testing.assert_close(found.float(), linear(x), rtol=5e-3, atol=5e-3)
        fused.adds_bias = False
        torch.testing.assert_close(
            fused(x).float(), x @ linear.weight.detach().T, rtol=5e-3, atol=5e-3
        )

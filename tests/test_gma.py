"""Gaussian attention against its formulas written out, and streams against training."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_config
from tests.engines import restless, sentences
from tests.oracle import batch_of
from waitinfo.errors import WaitinfoError
from waitinfo.model.info import cross_bias
from waitinfo.model.views import SourceView
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext, build_system, check_dial
from waitinfo.systems.networks.monotonic_heads import GaussianAttention, log_prior, needed_tokens

HEADS = 3


def literal_gaussian(
    module: GaussianAttention, x: Tensor, keys: Tensor, values: Tensor, delta: float
) -> tuple[Tensor, list[float]]:
    """One sentence: x [T, d], keys and values [H, S, d/H] -> output [T, d] and positions."""
    size = x.shape[1] // HEADS
    rows, positions, reached = [], [], x.new_zeros(())
    for i in range(len(x)):
        query = module.queries.weight @ x[i] + module.queries.bias
        if i > 0:
            hidden = torch.tanh(module.step_hidden.weight @ (query / math.sqrt(size)))
            reached = reached + torch.exp(module.step_out.weight[0] @ hidden)
        p = reached if float(reached.detach()) > 0.9 else x.new_tensor(0.9)
        positions.append(float(p.detach()))
        seen = min(math.ceil(positions[-1] + delta), keys.shape[1])
        mixed = []
        for head in range(HEADS):
            q = query[head * size : (head + 1) * size]
            alpha = torch.softmax(keys[head, :seen] @ q / math.sqrt(size), 0)
            bell = torch.stack(
                [torch.exp(-((j - p) ** 2) / (2 * (p / 2) ** 2)) for j in range(seen)]
            )
            posterior = alpha * bell / (alpha * bell).sum()
            mixed.append(posterior @ values[head, :seen])
        rows.append(module.out.weight @ torch.cat(mixed) + module.out.bias)
    return torch.stack(rows), positions


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.5])
def test_attention_and_its_gradients_equal_the_formula(delta: float) -> None:
    torch.manual_seed(0)
    module = GaussianAttention(12, HEADS, 0.0).double()
    x = (3 * torch.randn(2, 5, 12, dtype=torch.float64)).requires_grad_()
    states = torch.randn(2, 6, 12, dtype=torch.float64).requires_grad_()
    memory = module.memory(states)
    lengths = torch.tensor([6, 4])
    visible = lengths[:, None].expand(2, 5)
    at = torch.arange(5).expand(2, 5)
    view = SourceView(visible, cross_bias(visible, 6), torch.full((2,), delta), at=at)
    ours, report = module(x, memory, view)
    literal = []
    for row, n in enumerate(lengths.tolist()):
        keys, values = memory.keys[row, :, :n], memory.values[row, :, :n]
        output, positions = literal_gaussian(module, x[row], keys, values, delta)
        literal.append(output)
        assert report.state[row, 0].clamp_min(0.9).tolist() == pytest.approx(positions)
        stopped = [math.ceil(p + delta) <= n for p in positions]
        assert report.stopped[row].tolist() == [stopped] * HEADS
    torch.testing.assert_close(ours, torch.stack(literal), rtol=1e-9, atol=1e-11)
    inputs = [x, states, module.step_hidden.weight, module.step_out.weight]
    weight = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weight).sum(), inputs, retain_graph=True)
    theirs = torch.autograd.grad((torch.stack(literal) * weight).sum(), inputs)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


def test_prior_and_mask_by_hand() -> None:
    positions = torch.tensor([[[0.9, 2.0]]])
    prior = log_prior(positions, 4)[0, 0]
    # Standard deviations are 0.45 and 1: j = 0 is always two of them away.
    narrow = [-2.0, -(0.1**2) / 0.405, -(1.1**2) / 0.405, -(2.1**2) / 0.405]
    expected = [narrow, [-2.0, -0.5, 0.0, -0.5]]
    torch.testing.assert_close(prior, torch.tensor(expected))
    assert needed_tokens(positions, torch.tensor([1.0])).tolist() == [[[2.0, 3.0]]]
    assert needed_tokens(positions, torch.tensor([0.0])).tolist() == [[[1.0, 2.0]]]


def test_far_positions_stay_finite() -> None:
    torch.manual_seed(0)
    module = GaussianAttention(12, HEADS, 0.0)
    with torch.no_grad():
        module.step_out.weight.fill_(50)
        module.step_hidden.weight.fill_(9)
    x = torch.ones(1, 40, 12, requires_grad=True)
    visible, at = torch.full((1, 40), 7), torch.arange(40)[None]
    view = SourceView(visible, cross_bias(visible, 7), torch.ones(1), at=at)
    output, _ = module(x, module.memory(torch.randn(1, 7, 12)), view)
    output.sum().backward()
    assert output.isfinite().all() and x.grad.isfinite().all()


@pytest.mark.parametrize("delta", [0.0, 1.0, 3.0])
def test_streams_read_what_training_masks(tiny_model, delta: float) -> None:
    """Decode in streams, then train on the result: positions, prefixes and tokens are equal."""
    model = restless(tiny_model(seed=3, cross_attention="gma"))
    system = build_system("gma", {"delta": delta})
    sources = sentences(12, seed=1)
    found = Decoder(model, system, ending="allow", slots=5).decode(sources, delta)
    varied = set()
    for source, hypothesis in zip(sources, found, strict=True):
        batch = batch_of([(source, hypothesis.tokens)], pad_to=40)
        embedded = model.embed_source(batch.source)
        encoded = model.encode(embedded, batch.source_lengths)
        target = model.embed_target(batch.target_in)
        visible = batch.source_lengths[:, None].expand(batch.target_in.shape)
        dial = system.dial_rows(
            batch, LossContext(update=0, draw=random.Random(0)), system.options.delta
        )
        decoded = model.decode(target, encoded, visible, dial)
        # The path is the largest need of any layer so far, up to the source length.
        need = torch.stack([report.state for report in decoded.extras]).amax((0, 2))[0]
        need = (need.clamp_min(0.9) + delta).ceil().clamp_max(len(source) + 1)
        length = len(hypothesis.path)
        assert need[:length].tolist() == hypothesis.path
        best = model.logits(decoded.states)[0, :length, 3:].argmax(-1) + 3
        assert best[: len(hypothesis.tokens)].tolist() == hypothesis.tokens
        varied.update(hypothesis.path)
    assert len(varied) > 4, "the test needs paths that move"


def test_the_dial_is_delta_with_the_trained_one_as_default(tiny_model) -> None:
    system = build_system("gma", {"delta": 2.5})
    assert check_dial(system, None) == 2.5
    assert check_dial(system, 0.5) == 0.5
    with pytest.raises(WaitinfoError, match="delta must be a number of at least 0"):
        check_dial(system, -1)
    with pytest.raises(WaitinfoError, match="system.delta -1: must be 0 or more"):
        build_system("gma", {"delta": -1})
    with pytest.raises(WaitinfoError, match="plain: gma requires gma"):
        system.check_model(tiny_config())
    model, batch = tiny_model(cross_attention="gma"), batch_of([([5, 6, 7, 8, 9, 10], [11, 12])])

    def loss(options: dict, k: float | None = None) -> float:
        context = LossContext(update=5, draw=random.Random(0), k=k)
        return float(build_system("gma", options).loss(model, batch, context).total.detach())

    assert loss({"delta": 0.0}) == loss({"delta": 4.0}, k=0.0) != loss({"delta": 4.0})
    assert loss({"whole_source_updates": 6}) == loss({"delta": 99.0}) != loss({})

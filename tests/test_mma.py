"""Monotonic attention against walks enumerated one by one, in float64."""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import tiny_config
from tests.engines import restless, sentences
from tests.oracle import batch_of, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext, build_system, check_dial
from waitinfo.systems.networks.monotonic_heads import (
    delay_variance,
    expected_alignment,
    expected_delays,
    expected_lags,
    lookback,
    slowest_delays,
    stop_probability,
    walk,
)
from waitinfo.text.special import EOS


def all_walks(p: Tensor, length: int) -> list[tuple[list[int], Tensor]]:
    """Every walk of one head through p [T, S], with its probability.

    A head stops at j with probability p_ij, and always at the last token.
    """
    walks = []
    for positions in itertools.product(range(length), repeat=len(p)):
        if any(b < a for a, b in itertools.pairwise(positions)):
            continue
        probability, start = p.new_ones(()), 0
        for i, position in enumerate(positions):
            for j in range(start, position):
                probability = probability * (1 - p[i, j])
            if position < length - 1:
                probability = probability * p[i, position]
            start = position
        walks.append((list(positions), probability))
    return walks


def literal_alignment(p: Tensor, length: int) -> Tensor:
    """[T, S], summed over all walks."""
    rows = [[p.new_zeros(())] * p.shape[1] for _ in range(p.shape[0])]
    for positions, probability in all_walks(p, length):
        for i, position in enumerate(positions):
            rows[i][position] = rows[i][position] + probability
    return torch.stack([torch.stack(row) for row in rows])


def literal_lookback(p: Tensor, energies: Tensor, length: int) -> Tensor:
    """[T, S]: for each walk, a softmax over the tokens up to the position of the head."""
    beta = torch.zeros_like(p)
    for positions, probability in all_walks(p, length):
        rows = []
        for i, position in enumerate(positions):
            share = energies[i, : position + 1].softmax(0)
            rows.append(torch.cat([share, share.new_zeros(p.shape[1] - position - 1)]))
        beta = beta + probability * torch.stack(rows)
    return beta


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(9)).double()
    return list(torch.autograd.grad((output * weight).sum(), inputs, retain_graph=True))


@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_alignment_and_lookback_are_sums_over_all_walks(spread: float) -> None:
    torch.manual_seed(0)
    lengths = [5, 3]
    stop, soft = (
        (spread * torch.randn(2, 2, 4, 5, dtype=torch.float64)).requires_grad_() for _ in range(2)
    )
    visible = torch.tensor(lengths)[:, None, None].expand(2, 1, 4)
    alpha = expected_alignment(stop_probability(stop, visible))
    beta = lookback(alpha, soft)
    literal = [
        [
            (
                literal_alignment(stop[b, h].sigmoid(), n),
                literal_lookback(stop[b, h].sigmoid(), soft[b, h], n),
            )
            for h in range(2)
        ]
        for b, n in enumerate(lengths)
    ]
    literal_alpha, literal_beta = (
        torch.stack([torch.stack([head[which] for head in row]) for row in literal])
        for which in (0, 1)
    )
    torch.testing.assert_close(alpha, literal_alpha, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(beta, literal_beta, rtol=1e-10, atol=1e-13)
    for mine, theirs in (
        (gradients(alpha, [stop]), gradients(literal_alpha, [stop])),
        (gradients(beta, [stop, soft]), gradients(literal_beta, [stop, soft])),
    ):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.1, 5.0, 60.0])
def test_long_sentences_stay_exact(dtype: torch.dtype, scale: float) -> None:
    """Length 100 with energies of any size: mass 1, finite gradients, close to float64."""
    torch.manual_seed(1)
    stop = (scale * torch.randn(2, 2, 100, 100) - scale).to(dtype).requires_grad_()
    soft = (scale * torch.randn(2, 2, 100, 100)).to(dtype).requires_grad_()
    visible = torch.tensor([100, 63])[:, None, None].expand(2, 1, 100)

    def both(exact: torch.dtype) -> tuple[Tensor, Tensor]:
        alpha = expected_alignment(stop_probability(stop.to(exact), visible))
        return alpha, lookback(alpha, soft.to(exact))

    alpha, beta = both(torch.float32)
    for found, exact in zip((alpha, beta), both(torch.float64), strict=True):
        torch.testing.assert_close(found.sum(-1), torch.ones(2, 2, 100), atol=1e-4, rtol=0)
        torch.testing.assert_close(found.double(), exact, atol=1e-4, rtol=0)
        assert not found[1, :, :, 63:].any()
    for gradient in torch.autograd.grad((beta * torch.randn_like(beta)).sum(), [stop, soft]):
        assert gradient.isfinite().all() and gradient.any()


def literal_walk(p: list[list[float]], visible: list[int], threshold: float, at: int):
    positions, found = [], []
    for row, seen in zip(p, visible, strict=True):
        while at < seen - 1 and row[at] < threshold:
            at += 1
        positions.append(at)
        found.append(row[at] >= threshold)
    return positions, found


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8])
def test_hard_walk_equals_a_plain_loop(threshold: float) -> None:
    torch.manual_seed(2)
    p = torch.rand(3, 4, 6, 9)
    visible = torch.tensor([[2, 3, 5, 5, 8, 9], [1, 1, 1, 4, 4, 4], [9] * 6])
    before = torch.tensor([[0, 1, 1, 0], [0] * 4, [3, 8, 0, 5]])
    positions, found = walk(p >= threshold, visible[:, None], before)
    for b, h in itertools.product(range(3), range(4)):
        expected = literal_walk(p[b, h].tolist(), visible[b].tolist(), threshold, int(before[b, h]))
        assert (positions[b, h].tolist(), found[b, h].tolist()) == expected


def test_expected_delay_by_hand() -> None:
    """Two heads and two tokens: one head stays on the first, the other moves to the second."""
    still = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    moving = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    delays = expected_delays(torch.stack([still, moving])[None])
    assert delays.tolist() == [[[1.0, 1.0], [1.5, 2.0]]]
    slow = slowest_delays(delays)[0].tolist()
    half, one = math.exp(0.5), math.exp(1.0)  # softmax weights relative to the first head
    expected = [(1 + 1.5 * half) / (1 + half), (1 + 2 * one) / (1 + one)]
    assert slow == pytest.approx(expected)
    # Two source tokens and two target tokens: rate 1, so the second token lags g_2 - 1. In DAL the
    # lag never falls: max(g_1, g_2 - 1) = g_1.
    batch = batch_of([([5], [6])])
    lags = expected_lags(torch.tensor([slow]), batch)
    assert lags[0].tolist() == pytest.approx([slow[0], max(slow[0], slow[1] - 1)])
    # Variances of the heads: ((1 - 1.25)^2 + (1.5 - 1.25)^2) / 2 and (0.5^2 + 0.5^2) / 2.
    assert delay_variance(delays, batch).tolist() == pytest.approx([(0.0625 + 0.25) / 2])


def literal_dal(delays: list[float], n: int, m: int) -> float:
    total, last = 0.0, -math.inf
    for i, delay in enumerate(delays):
        last = max(delay, last + n / m)
        total += last - i * n / m
    return total / m


@pytest.mark.parametrize("kind", ["mma", "mma-hard"])
def test_the_loss_adds_the_slowest_heads_lag(tiny_model, kind: str) -> None:
    pairs = [([5, 6, 7, 8], [9, 10, 11]), ([12], [13, 14, 15, 16, 17])]
    model, batch = tiny_model(cross_attention=kind), batch_of(pairs, pad_to=9)

    def total(latency: float, variance: float, update: int = 7) -> float:
        context = LossContext(update, random.Random(0))
        options = {"latency_weight": latency, "variance_weight": variance, "latency_after": 7}
        return float(build_system("mma", options).loss(model, batch, context).total.detach())

    source, target = model.embed_source(batch.source), model.embed_target(batch.target_in)
    encoded = model.encode(source, batch.source_lengths)
    visible = batch.source_lengths[:, None].expand(batch.target_in.shape)
    extras = model.decode(target, encoded, visible).extras
    delays = (
        torch.cat([report.alignment for report in extras], 1) @ torch.arange(1.0, 10.0).double()
    )
    lag = spread = 0.0
    for row, (n, m) in enumerate([(5, 4), (2, 6)]):
        heads = delays[row, :, :m]
        slow = [float((h.softmax(0) * h).sum().detach()) for h in heads.T]
        lag += literal_dal(slow, n, m)
        spread += float(((heads - heads.mean(0)) ** 2).mean().detach())
    assert total(0.5, 0) - total(0, 0) == pytest.approx(0.5 * lag, rel=1e-5)
    assert total(0.5, 0.5, update=6) == total(0, 0)
    assert total(0, 0.5) - total(0, 0) == pytest.approx(0.5 * spread, rel=1e-5)


@pytest.mark.parametrize("kind", ["mma", "mma-hard"])
def test_training_equals_streaming_for_clear_decisions(tiny_model, kind: str) -> None:
    """If every p is 0 or 1, the expectation equals the hard walk, in every layer."""
    model = restless(tiny_model(seed=4, cross_attention=kind, info="attention"))
    with torch.no_grad():
        for layer in model.decoder_layers:
            layer.cross.queries.weight.mul_(2000)
            layer.cross.project.weight[: model.config.width].mul_(50)
    if kind == "mma":  # do not scale the soft attention
        with torch.no_grad():
            for layer in model.decoder_layers:
                soft = layer.cross.queries.weight.unflatten(0, (4, 2, -1))[:, 1]
                soft.div_(2000)
    batch = batch_of([([5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15]), ([16, 17], [18])], pad_to=9)
    source, target = model.embed_source(batch.source), model.embed_target(batch.target_in)
    encoded = model.encode(source, batch.source_lengths)
    visible = batch.source_lengths[:, None].expand(batch.target_in.shape)
    soft, hard = (
        model.decode(target, encoded, visible, streaming=streaming) for streaming in (False, True)
    )
    alignment, state = soft.extras[0].alignment, hard.extras[0].state
    assert len(state.unique()) > 3
    columns = torch.arange(9.0, dtype=torch.float64)
    torch.testing.assert_close(alignment @ columns, state, atol=1e-6, rtol=0)
    torch.testing.assert_close(soft.states, hard.states, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["mma", "mma-hard"])
def test_streams_equal_uncached_decoding_over_the_dial(tiny_model, kind: str) -> None:
    model = restless(tiny_model(seed=3, cross_attention=kind))
    system = build_system("mma")
    sources = sentences(8)
    read = []
    for threshold in (0.1, 0.9, 1.0):
        found = Decoder(model, system, slots=5).decode(sources, threshold)
        expected = uncached_decodes(model, system, sources, [threshold] * len(sources))
        for (tokens, path), hypothesis in zip(expected, found, strict=True):
            assert hypothesis.tokens == [t for t in tokens if t != EOS]
            assert hypothesis.path == path
        read.append(sum(h.path[0] for h in found))
        whole = all(h.path[0] == h.source_length for h in found)
    assert read == sorted(read) and read[0] < read[1] < read[2] and whole, read


def test_half_precision_training_is_finite() -> None:
    """In a new process: some virtual machines report matrix units that do not work."""
    script = """
        import random, torch
        from tests.conftest import tiny_config
        from tests.oracle import batch_of
        from waitinfo.model import Transformer
        from waitinfo.systems import LossContext, build_system
        batch = batch_of([(list(range(4, 14)), list(range(14, 24))), ([4], [5])])
        for name in ("mma", "gma"):
            torch.manual_seed(0)
            system = build_system(name)
            model = Transformer(tiny_config(cross_attention=name)).train()
            with torch.autocast("cpu", torch.bfloat16):
                context = LossContext(0, random.Random(0), 0.1)
                losses = system.loss(model, batch, context)
            losses.total.backward()
            for parameter, p in model.named_parameters():
                assert p.grad.isfinite().all() and p.grad.any(), (name, parameter)
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
    )


def test_dial_and_attention_are_checked() -> None:
    system = build_system("mma")
    with pytest.raises(WaitinfoError, match="threshold must be a number from 0 to 1"):
        check_dial(system, 3)
    assert check_dial(system, None) == 0.5
    with pytest.raises(WaitinfoError, match="plain: mma requires mma or mma-hard"):
        system.check_model(tiny_config())
    with pytest.raises(WaitinfoError, match="mma: wait-k requires plain"):
        build_system("wait-k").check_model(tiny_config(cross_attention="mma"))
    with pytest.raises(WaitinfoError, match="system.latency_weight -1.0: must be 0 or more"):
        build_system("mma", {"latency_weight": -1})

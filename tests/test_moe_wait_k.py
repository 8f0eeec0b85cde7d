"""MoE wait-k: experts and gates written out literally, and cases where it equals wait-k."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.engines import restless, sentences
from tests.oracle import batch_of, uncached_decode
from waitinfo.errors import WaitinfoError
from waitinfo.model import ModelConfig, Transformer
from waitinfo.model.attention import merge_heads
from waitinfo.model.info import cross_bias
from waitinfo.model.views import Memory, SourceView
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext, build_system
from waitinfo.systems.moe_wait_k import spread_lags
from waitinfo.systems.networks.experts import ExpertAttention
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.trained.saving import load_model
from waitinfo.trained.tensors import read_tensors
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

pytestmark = pytest.mark.usefixtures("loops_are_not_cut")

H = 4
PAIRS = [([5, 6, 7, 8, 9, 10, 11], [10, 11, 12]), ([13], [14, 15, 16, 17]), ([20, 21], [22])]


def moe_model(tiny_model, seed: int = 3) -> Transformer:
    """A model with varied output and gates that are not 1."""
    return restless(tiny_model(seed=seed, cross_attention="moe"))


def without_gates(model: Transformer) -> Transformer:
    with torch.no_grad():
        for layer in model.decoder_layers:
            layer.cross.gate.weight.zero_()
            layer.cross.gate.bias.zero_()
    return model


def test_lags_equal_those_of_the_authors() -> None:
    assert spread_lags(4) == (1, 6, 11, 16)
    assert spread_lags(8) == (1, 3, 5, 7, 9, 11, 13, 15)
    assert spread_lags(16) == tuple(range(1, 17))
    assert spread_lags(1) == (16,)
    assert spread_lags(2) == (1, 16)
    assert spread_lags(6) == (1, 4, 7, 10, 13, 16)
    assert spread_lags(31)[:4] == (1, 1, 2, 2) and spread_lags(31)[-1] == 16


def literal_experts(
    attention: ExpertAttention, x: Tensor, keys: Tensor, values: Tensor,
    visible: list[list[int]], read: list[int], k: float,
) -> tuple[list[Tensor], list[list[float]]]:  # fmt: skip
    """One sentence, expert by expert: x [T, d]; keys, values [H, S, d/H]."""
    heads, width = keys.shape[0], keys.shape[2]
    outputs, gates = [], []
    for i in range(len(x)):
        query = (attention.queries.weight @ x[i] + attention.queries.bias).view(heads, width)
        found, mass = [], []
        for h in range(heads):
            energies = [float(query[h] @ keys[h, j]) / math.sqrt(width) for j in range(read[i])]
            seen = visible[h][i]
            own = [math.exp(e) for e in energies[:seen]]
            found.append(sum(e * values[h, j] for j, e in enumerate(own)) / sum(own))
            over_all = [math.exp(e) / sum(map(math.exp, energies)) for e in energies]
            mass.append(sum(over_all[:seen]) / seen)
        inputs = torch.tensor([*mass, k / 10], dtype=torch.float64)
        scores = torch.tanh(attention.gate.weight @ inputs + attention.gate.bias).exp()
        gate = heads * scores / scores.sum()
        mixed = torch.cat([gate[h] * found[h] for h in range(heads)])
        outputs.append(attention.out.weight @ mixed + attention.out.bias)
        gates.append(gate.tolist())
    return outputs, gates


@torch.no_grad()
def test_attention_equals_the_literal_mixture() -> None:
    torch.manual_seed(0)
    attention = ExpertAttention(12, 3, 0.0).double().eval()
    for parameter in attention.gate.parameters():
        parameter.normal_(std=2)
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 3, 7, 4, dtype=torch.float64)
    read = torch.tensor([[3, 4, 6], [2, 7, 7]])
    visible = torch.tensor([[[1, 2, 3], [3, 4, 6], [2, 3, 4]], [[1, 2, 3], [2, 5, 7], [2, 4, 6]]])
    k = torch.tensor([3.0, 11.0])
    view = SourceView(visible, cross_bias(visible, 7), k, cross_bias(read, 7))
    found, report = attention(x, Memory(keys, values), view)
    gates = report.gates
    for b in range(2):
        expected, weighed = literal_experts(
            attention, x[b], keys[b], values[b], visible[b].tolist(), read[b].tolist(), float(k[b])
        )
        torch.testing.assert_close(found[b], torch.stack(expected), rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(gates[b].T, torch.tensor(weighed, dtype=torch.float64))
    torch.testing.assert_close(gates.sum(1), torch.full((2, 3), 3.0, dtype=torch.float64))
    assert gates.std() > 0.1


@torch.no_grad()
def test_experts_have_equal_weight_without_a_dial_or_training() -> None:
    torch.manual_seed(0)
    attention = ExpertAttention(12, 3, 0.0).double()
    x = torch.randn(1, 2, 12, dtype=torch.float64)
    keys, values = torch.randn(2, 1, 3, 5, 4, dtype=torch.float64)
    visible = torch.tensor([[[1, 2], [2, 3], [4, 5]]])
    bias, memory = cross_bias(visible, 5), Memory(keys, values)
    queries = attention.queries(x).view(1, 2, 3, 4).transpose(1, 2)
    weights = (queries @ keys.transpose(2, 3) / 2 + bias).softmax(-1)
    expected = attention.out(merge_heads(weights @ values))
    for k in (None, torch.tensor([7.0])):
        found, _ = attention(x, memory, SourceView(visible, bias, k))
        torch.testing.assert_close(found, expected)
    attention.gate.bias.copy_(torch.tensor([1.0, 0, 0]))
    found, _ = attention(x, memory, SourceView(visible, bias, torch.tensor([7.0])))
    assert not torch.allclose(found, expected)


@pytest.mark.parametrize(
    ("k", "catch_up", "expected"),
    [
        (3, 0, [[1, 2, 3, 4, 5], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7]]),
        (8, 0, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 9], [8, 9, 9, 9, 9], [8, 9, 9, 9, 9]]),
        (20, 0, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 9], [9] * 5, [9] * 5]),
        (2, 2, [[1, 2, 4, 5, 7], [2, 3, 5, 6, 8], [2, 3, 5, 6, 8], [2, 3, 5, 6, 8]]),
    ],
)
def test_paths_of_the_heads_by_hand(k: int, catch_up: int, expected: list) -> None:
    """Experts 1, 6, 11 and 16; eight source tokens and end-of-sentence."""
    system = build_system("moe-wait-k", {"catch_up": catch_up})
    batch = batch_of([([5] * 8, [6] * 4)])
    read = system.path(batch, None, None, k)
    visible = system.visible(read, torch.arange(5), torch.tensor([[k]]), H)
    assert visible.tolist() == [expected]


def test_reading_further_than_wait_k_shows_all_experts_more() -> None:
    system = build_system("moe-wait-k")
    read = torch.tensor([[7], [4], [6]])  # two more than needed; complete; dial lowered
    written = torch.tensor([[2], [6], [1]])
    k = torch.tensor([[3.0], [3.0], [2.0]], dtype=torch.float64)
    visible = system.visible(read, written, k, H)
    assert visible[..., 0].tolist() == [[5, 7, 7, 7], [4, 4, 4, 4], [5, 6, 6, 6]]


@pytest.mark.parametrize("ending", ["guard", "allow"])
@pytest.mark.parametrize(("lags", "k"), [("3,3,3,3", 3), ("16,16,16,16", 2), ("5,4,4,7", 4)])
def test_equal_experts_are_wait_k(tiny_model, monkeypatch, lags: str, k: int, ending: str) -> None:
    model = without_gates(moe_model(tiny_model))
    plain = tiny_model(seed=3)
    shared = {name: w for name, w in model.weights().items() if ".gate." not in name}
    plain.load_weights(shared)
    moe, fixed = build_system("moe-wait-k", {"lags": lags}), build_system("wait-k")
    batch = batch_of(PAIRS, pad_to=12)
    context = LossContext(update=0, draw=random.Random(0), label_smoothing=0.1, k=k)
    states, decode = [], Transformer.decode
    monkeypatch.setattr(
        Transformer, "decode", lambda s, *given: states.append(decode(s, *given)) or states[-1]
    )
    totals = [s.loss(net, batch, context).total for net, s in ((model, moe), (plain, fixed))]
    torch.testing.assert_close(*totals, rtol=1e-10, atol=1e-10)
    logits = [plain.logits(found.states) for found in states]
    torch.testing.assert_close(*logits, rtol=1e-10, atol=1e-10)
    sources = sentences(20, seed=9)
    found = Decoder(model, moe, ending).decode(sources, k)
    expected = Decoder(plain, fixed, ending).decode(sources, k)
    assert [(h.tokens, h.path) for h in found] == [(h.tokens, h.path) for h in expected]


@torch.no_grad()
@pytest.mark.parametrize("k", [1, 4, 7])
def test_training_sees_what_streaming_saw(tiny_model, monkeypatch, k: int) -> None:
    """Visible prefixes, dials and tokens of a stream equal those in one pass of the loss."""
    model, system = moe_model(tiny_model), build_system("moe-wait-k", {"lags": "1,3,5,6"})
    streamed, trained, states = [], [], []
    step, decode = Transformer.step, Transformer.decode

    def watched_step(self, *given, **options):
        streamed.append((given[2][0, :, 0].tolist(), float(given[5]), int(given[6])))
        return step(self, *given, **options)

    def watched_decode(self, *given):
        trained.append(given[2:5])
        states.append(decode(self, *given))
        return states[-1]

    monkeypatch.setattr(Transformer, "step", watched_step)
    monkeypatch.setattr(Transformer, "decode", watched_decode)
    monkeypatch.setattr(system, "draw_dial", lambda batch, context: k)
    for source in sentences(8, seed=5):
        streamed.clear()
        hypothesis = Decoder(model, system, "allow", slots=1).decode([source], k)[0]
        batch = batch_of([(source, hypothesis.tokens)], pad_to=14)
        system.loss(model, batch, LossContext(update=10**6, draw=random.Random(0)))
        visible, dial, read = trained[-1]
        for place, (heads, used, had) in enumerate(streamed):
            assert visible[0, :, place].tolist() == heads
            assert (float(dial), int(read[0, place])) == (used, had)
        logits = model.logits(states[-1].states)[0, : len(streamed)]
        logits[:, [PAD, BOS]] = -torch.inf
        written = hypothesis.tokens + [EOS] * hypothesis.ended
        assert logits.argmax(-1).tolist() == written


@pytest.mark.parametrize("k", [2, 6, 9])
def test_explicit_lags_equal_uncached_decoding(tiny_model, k: int) -> None:
    model, system = moe_model(tiny_model, seed=4), build_system("moe-wait-k", {"lags": "1,2,4,7"})
    sources = sentences(10, seed=12)
    for source, hypothesis in zip(sources, Decoder(model, system).decode(sources, k), strict=True):
        tokens, path = uncached_decode(model, system, source, k)
        assert (hypothesis.tokens, hypothesis.path) == ([t for t in tokens if t != EOS], path)


def test_the_drawn_dial_makes_the_path_and_reaches_the_network(tiny_model, monkeypatch) -> None:
    model, system = moe_model(tiny_model), build_system("moe-wait-k", {"equal_updates": 0})
    batch, seen, decode = batch_of(PAIRS), [], Transformer.decode
    monkeypatch.setattr(
        Transformer, "decode", lambda s, *given: seen.append(given[2:5]) or decode(s, *given)
    )
    dials = set()
    for seed in range(12):
        system.loss(model, batch, LossContext(0, random.Random(seed)))
        visible, k, read = seen[-1]
        drawn = random.Random(seed).randint(1, batch.longest_source)
        assert k.tolist() == [drawn] * 3
        assert torch.equal(read, system.path(batch, None, None, drawn))
        assert visible[0, :, 0].tolist() == [min(lag, drawn) for lag in (1, 6, 11, 16)]
        dials.add(drawn)
    assert len(dials) > 3


def test_stage_one_has_no_gates(tiny_model) -> None:
    gated, equal = moe_model(tiny_model), without_gates(moe_model(tiny_model))
    system = build_system("moe-wait-k", {"equal_updates": 5})
    batch = batch_of(PAIRS)

    def loss(model: Transformer, update: int, k: float | None = None) -> Tensor:
        return system.loss(model, batch, LossContext(update, random.Random(1), k=k)).total

    torch.testing.assert_close(loss(gated, 4), loss(equal, 4))
    torch.testing.assert_close(loss(equal, 5), loss(equal, 4))
    assert not torch.allclose(loss(gated, 5), loss(gated, 4))
    assert not torch.allclose(loss(gated, 0, k=4), loss(equal, 0, k=4)), "validation has gates"
    for update, learns in ((4, False), (5, True)):
        equal.zero_grad(set_to_none=True)
        loss(equal, update).backward()
        gradients = [layer.cross.gate.weight.grad for layer in equal.decoder_layers]
        assert all((g is not None and bool(g.abs().sum() > 0)) is learns for g in gradients)


def test_stages_of_a_run(toy_corpus: Path, tmp_path: Path) -> None:
    """Stage one does not change the gates; a run resumed between the stages is the same."""
    values = {
        "data": str(toy_corpus), "size": "tiny", "model": {"width": 32, "ffn": 32},
        "system": {"name": "moe-wait-k", "equal_updates": 4},
        "training": {"updates": 9, "batch_tokens": 400, "lr": 3e-3, "warmup": 2,
                     "validate_every": 100, "validate_sentences": 0, "checkpoint_every": 4},
    }  # fmt: skip
    train(values, tmp_path / "whole", display=SilentDisplay())
    short = {**values, "training": {**values["training"], "updates": 4}}
    train(short, tmp_path / "parts", display=SilentDisplay())
    first = load_model(tmp_path / "parts").model
    gates = [layer.cross.gate for layer in first.decoder_layers]
    assert all(not p.any() for gate in gates for p in gate.parameters())
    train({"training": {"updates": 9}}, tmp_path / "parts", resume=True, display=SilentDisplay())
    whole, parts = (
        read_tensors(tmp_path / run / "last" / "model.safetensors") for run in ("whole", "parts")
    )
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert all(tensor.any() for name, tensor in whole.items() if ".gate." in name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lags": "1,x"}, "system.lags '1,x': must be whole numbers of at least 1"),
        ({"lags": "0,1"}, "must be whole numbers of at least 1, as in 1,6,11,16"),
        ({"lags": "1,2,3"}, "system.lags 1,2,3: 3 lags for 4 heads; give one for each"),
        ({"equal_updates": -1}, "system.equal_updates -1: must be 0 or more"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message):
        build_system("moe-wait-k", options).check_model(
            ModelConfig(10, 10, heads=4, cross_attention="moe")
        )


def test_experts_and_plain_attention_are_not_interchangeable() -> None:
    moe, plain = ModelConfig(10, 10, cross_attention="moe"), ModelConfig(10, 10)
    for name, config in (("wait-k", moe), ("full", moe), ("moe-wait-k", plain)):
        with pytest.raises(WaitinfoError, match=r"cross_attention (moe|plain): .* requires"):
            build_system(name).check_model(config)

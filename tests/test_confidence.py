"""Training options of all systems: loss weights by confidence, several dials, a curriculum."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.oracle import batch_of
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.model.batch import Batch
from waitinfo.model.saving import load_model
from waitinfo.systems import LossContext, System, build_system
from waitinfo.systems.base import spread_dial
from waitinfo.systems.confidence import confidence_weights
from waitinfo.training import train
from waitinfo.training.defaults import stage_lengths
from waitinfo.training.display import SilentDisplay
from waitinfo.training.graphs import stage

PAIRS = [([5, 6, 7, 8, 9, 10], [10, 11, 12]), ([5, 6], [12, 13, 14, 15]), ([9, 8, 7], [20])]
SMOOTHING = 0.1


def context(k: object, update: int = 50_000) -> LossContext:
    dial = None if k is None else torch.as_tensor(k)
    return LossContext(update, random.Random(1), SMOOTHING, dial=dial)


def test_weights_by_hand() -> None:
    """Confidences 1, 1/4 and, in another sentence, 1/2: a token of padding counts for nothing."""
    confidence = torch.tensor([[1, 0.25], [0.5, 0.9]], dtype=torch.float64).log()
    real = torch.tensor([[True, True], [True, False]])
    found = confidence_weights(confidence, real, 1.0, 0.0)
    # The sum 1.75 becomes 3.
    expected = torch.tensor([[1, 0.25], [0.5, 0]], dtype=torch.float64) * 3 / 1.75
    torch.testing.assert_close(found, expected)
    # The geometric means of both sentences are 1/2, so that all weights are equal.
    found = confidence_weights(confidence, real, 0.0, 1.0)
    torch.testing.assert_close(found, real.double())
    # Square root of the token, times the square of the sentence.
    found = confidence_weights(confidence, real, 0.5, 2.0)
    raw = torch.tensor([[1, 0.5], [math.sqrt(0.5), 0]], dtype=torch.float64)
    torch.testing.assert_close(found, raw * 3 / raw.sum())


@pytest.mark.parametrize("power", [0.0, 0.25, 0.5])
def test_weights_sharpen_a_distribution(power: float) -> None:
    """Gradient descent on one distribution q ends at q^(1/(1 - power)), as the page says."""
    q = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    logits = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    real = torch.ones(1, 10, dtype=torch.bool)
    tokens = torch.tensor([[0] * 6 + [1] * 3 + [2]])
    for _ in range(3000):
        found = logits.log_softmax(-1)[tokens]
        loss = -(confidence_weights(found.detach(), real, power, 0.0) * found).mean()
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - gradient).detach().requires_grad_()
    expected = q ** (1 / (1 - power))
    torch.testing.assert_close(
        logits.softmax(-1).detach(), expected / expected.sum(), atol=1e-6, rtol=0
    )


def read_everything(batch: Batch) -> Tensor:
    return batch.source_lengths[:, None].expand(batch.target_in.shape)


def literal_loss(
    model: Transformer, system: System, batch: Batch, k: float, kind: str, powers: tuple
) -> tuple[Tensor, float]:
    """The weighted loss with all logits, token by token; and the plain negative log-likelihood."""
    source, target = model.embed_source(batch.source), model.embed_target(batch.target_in)
    encoded = model.encode(source, batch.source_lengths)
    read = system.path(batch, source.info, target.info, k)
    dials = torch.full((batch.pairs,), float(k))
    written = torch.arange(read.shape[1])
    visible = system.visible(read, written, dials[:, None], model.config.heads)
    both = []
    for seen, reached in ((visible, read), (read_everything(batch),) * 2):
        states = model.decode(target, encoded, seen, dials, reached).states
        both.append(model.logits(states).log_softmax(-1))
    rows = []  # (sentence, weight before normalising, loss)
    nll = 0.0
    for b, (_, m) in enumerate(batch.lengths):
        found = []
        for t in range(m):
            gold = int(batch.target_out[b, t])
            logp = both[0][b, t]
            confidence = logp[gold].item()
            nll -= confidence
            if kind == "relative":
                confidence = min(0.0, confidence - both[1][b, t, gold].item())
            found.append((confidence, -(1 - SMOOTHING) * logp[gold] - SMOOTHING * logp.mean()))
        mean = sum(confidence for confidence, _ in found) / m
        rows += [(math.exp(powers[0] * c + powers[1] * mean), loss) for c, loss in found]
    scale = len(rows) / sum(weight for weight, _ in rows)
    return sum(weight * scale * loss for weight, loss in rows), nll


@pytest.mark.parametrize("kind", ["prefix", "relative"])
@pytest.mark.parametrize("powers", [(1.0, 0.0), (0.5, 1.5)])
@pytest.mark.parametrize("name", ["wait-k", "multipath", "moe-wait-k", "wait-info"])
def test_the_loss_equals_the_formula(tiny_model, name: str, kind: str, powers: tuple) -> None:
    options = {"confidence": kind, "confidence_power": powers[0], "sentence_power": powers[1]}
    system = build_system(name, {**options, "info_weight": 0.0})
    if name == "moe-wait-k":
        system = build_system(name, {**options, "info_weight": 0.0, "equal_updates": 0})
    model, batch = tiny_model(**system.model_defaults), batch_of(PAIRS, pad_to=8)
    losses = system.loss(model, batch, context(2.0))
    expected, nll = literal_loss(model, system, batch, 2.0, kind, powers)
    torch.testing.assert_close(losses.total, expected)
    assert float(losses.parts["nll"]) == pytest.approx(nll)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(losses.total, parameters, allow_unused=True)
    right = torch.autograd.grad(expected, parameters, allow_unused=True)
    for a, b in zip(found, right, strict=True):
        if a is not None and b is not None:
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["mma", "gma", "adaptive-wait-k"])
def test_other_systems_take_weights(tiny_model, name: str) -> None:
    plain, weighted = (build_system(name, {"confidence": c}) for c in ("none", "prefix"))
    model, batch = tiny_model(**plain.model_defaults), batch_of(PAIRS)
    losses = [system.loss(model, batch, context(None)) for system in (plain, weighted)]
    assert losses[0].total != losses[1].total
    torch.testing.assert_close(losses[0].parts["nll"], losses[1].parts["nll"])


def test_where_there_is_no_prefix_all_tokens_count(tiny_model) -> None:
    """With the whole source visible, and in validation, losses are the plain ones."""
    plain = build_system("wait-info", {})
    weighted = build_system("wait-info", {"confidence": "prefix"})
    model, batch = tiny_model(**plain.model_defaults), batch_of(PAIRS)
    fixed = LossContext(50_000, random.Random(1), SMOOTHING, k=3.0)
    for given in (context(None, update=0), fixed):
        totals = [system.loss(model, batch, given).total for system in (plain, weighted)]
        assert totals[0] == totals[1]
    drawn = [system.loss(model, batch, context(3.0)).total for system in (plain, weighted)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("kind", ["prefix", "relative"])
def test_weights_begin_when_something_is_learned(tiny_model, kind: str) -> None:
    plain = build_system("wait-info", {"whole_source_updates": 0})
    options = {"confidence": kind, "confidence_after": 70, "whole_source_updates": 0}
    weighted = build_system("wait-info", options)
    model, batch = tiny_model(**plain.model_defaults), batch_of(PAIRS)
    for update, same in ((69, True), (70, False)):
        given = context(3.0, update)
        totals = [system.loss(model, batch, given).total for system in (plain, weighted)]
        assert bool(totals[0] == totals[1]) is same
    # Updates before and after are recorded apart, and a short run has its share of both.
    assert stage(weighted, 69) != stage(weighted, 70) and stage(plain, 69) == stage(plain, 70)
    assert stage_lengths(weighted, 4000)["confidence_after"] == 1000
    assert "confidence_after" not in stage_lengths(plain, 4000)


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("wait-k", {"confidence_after": -1}, "system.confidence_after -1: must be 0 or more"),
        ("full", {"confidence": "prefix"}, "full trains without a path of its own"),
        ("gsimt", {"confidence": "relative"}, "and offers only none"),
        ("mma", {"confidence": "relative"}, "mma .* offers only none or prefix"),
        ("wait-k", {"confidence": "high"}, "unknown system.confidence 'high'"),
        ("wait-k", {"confidence_power": -1}, "system.confidence_power -1: must be 0 or more"),
        ("wait-info", {"draws": 0}, "system.draws 0: must be at least 1"),
        ("multipath", {"curriculum_updates": -1}, "must be 0 or more"),
    ],
)
def test_bad_options(name: str, options: dict, error: str) -> None:
    with pytest.raises(WaitinfoError, match=error):
        build_system(name, options)


# Several dials


@pytest.mark.parametrize("name", ["multipath", "moe-wait-k", "wait-info"])
def test_sentences_take_the_dials_in_turn(tiny_model, name: str) -> None:
    """The loss of a batch with three dials is the sum of the sentences' own at theirs."""
    system = build_system(name, {"draws": 2})
    model, batch = tiny_model(**system.model_defaults), batch_of(PAIRS)
    found = system.loss(model, batch, context([1.0, 4.0])).total
    alone = [
        system.loss(model, batch_of([pair]), context(k)).total
        for pair, k in zip(PAIRS, (1.0, 4.0, 1.0), strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(alone).sum())
    drawn = system.draw_dial(batch, context(None))
    assert isinstance(drawn, tuple) and len(drawn) == 2
    same = LossContext(50_000, random.Random(1), SMOOTHING)
    expected = system.loss(model, batch, context(list(map(float, drawn)))).total
    torch.testing.assert_close(system.loss(model, batch, same).total, expected)


def test_a_single_dial_stays_as_it_was() -> None:
    batch = batch_of(PAIRS)
    assert spread_dial(3, batch) == 3 and spread_dial(None, batch) is None
    scalar = torch.tensor(2.0)
    assert spread_dial(scalar, batch) is scalar
    assert spread_dial((1, 5), batch).tolist() == [[1], [5], [1]]


# The curriculum


def test_low_dials_come_little_by_little() -> None:
    options = {"whole_source_updates": 10, "curriculum_updates": 100, "k_max": 21}
    system, batch = build_system("multipath", options), batch_of(PAIRS)

    def lowest(update: int) -> int:
        draws = [
            system.draw_dial(batch, LossContext(update, random.Random(seed))) for seed in range(300)
        ]
        assert max(draws) == 21
        return min(draws)

    # By hand: 20 steps from 21 down to 1.
    assert [lowest(update) for update in (10, 35, 60, 110, 5000)] == [21, 16, 11, 1, 1]


# Info and dropout


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


def test_a_run_with_all_of_it(toy_corpus: Path, tmp_path: Path) -> None:
    options = {
        "name": "wait-info", "confidence": "relative", "sentence_power": 0.5, "draws": 4,
        "whole_source_updates": 2, "curriculum_updates": 4,
    }  # fmt: skip
    values = {
        "data": str(toy_corpus), "size": "tiny", "system": options,
        "model": {"width": 16, "ffn": 16, "heads": 2, "info_dropout": False},
        "training": {"updates": 8, "batch_tokens": 256, "warmup": 2, "validate_sentences": 0,
                     "validate_every": 4, "device": "cpu", "threads": 1},
    }  # fmt: skip
    train(values, tmp_path / "run", display=SilentDisplay())
    loaded = load_model(tmp_path / "run", "cpu")
    assert loaded.system.options.draws == 4 and not loaded.model.config.info_dropout

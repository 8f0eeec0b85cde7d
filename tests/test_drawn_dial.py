"""Several dials drawn for a batch."""

from __future__ import annotations

import random

import pytest
import torch

from tests.oracle import batch_of
from waitinfo.errors import WaitinfoError
from waitinfo.systems import LossContext, build_system
from waitinfo.systems.networks.losses import spread_dial

PAIRS = [([5, 6, 7, 8, 9, 10], [10, 11, 12]), ([5, 6], [12, 13, 14, 15]), ([9, 8, 7], [20])]


def context(k: list[float]) -> LossContext:
    return LossContext(50_000, random.Random(1), label_smoothing=0.1, dial=torch.as_tensor(k))


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
    drawn = system.draw_dial(batch, LossContext(50_000, random.Random(1)))
    assert isinstance(drawn, tuple) and len(drawn) == 2
    same = LossContext(50_000, random.Random(1), label_smoothing=0.1)
    expected = system.loss(model, batch, context(list(map(float, drawn)))).total
    torch.testing.assert_close(system.loss(model, batch, same).total, expected)


def test_a_single_dial_stays_as_it_was() -> None:
    batch = batch_of(PAIRS)
    assert spread_dial(3, batch) == 3 and spread_dial(None, batch) is None
    scalar = torch.tensor(2.0)
    assert spread_dial(scalar, batch) is scalar
    assert spread_dial((1, 5), batch).tolist() == [[1], [5], [1]]


def test_at_least_one_dial_is_drawn() -> None:
    with pytest.raises(WaitinfoError, match=r"system.draws 0: must be at least 1"):
        build_system("multipath", {"draws": 0})

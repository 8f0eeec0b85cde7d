"""What all systems share: the registry, and the loss that needs nothing but a path."""

from __future__ import annotations

import random

import pytest

from tests.oracle import batch_of
from waitinfo.model import transformer
from waitinfo.systems import SYSTEMS, LossContext, build_system

PAIRS = [([5, 6, 7, 8, 9], [10, 11, 12]), ([5, 6], [12, 13, 14, 15])]


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "gsimt"])
def test_a_whole_source_update_builds_one_bias(
    tiny_model, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Cross-attention is biased once where every head sees all that is read."""
    calls: list[object] = []
    real = transformer.cross_bias

    def counting(*given: object) -> object:
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(transformer, "cross_bias", counting)
    system = build_system(name, {"whole_source_updates": 10})
    model = tiny_model(**system.model_defaults)
    system.loss(model, batch_of(PAIRS), LossContext(update=0, draw=random.Random(0)))
    assert len(calls) == 1

"""Batches: within budget, complete, shuffled, and the same for the same seed."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from waitinfo.text.corpus import Corpus
from waitinfo.training.batches import BatchStream, Share, make_batch, plan_epoch

BUDGET = 64


@pytest.fixture(scope="module")
def split(toy_corpus: Path):
    return Corpus(toy_corpus).train


def test_an_epoch_is_every_pair_once_within_budget(split) -> None:
    batches = plan_epoch(split, BUDGET, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(len(split)))
    made = [make_batch(split, batch) for batch in batches]
    sizes = [max(batch.source.numel(), batch.target_in.numel()) for batch in made]
    assert max(sizes) <= BUDGET, "padding counted"
    assert np.mean(sizes) > 0.9 * BUDGET, "budgets should be used"


def test_a_pair_over_the_budget_gets_its_own_batch(split) -> None:
    batches = plan_epoch(split, 4, seed=1, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(len(split)))
    made = [make_batch(split, batch) for batch in batches]
    longest = [max(batch.source.shape[1], batch.target_in.shape[1]) for batch in made]
    assert {len(batch) for batch, length in zip(batches, longest, strict=True) if length > 2} == {1}


def test_seeds_and_epochs_shuffle(split) -> None:
    def flat(seed: int, epoch: int) -> list[int]:
        return np.concatenate(plan_epoch(split, BUDGET, seed, epoch)).tolist()

    assert flat(1, 0) == flat(1, 0)
    assert flat(1, 0) != flat(1, 1) != flat(2, 1)


def take(split, count: int, **options) -> list:
    with BatchStream(split, BUDGET, seed=3, **options) as stream:
        return list(islice(stream, count))


def test_starting_later_skips_batches(split) -> None:
    whole, later = take(split, 70), take(split, 20, start=50)
    for a, b in zip(whole[50:], later, strict=True):
        assert (a.update, a.epoch, a.tokens) == (b.update, b.epoch, b.tokens)
        assert torch.equal(a.batches[0][1].source, b.batches[0][1].source)
    assert whole[-1].epoch > 1, "the test should cross an epoch"


def test_processes_share_an_update(split) -> None:
    alone = take(split, 30, share=Share(count=2))
    halves = [take(split, 30, share=Share(count=2, rank=r, processes=2)) for r in (0, 1)]
    for update, first, second in zip(alone, *halves, strict=True):
        assert update.tokens == first.tokens == second.tokens
        assert [place for place, _ in update.batches] == [
            first.batches[0][0],
            second.batches[0][0],
        ]
        for (_, whole), part in zip(update.batches, (first, second), strict=True):
            assert torch.equal(whole.target_out, part.batches[0][1].target_out)


def test_errors_in_the_background_thread_are_raised(split, monkeypatch) -> None:
    monkeypatch.setattr("waitinfo.training.batches.make_batch", lambda *_: 1 / 0)
    with BatchStream(split, BUDGET, seed=1) as stream, pytest.raises(ZeroDivisionError):
        next(stream)

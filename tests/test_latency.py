"""Latency by hand: the worked cases, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waitinfo.evaluation.latency import (
    average_lagging,
    average_proportion,
    consecutive_wait,
    corpus_latency,
    differentiable_average_lagging,
)
from waitinfo.streaming.decoder import Hypothesis


def wait_k(k: int, source: int, target: int) -> list[int]:
    return [min(k + i, source) for i in range(target)]


@pytest.mark.parametrize(
    ("written", "al", "dal", "ap"),
    [(10, 3.0, 3.0, 0.72), (15, 4.17, 4.71, 0.81), (7, 1.71, 3.0, 0.60)],
)
def test_wait_3_on_ten_words(written: int, al: float, dal: float, ap: float) -> None:
    delays = wait_k(3, 10, written)
    assert average_lagging(delays, 10) == pytest.approx(al, abs=0.005)
    assert differentiable_average_lagging(delays, 10) == pytest.approx(dal, abs=0.005)
    assert average_proportion(delays, 10) == pytest.approx(ap, abs=0.005)


@given(st.integers(1, 9), st.integers(9, 30))
def test_wait_k_on_equal_lengths_lags_k(k: int, length: int) -> None:
    delays = wait_k(k, length, length)
    assert average_lagging(delays, length) == pytest.approx(k)
    assert differentiable_average_lagging(delays, length) == pytest.approx(k)


def test_consecutive_wait() -> None:
    assert consecutive_wait([3, 3, 5, 5, 6]) == pytest.approx((3 + 2 + 1) / 3)
    assert consecutive_wait([7, 7, 7]) == 7


@given(st.lists(st.integers(1, 12), min_size=1, max_size=15))
def test_bounds(delays: list[int]) -> None:
    delays = sorted(delays)
    assert 0 < average_proportion(delays, 12) <= 1
    # Every token's DAL clock is at least its delay.
    assert (
        differentiable_average_lagging(delays, 12)
        >= sum(d - i * 12 / len(delays) for i, d in enumerate(delays)) / len(delays) - 1e-9
    )


def test_corpus_means_are_unweighted() -> None:
    def hypothesis(path: list[int], source: int) -> Hypothesis:
        return Hypothesis([5] * (len(path) - 1), path, source, [], [], True)

    found = corpus_latency([hypothesis([3, 4, 4], 4), hypothesis([1, 2], 9)])
    assert found["AL"] == pytest.approx(
        (average_lagging([3, 4, 4], 4) + average_lagging([1, 2], 9)) / 2
    )
    assert found["early_stop"] == 0.5
    assert found["target_per_source"] == pytest.approx(5 / 13)

"""Latency metrics by hand, by brute force, and by properties."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waitinfo.evaluation.latency import (
    METRICS,
    PROFILES,
    Lags,
    average_lagging,
    average_proportion,
    average_token_delay,
    consecutive_wait,
    corpus_latency,
    differentiable_average_lagging,
    length_adaptive_average_lagging,
    sentence_latency,
    yet_another_average_lagging,
)

PAPER, WORD = PROFILES["paper"], PROFILES["word"]


def wait_k(k: int, source: int, target: int) -> list[int]:
    return [min(k + i, source) for i in range(target)]


@st.composite
def translations(draw: st.DrawFn) -> tuple[list[int], int, int]:
    """Delays, source length, reference length; the source need not be read to its end."""
    source = draw(st.integers(1, 12))
    delays = sorted(draw(st.lists(st.integers(1, source), min_size=1, max_size=15)))
    return delays, source, draw(st.integers(1, 15))


# By hand: wait-3 on ten words, ten of them in the reference.


@pytest.mark.parametrize(
    ("written", "al_reference", "al", "laal", "dal", "ap"),
    [
        (10, 3.0, 3.0, 3.0, 3.0, 0.72),
        (15, 3.0, 4.17, 4.17, 4.71, 0.81),
        (7, 3.0, 1.71, 3.0, 3.0, 0.60),
    ],
)
def test_wait_3_on_ten_words(
    written: int, al_reference: float, al: float, laal: float, dal: float, ap: float
) -> None:
    lags = Lags(wait_k(3, 10, written), 10, 10)
    word, paper = sentence_latency(lags, WORD), sentence_latency(lags, PAPER)
    assert word["AL"] == pytest.approx(al_reference, abs=0.005)
    assert paper["AL"] == pytest.approx(al, abs=0.005)
    assert word["LAAL"] == paper["LAAL"] == pytest.approx(laal, abs=0.005)
    assert word["DAL"] == paper["DAL"] == pytest.approx(dal, abs=0.005)
    assert paper["AP"] == pytest.approx(ap, abs=0.005)
    assert word["AP"] == pytest.approx(ap * written / 10, abs=0.006)


def test_consecutive_wait() -> None:
    assert consecutive_wait([3, 3, 5, 5, 6]) == pytest.approx((3 + 2 + 1) / 3)
    assert consecutive_wait([7, 7, 7]) == 7


def test_average_token_delay_by_hand() -> None:
    # Two words read, two written, two read, two written: targets end at 3, 4, 5, 6 and correspond
    # to sources that end at 1, 2, 3, 4.
    assert average_token_delay([2, 2, 4, 4]) == 2
    # Three are written after one word: they end at 2, 3, 4 and correspond to 1, 1, 1. The fourth is
    # written after the second word, starts at 4 when the third is done, ends at 5, and corresponds
    # to 4 - (3 - 1).
    assert average_token_delay([1, 1, 1, 2]) == pytest.approx((1 + 2 + 3 + 3) / 4)


def test_yaal_excludes_the_tail() -> None:
    # Of delays 1, 2, 4, 4 for four words, two are before the end: lags 1 - 0 and 2 - 1.
    assert yet_another_average_lagging([1, 2, 4, 4], 4, 4) == 1
    assert average_lagging([1, 2, 4, 4], 4, 4) == pytest.approx((1 + 1 + 2) / 3)
    assert yet_another_average_lagging([4, 4, 4, 4], 4, 4) is None


# By brute force: the published definitions written out, in exact arithmetic.


def literal_al(delays: list[int], source: int, target: int, cut: bool = True) -> Fraction:
    rate = Fraction(target, source)
    stop = next((i for i, g in enumerate(delays, 1) if g == source), len(delays))
    terms = [g - Fraction(i - 1) / rate for i, g in enumerate(delays, 1)]
    terms = terms[:stop] if cut else terms
    return sum(terms, Fraction(0)) / len(terms)


def literal_dal(delays: list[int], source: int) -> Fraction:
    rate = Fraction(len(delays), source)

    def g_prime(i: int) -> Fraction:
        if i == 1:
            return Fraction(delays[0])
        return max(Fraction(delays[i - 1]), g_prime(i - 1) + 1 / rate)

    terms = [g_prime(i) - Fraction(i - 1) / rate for i in range(1, len(delays) + 1)]
    return sum(terms, Fraction(0)) / len(terms)


def literal_atd(delays: list[int]) -> Fraction:
    """ATD by the definition in its paper, chunk by chunk, with one time step per token."""
    boundaries = sorted(set(delays))
    source_chunks = [b - a for a, b in zip([0, *boundaries], boundaries, strict=False)]
    target_chunks = [delays.count(b) for b in boundaries]
    end = 0
    terms = []
    t = 0
    for c in range(len(boundaries)):
        for _ in range(target_chunks[c]):
            t += 1
            end = max(end, sum(source_chunks[: c + 1])) + 1
            s = t - max(0, sum(target_chunks[:c]) - sum(source_chunks[:c]))
            a = min(s, sum(source_chunks[: c + 1]))
            terms.append(end - a)
    return Fraction(sum(terms), len(terms))


@given(translations())
def test_metrics_equal_their_definitions(case: tuple[list[int], int, int]) -> None:
    delays, source, reference = case
    longer = max(reference, len(delays))
    assert average_lagging(delays, source, reference) == pytest.approx(
        float(literal_al(delays, source, reference))
    )
    assert length_adaptive_average_lagging(delays, source, reference) == pytest.approx(
        float(literal_al(delays, source, longer))
    )
    assert differentiable_average_lagging(delays, source) == pytest.approx(
        float(literal_dal(delays, source))
    )
    assert average_token_delay(delays) == pytest.approx(float(literal_atd(delays)))
    before = [g for g in delays if g < source]
    found = yet_another_average_lagging(delays, source, reference)
    if before:
        rate = Fraction(longer, source)
        lags = [g - Fraction(i) / rate for i, g in enumerate(before)]
        assert found == pytest.approx(float(sum(lags, Fraction(0)) / len(before)))
    else:
        assert found is None


# Properties


@given(st.integers(1, 9), st.integers(9, 30))
def test_wait_k_on_equal_lengths_lags_k(k: int, length: int) -> None:
    lags = Lags(wait_k(k, length, length), length, length)
    for profile in (PAPER, WORD):
        found = sentence_latency(lags, profile)
        assert found["AL"] == found["LAAL"] == found["DAL"] == pytest.approx(k)


@given(translations())
def test_bounds(case: tuple[list[int], int, int]) -> None:
    delays, source, reference = case
    found = sentence_latency(Lags(delays, source, reference), PAPER)
    assert 0 < found["AP"] <= 1
    assert 1 <= found["CW"] <= source
    # The DAL clock of every unit is at least its delay.
    uncut = literal_al(delays, source, len(delays), cut=False)
    assert found["DAL"] >= float(uncut) - 1e-9
    # A longer reference can only raise the lag.
    assert found["LAAL"] >= found["AL"] - 1e-9
    assert found["DAL"] <= source + 1e-9


@given(translations(), st.data())
def test_more_reading_never_lowers_latency(case: tuple, data: st.DataObject) -> None:
    """Read more before one unit (and all later ones), without completing the source earlier."""
    delays, source, reference = case
    place = data.draw(st.integers(0, len(delays) - 1))
    least = data.draw(st.integers(1, source))
    later = [max(g, least) if i >= place else g for i, g in enumerate(delays)]
    assert average_proportion(later, source, reference) >= average_proportion(
        delays, source, reference
    )
    before = differentiable_average_lagging(delays, source)
    assert differentiable_average_lagging(later, source) >= before - 1e-9
    complete = [next((i for i, g in enumerate(d) if g >= source), None) for d in (delays, later)]
    if complete[0] == complete[1]:
        lag = average_lagging(delays, source, reference)
        assert average_lagging(later, source, reference) >= lag - 1e-9


def test_reading_more_can_lower_al_by_ending_its_sum_early() -> None:
    """This is why the property above has a condition: a known pitfall of AL."""
    sooner = [1, *[9] * 5, *[10] * 34]
    later = [1, *[10] * 39]  # reads one more word before five units
    assert average_lagging(later, 10, 40) == pytest.approx((1 + 9.75) / 2)
    assert average_lagging(sooner, 10, 40) == pytest.approx(50.75 / 7)
    assert differentiable_average_lagging(later, 10) > differentiable_average_lagging(sooner, 10)


# Degenerate sentences


def test_one_unit() -> None:
    for profile in (PAPER, WORD):
        found = sentence_latency(Lags([1], 1, 1), profile)
        expected = {"CW": 1, "AP": 1, "AL": 1, "LAAL": 1, "DAL": 1, "ATD": 1, "YAAL": None}
        assert found == expected


def test_source_shorter_than_k_is_read_whole() -> None:
    found = sentence_latency(Lags(wait_k(9, 4, 4), 4, 4), WORD)
    assert (found["AL"], found["CW"], found["AP"], found["YAAL"]) == (4, 4, 1, None)


def test_over_generation_does_not_lower_laal() -> None:
    right, twice = wait_k(3, 10, 10), wait_k(3, 10, 20)
    assert average_proportion(twice, 10, 10) > 1  # in `word`, AP can exceed 1
    assert length_adaptive_average_lagging(twice, 10, 10) > length_adaptive_average_lagging(
        right, 10, 10
    )


def test_computation_beyond_the_source() -> None:
    """With computation, the first word may be shown after the end of the source."""
    assert average_lagging([1200.0, 1300.0], 1000.0, 2) == 1200


def test_an_empty_translation_has_no_latency_and_means_are_unweighted() -> None:
    empty = Lags([], 4, 3)
    assert sentence_latency(empty, WORD) == dict.fromkeys(METRICS)
    short, long = Lags([3, 4, 4], 4, 3), Lags([1, 2], 9, 2)
    found = corpus_latency([short, empty, long], WORD)
    both = [sentence_latency(lags, WORD) for lags in (short, long)]
    for metric in METRICS:
        assert found[metric] == pytest.approx((both[0][metric] + both[1][metric]) / 2)
    assert corpus_latency([empty], WORD) == dict.fromkeys(METRICS)

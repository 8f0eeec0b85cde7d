"""Latency of a translation from its delays: how long each target unit had to wait.

`delays` is g: delays[i-1] source units had been read when target unit i was written. A unit is a
token or a word (or a millisecond, for delays that count computation). Two conventions, never to be
mixed, are computed from the same functions:

`paper`  tokens, end-of-sentence counted on both sides; the rate is that of what was written
`word`   words, no end-of-sentence; the rate is that of the reference, as in SimulEval

docs/metrics.md has every formula with its pitfalls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

Delays = Sequence[float]


def consecutive_wait(delays: Delays) -> float:
    """CW: mean number of units read at a time."""
    waits = [now - then for then, now in zip((0, *delays), delays, strict=False) if now > then]
    return sum(waits) / len(waits)


def average_proportion(delays: Delays, source: float, target: int) -> float:
    """AP: share of the source read before each of `target` units; over 1 if more were written."""
    return sum(delays) / (source * target)


def average_lagging(delays: Delays, source: float, target: int) -> float:
    """AL: mean lag behind a writer who keeps pace, up to the first unit that saw everything."""
    if delays[0] > source:  # only with computation counted: it wrote after all was over
        return delays[0]
    pace = source / target
    total = 0.0
    for i, delay in enumerate(delays):
        total += delay - i * pace
        if delay >= source:
            return total / (i + 1)
    return total / len(delays)


def length_adaptive_average_lagging(delays: Delays, source: float, reference: int) -> float:
    """LAAL: AL at the pace of the longer of translation and reference."""
    return average_lagging(delays, source, max(len(delays), reference))


def yet_another_average_lagging(delays: Delays, source: float, reference: int) -> float | None:
    """YAAL: LAAL over the units written before the source ended; None if there are none."""
    before = [delay for delay in delays if delay < source]
    if not before:
        return None
    pace = source / max(len(delays), reference)
    return sum(delay - i * pace for i, delay in enumerate(before)) / len(before)


def differentiable_average_lagging(delays: Delays, source: float) -> float:
    """DAL: every unit takes at least 1 / rate source units of time to write."""
    pace = source / len(delays)
    total, clock = 0.0, -pace
    for i, delay in enumerate(delays):
        clock = max(delay, clock + pace)
        total += clock - i * pace
    return total / len(delays)


def average_token_delay(delays: Delays) -> float:
    """ATD: mean distance in time from the end of a source unit to that of the unit it pairs with.

    A unit takes one tick to be read and one to be written, and writing waits for nothing but the
    delay and the unit before. Target unit t pairs with source unit t, moved back by as much as the
    chunks written before its own chunk are longer than those read, within what has been read.
    """
    total, clock, written = 0.0, 0.0, 0
    read = 0.0  # before the chunk at hand
    for now, chunk in groupby(delays):
        ahead = max(0.0, written - read)
        for _ in chunk:
            written += 1
            clock = max(now, clock) + 1
            total += clock - min(written - ahead, now)
        read = now
    return total / written


METRICS = ("CW", "AP", "AL", "LAAL", "DAL", "ATD", "YAAL")


@dataclass(frozen=True)
class Profile:
    """A convention of counting."""

    name: str
    unit: str
    summary: str
    reference_rate: bool  # whether the rate is the reference's, or that of what was written


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("paper", "tokens", "end-of-sentence counted", False),
        Profile("word", "words", "as SimulEval counts", True),
    )
}


@dataclass(frozen=True)
class Lags:
    """What the metrics need to know of a sentence, in one unit."""

    delays: Delays
    source: float  # source units
    reference: int  # target units in the reference


def sentence_latency(lags: Lags, profile: Profile) -> dict[str, float | None]:
    """All metrics of one sentence. An empty translation has none."""
    delays, source = lags.delays, lags.source
    if not delays:
        return dict.fromkeys(METRICS)
    target = lags.reference if profile.reference_rate else len(delays)
    return {
        "CW": consecutive_wait(delays),
        "AP": average_proportion(delays, source, target),
        "AL": average_lagging(delays, source, target),
        "LAAL": length_adaptive_average_lagging(delays, source, lags.reference),
        "DAL": differentiable_average_lagging(delays, source),
        "ATD": average_token_delay(delays),
        "YAAL": yet_another_average_lagging(delays, source, lags.reference),
    }


def corpus_latency(sentences: Sequence[Lags], profile: Profile) -> dict[str, float | None]:
    """Unweighted means over the sentences that have a value; None where none has."""
    return mean_scores([sentence_latency(lags, profile) for lags in sentences], METRICS)


def mean_scores(
    rows: Sequence[dict[str, float | None]], names: Sequence[str]
) -> dict[str, float | None]:
    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) / len(values) if values else None  # type: ignore[arg-type]

    return {name: mean(name) for name in names}


# Metrics that make sense in milliseconds, with the time of computation counted.
TIMED: dict[str, Callable[[Delays, float, int], float | None]] = {
    "AP": average_proportion,
    "AL": average_lagging,
    "LAAL": length_adaptive_average_lagging,
    "DAL": lambda delays, source, _: differentiable_average_lagging(delays, source),
    "YAAL": yet_another_average_lagging,
}

"""Latency metrics, computed from the delays of a translation.

`delays` is g: delays[i-1] source units had been read when target unit i was written. A unit is a
token or a word (or a millisecond, for computation-aware delays). The same functions compute two
conventions, which must not be mixed:

`paper`  tokens, with end-of-sentence on both sides; the target length is that of the translation
`word`   words, without end-of-sentence; the target length is that of the reference (SimulEval)

docs/metrics.md has every formula with its pitfalls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

Delays = Sequence[float]


def consecutive_wait(delays: Delays) -> float:
    """CW: mean number of units read at a time."""
    waits = [now - then for then, now in zip((0, *delays), delays, strict=False) if now > then]
    return sum(waits) / len(waits)


def average_proportion(delays: Delays, source: float, target: int) -> float:
    """AP: mean share of the source read before a unit; above 1 if over `target` were written."""
    return sum(delays) / (source * target)


def average_lagging(delays: Delays, source: float, target: int) -> float:
    """AL: mean lag behind an ideal writer, up to the first unit written with the whole source."""
    if delays[0] > source:  # computation-aware only: the first unit came after the source ended
        return delays[0]
    pace = source / target
    total = 0.0
    for i, delay in enumerate(delays):
        total += delay - i * pace
        if delay >= source:
            return total / (i + 1)
    return total / len(delays)


def length_adaptive_average_lagging(delays: Delays, source: float, reference: int) -> float:
    """LAAL: AL with the longer of translation and reference as the target length."""
    return average_lagging(delays, source, max(len(delays), reference))


def yet_another_average_lagging(
    delays: Delays, source: float, reference: int, end: float | None = None
) -> float | None:
    """YAAL: LAAL over the units written before the source ended; None if there are none.

    LongYAAL, of a sentence in a document: over the units written before the `end` of the document.
    """
    end = source if end is None else end
    before = list(takewhile(lambda delay: delay < end, delays))
    if not before:
        return None
    pace = source / max(len(delays), reference)
    return sum(delay - i * pace for i, delay in enumerate(before)) / len(before)


def differentiable_average_lagging(delays: Delays, source: float) -> float:
    """DAL: mean lag if writing a unit takes at least source / target units of time."""
    pace = source / len(delays)
    total, clock = 0.0, -pace
    for i, delay in enumerate(delays):
        clock = max(delay, clock + pace)
        total += clock - i * pace
    return total / len(delays)


def average_token_delay(delays: Delays) -> float:
    """ATD: mean time between the end of a target unit and the end of its source unit.

    Reading or writing a unit takes one time step. A unit is written as soon as its delay has passed
    and the previous unit is written. Target unit t corresponds to source unit t, shifted back by
    the excess of the units written over the units read before its chunk, and at most to the last
    unit read.
    """
    total, clock, written = 0.0, 0.0, 0
    read = 0.0  # before the current chunk
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
    """A counting convention."""

    name: str
    unit: str
    summary: str
    reference_rate: bool  # target length of the reference, or else of the translation


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("paper", "tokens", "end-of-sentence counted", False),
        Profile("word", "words", "as SimulEval counts", True),
    )
}


@dataclass(frozen=True)
class Lags:
    """Input of the metrics for one sentence, all in the same unit."""

    delays: Delays
    source: float  # source units
    reference: int  # target units in the reference


def sentence_latency(lags: Lags, profile: Profile) -> dict[str, float | None]:
    """All metrics of one sentence; all None for an empty translation."""
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
    """Unweighted means over the sentences that have a value; None if none has."""
    return mean_scores([sentence_latency(lags, profile) for lags in sentences], METRICS)


DEGENERATE = 20.0  # percentage points between SWF and EFSW


def degeneracy(sentences: Sequence[Lags]) -> dict[str, Any]:
    """Signs of a policy that writes a few words early and the rest after the source.

    SWF: percentage of the units written before the source ended. EFSW: what it should be at this
    YAAL, the percentage of the source that lies before the mean lag. They differ if the lag is that
    of a few units only.
    """
    written = sum(len(lags.delays) for lags in sentences)
    early = sum(delay < lags.source for lags in sentences for delay in lags.delays)
    found = [
        (lags.source, yaal)
        for lags in sentences
        if (yaal := yet_another_average_lagging(lags.delays, lags.source, lags.reference))
        is not None
    ]
    if not written or not found:
        return {"SWF": 0.0 if written else None, "EFSW": None, "DSPTV": None, "degenerate": False}
    before = sum(max(0.0, source - yaal) for source, yaal in found)
    swf, efsw = 100 * early / written, 100 * before / sum(source for source, _ in found)
    return {
        "SWF": swf, "EFSW": efsw, "DSPTV": efsw - swf, "degenerate": abs(efsw - swf) > DEGENERATE,
    }  # fmt: skip


def mean_scores(
    rows: Sequence[dict[str, float | None]], names: Sequence[str]
) -> dict[str, float | None]:
    def mean(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) / len(values) if values else None  # type: ignore[arg-type]

    return {name: mean(name) for name in names}


# Metrics that are meaningful in milliseconds, for computation-aware latency.
TIMED: dict[str, Callable[[Delays, float, int], float | None]] = {
    "AP": average_proportion,
    "AL": average_lagging,
    "LAAL": length_adaptive_average_lagging,
    "DAL": lambda delays, source, _: differentiable_average_lagging(delays, source),
    "YAAL": yet_another_average_lagging,
}

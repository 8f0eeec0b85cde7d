"""Latency of a translation from its path: how long each target token had to wait.

`delays` is g: delays[i-1] source tokens had been read when target token i was written. All
formulas are those of the paper's appendix; the rate gamma is |y| / |x| with the length of what was
written. Counted in tokens, with end-of-sentence on both sides, as the paper's tables are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waitinfo.streaming.decoder import Hypothesis


def average_lagging(delays: Sequence[float], source: int) -> float:
    """AL: mean lag behind an ideal translator, up to the first token that saw everything."""
    rate = len(delays) / source
    total = 0.0
    for i, delay in enumerate(delays):
        total += delay - i / rate
        if delay >= source:
            return total / (i + 1)
    return total / len(delays)


def average_proportion(delays: Sequence[float], source: int) -> float:
    """AP: mean share of the source read, in (0, 1]."""
    return sum(delays) / (source * len(delays))


def consecutive_wait(delays: Sequence[float]) -> float:
    """CW: mean number of tokens read at a time."""
    before = [0, *delays]
    waits = [now - then for then, now in zip(before, delays, strict=False) if now > then]
    return sum(waits) / len(waits)


def differentiable_average_lagging(delays: Sequence[float], source: int) -> float:
    """DAL: every token takes at least 1 / gamma source tokens of time to write."""
    pace = source / len(delays)
    total, clock = 0.0, -pace
    for i, delay in enumerate(delays):
        clock = max(delay, clock + pace)
        total += clock - i * pace
    return total / len(delays)


def corpus_latency(hypotheses: Iterable[Hypothesis]) -> dict[str, float]:
    """Unweighted means over sentences, and the share that ended before the source did."""
    found = list(hypotheses)
    count = len(found)
    return {
        "CW": sum(consecutive_wait(h.path) for h in found) / count,
        "AP": sum(average_proportion(h.path, h.source_length) for h in found) / count,
        "AL": sum(average_lagging(h.path, h.source_length) for h in found) / count,
        "DAL": sum(differentiable_average_lagging(h.path, h.source_length) for h in found) / count,
        "early_stop": sum(h.stopped_early for h in found) / count,
        "target_per_source": sum(len(h.path) for h in found) / sum(h.source_length for h in found),
    }

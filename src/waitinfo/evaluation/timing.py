"""Computation-aware latency of one stream whose words arrive at a speaking rate.

The measurement does not wait for a speaker. Each word is pushed to a stream as soon as the previous
word is processed, and the processing time is measured. A simulated clock then places the work:
processing of a word starts when the word has been spoken and the previous work is done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.latency import TIMED, mean_scores
from waitinfo.streaming.translator import Translator
from waitinfo.threads import thread_count


@dataclass(frozen=True)
class Timing:
    """Settings for measuring computation-aware latency."""

    rate: float  # words per second
    sentences: int  # sentences to time, spread evenly over the test set

    def measured(self, found: dict[str, Any] | None, count: int) -> bool:
        """Whether a point already has this timing, for a test set of `count` sentences."""
        if not found:
            return False
        threads = thread_count()
        return (
            found["words_per_second"] == self.rate
            and found["sentences"] == len(self.choose(count))
            and found.get("threads", threads) == threads
        )

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise WaitinfoError(f"--rate {self.rate:g}: must be above 0 words per second")
        if self.sentences < 1:
            raise WaitinfoError(f"--timed {self.sentences}: must be at least 1")

    def choose(self, count: int) -> list[int]:
        wanted = min(count, self.sentences)
        return [number * count // wanted for number in range(wanted)]


@dataclass(frozen=True)
class TimedTrace:
    """When each translated word was shown, in milliseconds from the start of speaking."""

    shown: list[float]
    said: list[float]  # without computation: when the last source word it depends on was spoken
    work: list[float]  # processing time of each source word
    behind: float  # time from the end of the speech to the end of the work
    source: float  # duration of the speech


def timed_trace(translator: Translator, source: str, k: float | None, rate: float) -> TimedTrace:
    """Translate one sentence spoken at `rate` words per second."""
    words = source.split()
    each = 1000 / rate
    stream = translator.stream(k, segment="whole")
    shown: list[float] = []
    said: list[float] = []
    work: list[float] = []
    clock = 0.0
    for number, word in enumerate(words, 1):
        began = time.monotonic()
        since = began - stream.began
        events = stream.push(word)
        if number == len(words):
            events += stream.finish()
        spent = 1000 * (time.monotonic() - began)
        start = max(clock, number * each)
        for event in events:
            if event.kind == "WRITE" and event.word:
                count = len(event.word.split())
                shown += [start + 1000 * (event.time - since)] * count
                said += [number * each] * count
        clock = start + spent
        work.append(spent)
    speech = len(words) * each
    return TimedTrace(shown, said, work, clock - speech, speech)


def timed_latency(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    k: float | None,
    rate: float,
    advance: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Computation-aware metrics in milliseconds, with the reference length, and work times."""
    if sources:
        timed_trace(translator, sources[0], k, rate)  # warm up
    aware: list[dict[str, float | None]] = []
    ideal: list[dict[str, float | None]] = []
    work: list[float] = []
    behind: list[float] = []
    for number, (source, reference) in enumerate(zip(sources, references, strict=True), 1):
        trace = timed_trace(translator, source, k, rate)
        length = len(reference.split())
        for rows, delays in ((aware, trace.shown), (ideal, trace.said)):
            rows.append(
                {
                    name: metric(delays, trace.source, length) if delays else None
                    for name, metric in TIMED.items()
                }
            )
        work += trace.work
        behind.append(trace.behind)
        advance(number)
    return {
        "words_per_second": rate,
        "sentences": len(sources),
        "threads": thread_count(),
        "computation_aware_ms": mean_scores(aware, tuple(TIMED)),
        "ideal_ms": mean_scores(ideal, tuple(TIMED)),
        "ms_per_source_word": float(np.mean(work)),
        "ms_per_source_word_median": float(np.median(work)),
        "ms_per_source_word_95th": float(np.percentile(work, 95)),
        "ms_behind_at_the_end": float(np.mean(behind)),
    }

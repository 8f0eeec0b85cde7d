"""Calibrating a model: the lag of each dial value on a development set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import Decoding, Evaluation
from waitinfo.evaluation.latency import PROFILES, corpus_latency
from waitinfo.evaluation.quality import bleu
from waitinfo.evaluation.trace import WordTrace
from waitinfo.progress import Progress
from waitinfo.streaming.lag import LagMeter, sentence_lags
from waitinfo.systems import System
from waitinfo.trained.calibration import Calibration, CalibrationPoint

WIDE = (1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15)
NARROW = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # dials from 0 to 1


def default_dials(system: System) -> list[float]:
    """Dial values that cover the useful range of a system."""
    if system.dial is None:
        raise WaitinfoError(f"--calibrate: {system.name} translates whole sentences: no dial")
    below = range(math.ceil(system.dial.minimum), 1) if system.dial.minimum < 0 else ()
    values = NARROW if system.dial.maximum <= 1 else (*below, *WIDE)
    return [system.dial.check(value) for value in values]


def measured_lag(traces: Sequence[WordTrace], pace: float) -> float:
    """The mean lag of translations as a stream measures it, without references."""
    meter = LagMeter(pace)
    lags = [lag for t in traces for lag in sentence_lags(t.delays, t.source_words, meter)]
    return fmean(lags)


def calibrate(
    evaluation: Evaluation, decodings: Sequence[Decoding], progress: Progress | None = None
) -> Calibration:
    """Measure lag and quality at every dial value."""
    if len({decoding.k for decoding in decodings}) < 2:
        raise WaitinfoError("--calibrate: give two values of --k or more")
    dial = evaluation.loaded.system.dial
    assert dial is not None
    references = evaluation.test.references
    units = evaluation.test.units
    by_dial: dict[float, list[WordTrace]] = {}
    streamed: dict[float, list[WordTrace]] = {}  # where delays are counted as streams count them
    for decoding in sorted(decodings, key=lambda decoding: decoding.k):
        found = evaluation.translate(decoding, progress=progress)
        by_dial[decoding.k] = evaluation.traces(found)
        streamed[decoding.k] = evaluation.traces(found, as_streams=True)
    written = sum(len(t.words) for traces in by_dial.values() for t in traces)
    if not written:
        raise WaitinfoError("--calibrate: the model writes nothing on this set")
    pace = sum(t.source_words for traces in by_dial.values() for t in traces) / written
    points = []
    for k, traces in by_dial.items():
        lag = corpus_latency(evaluation.word_lags(traces), PROFILES["word"])["LAAL"]
        if lag is not None:
            score = bleu([trace.text for trace in traces], references)
            points.append(CalibrationPoint(k, lag, measured_lag(streamed[k], pace), score))
    return Calibration(tuple(points), dial.whole, pace, units.source, units.target)

"""The paired bootstrap of two curves, against resampled texts scored by sacrebleu."""

from __future__ import annotations

import numpy as np
import pytest

from tests.evaluations import PAIRS, bleu
from waitinfo.analysis.significance import compare, draw_counts, sampled
from waitinfo.analysis.study import Translated


def fake(k: float, written: list[str], latencies: list[float]) -> Translated:
    return Translated(k, "guard", [], written, np.array(latencies))


def test_significance_by_resampling_the_texts() -> None:
    """Curves of each resample, from the scores of its sentences as sacrebleu counts them."""
    references = [t for _, t in PAIRS] * 2
    worse = [" ".join(text.split()[:-2]) for text in references]
    mixed = [a if i % 3 else b for i, (a, b) in enumerate(zip(references, worse, strict=True))]
    lags = np.linspace(1, 3, len(references))
    first = [fake(1, worse, list(lags)), fake(2, mixed, list(lags + 2))]
    second = [fake(1, worse, list(lags + 0.2)), fake(2, worse, [*(lags[1:] + 3), np.nan])]
    counts = draw_counts(len(references), 25)
    assert (counts[0] == 1).all() and (counts.sum(1) == len(references)).all()
    for decoded in (first, second):
        found = sampled(decoded, references, counts)
        for row, drawn in enumerate(counts):
            rows = np.repeat(np.arange(len(references)), drawn)
            for column, each in enumerate(decoded):
                score = bleu([each.texts[i] for i in rows], [references[i] for i in rows])
                assert found.quality[row, column] == pytest.approx(score)
                latency = np.nanmean(each.latencies[rows])
                assert found.latency[row, column] == pytest.approx(latency)
    (at, *_) = [at for at in compare(first, second, references, 200) if at["latency"] >= 3]
    x = [each.latency for each in first]
    y = [bleu(each.texts, references) for each in first]
    assert at["BLEU"][0] == pytest.approx(np.interp(at["latency"], x, y))
    # The interval and p again, with each resample's texts scored by sacrebleu.
    gaps = []
    for drawn in draw_counts(len(references), 200):
        rows = np.repeat(np.arange(len(references)), drawn)
        scores = []
        for decoded in (first, second):
            x = [np.nanmean(each.latencies[rows]) for each in decoded]
            y = [bleu([e.texts[i] for i in rows], [references[i] for i in rows]) for e in decoded]
            scores.append(np.interp(at["latency"], x, y))
        gaps.append(scores[0] - scores[1])
    observed, *others = gaps
    assert at["difference"] == pytest.approx(observed) and observed > 0
    assert at["interval"] == pytest.approx(np.percentile(others, [2.5, 97.5]))
    far = [gap for gap in others if abs(gap - np.mean(others)) >= observed]
    assert at["p"] == pytest.approx((1 + len(far)) / 201)
    same = compare(first, first, references, 50)
    assert all(at["difference"] == 0 and at["p"] == 1 for at in same)

"""Translation quality, measured by sacrebleu and, if installed, COMET."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.text.scripts import mostly_unspaced
from waitinfo.text.speech.speaker import lower_without_punctuation

RESAMPLES = 1000  # bootstrap resamples, for confidence intervals and paired tests
COMET_MODEL = "Unbabel/wmt22-comet-da"


def check_installed() -> None:
    """Raise an error now, before translation, if sacrebleu is missing."""
    _sacrebleu()


def _sacrebleu() -> Any:
    try:
        import sacrebleu
    except ImportError:
        raise WaitinfoError(
            "scoring BLEU needs the package sacrebleu; "
            "install it with: pip install 'waitinfo[bleu]'"
        ) from None
    return sacrebleu


@dataclass(frozen=True)
class Score:
    score: float
    interval: float | None  # half the width of the 95% bootstrap interval
    signature: str


WORDS = "BLEU_words"

# By name: sacrebleu metric and settings. BLEU_lowercase, tokenised and lower-cased, is the paper's
# metric; BLEU_words compares words alone, without case and punctuation.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "BLEU": ("BLEU", {}),
    "BLEU_lowercase": ("BLEU", {"lowercase": True}),
    WORDS: ("BLEU", {"tokenize": "none"}),
    "chrF": ("CHRF", {}),
}


def compared(name: str, lines: Sequence[str]) -> list[str]:
    """The text that a metric is given."""
    return [lower_without_punctuation(line) for line in lines] if name == WORDS else list(lines)


@lru_cache(maxsize=16)
def _metric(name: str, references: tuple[str, ...] | None, characters: bool = False) -> Any:
    """A metric; given references are preprocessed once for all translations scored with them.

    Text without spaces is scored in `characters`: it has no words that BLEU could count.
    """
    kind, settings = SETTINGS[name]
    if characters and kind == "BLEU":
        settings = {**settings, "tokenize": "char"}
    if references is not None:
        settings = {**settings, "references": [list(references)]}
    return getattr(_sacrebleu().metrics, kind)(**settings)


def score(
    name: str, hypotheses: Sequence[str], references: Sequence[str], resamples: int = 0
) -> Score:
    """Corpus score of detokenised text; with resamples, also its bootstrap interval."""
    metric = _metric(name, tuple(compared(name, references)), mostly_unspaced(references))
    hypotheses = compared(name, hypotheses)
    if not resamples or len(hypotheses) < 2:
        found = metric.corpus_score(hypotheses, None)
        return Score(float(found.score), None, str(metric.get_signature()))
    # Like corpus_score(n_bootstrap=…), which fails if a resample scores 0.
    from sacrebleu.significance import _bootstrap_resample, estimate_ci

    stats = metric._extract_corpus_statistics(hypotheses, None)
    found = metric._aggregate_and_compute(stats)
    metric.n_bootstrap = resamples
    metric.seed, drawn = _bootstrap_resample(stats, metric, resamples)
    _, interval = estimate_ci(np.array([float(each.score) for each in drawn]))
    signature = str(metric.get_signature())
    metric.n_bootstrap, metric.seed = None, None  # the cached metric is reused
    return Score(float(found.score), float(interval), signature)


def sentence_statistics(
    name: str, hypotheses: Sequence[str], references: Sequence[str]
) -> np.ndarray:
    """Counts of each sentence, whose sums over sentences give the corpus score: [sentences, …]."""
    metric = _metric(name, tuple(compared(name, references)), mostly_unspaced(references))
    counts = metric._extract_corpus_statistics(compared(name, hypotheses), None)
    return np.array(counts, dtype=np.float64)


def from_statistics(name: str, sums: np.ndarray) -> float:
    """The corpus score of summed counts."""
    counts = [int(count) for count in sums]
    return float(_metric(name, None)._compute_score_from_stats(counts).score)


def sentence_scores(name: str, hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """The score of each sentence alone: [sentences]."""
    rows = sentence_statistics(name, hypotheses, references)
    return np.array([from_statistics(name, row) for row in rows])


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU of detokenised text."""
    return score("BLEU", hypotheses, references).score


def quality(
    hypotheses: Sequence[str], references: Sequence[str], resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Every metric with its signature and bootstrap interval."""
    found: dict[str, Any] = {}
    for name in SETTINGS:
        result = score(name, hypotheses, references, resamples)
        found[name] = result.score
        if result.interval is not None:
            found[f"{name}_interval"] = result.interval
        found[f"{name}_signature"] = result.signature
    return found


def comet(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[str],
    gpus: int = 0,
) -> float:
    """COMET system score; the model is downloaded on first use."""
    scorer = load_comet(COMET_MODEL)
    data = [
        {"src": source, "mt": hypothesis, "ref": reference}
        for source, hypothesis, reference in zip(sources, hypotheses, references, strict=True)
    ]
    return float(scorer.predict(data, batch_size=32, gpus=gpus, progress_bar=False).system_score)


@lru_cache(maxsize=1)
def load_comet(model: str) -> Any:
    try:
        from comet import download_model, load_from_checkpoint
    except ImportError:
        raise WaitinfoError(
            "COMET needs the package unbabel-comet; install it with: pip install 'waitinfo[comet]'"
        ) from None
    return load_from_checkpoint(model if os.path.exists(model) else download_model(model))  # noqa: PTH110


@dataclass(frozen=True)
class PairedResult:
    """Scores of two systems on the same sentences, and the p-value of their difference."""

    baseline: float
    other: float
    p_value: float


def paired_bootstrap(
    name: str,
    baseline: Sequence[str],
    other: Sequence[str],
    references: Sequence[str],
) -> PairedResult:
    """sacrebleu's paired bootstrap test of two sets of translations."""
    if list(baseline) == list(other):  # sacrebleu would report p = 0.001 for equal translations
        same = score(name, baseline, references).score
        return PairedResult(same, same, 1.0)
    _sacrebleu()
    from sacrebleu.significance import PairedTest

    test = PairedTest(
        [("baseline", compared(name, baseline)), ("other", compared(name, other))],
        {name: _metric(name, None, mostly_unspaced(references))},
        [compared(name, references)],
        test_type="bs",
        n_samples=RESAMPLES,
    )
    _, found = test()
    results: Any = next(results for key, results in found.items() if key != "System")
    first, second = results
    if first.score == second.score:  # the translations differ only in ways the metric ignores
        return PairedResult(float(first.score), float(second.score), 1.0)
    return PairedResult(float(first.score), float(second.score), float(second.p_value))

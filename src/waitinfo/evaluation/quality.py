"""Translation quality, by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waitinfo.errors import WaitinfoError


@dataclass(frozen=True)
class Bleu:
    score: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Bleu:
    """Corpus BLEU of detokenised text."""
    try:
        from sacrebleu.metrics import BLEU
    except ImportError:
        raise WaitinfoError(
            "scoring BLEU needs the package sacrebleu; "
            "install it with: pip install 'waitinfo[bleu]'"
        ) from None
    metric = BLEU(lowercase=lowercase)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Bleu(float(score), str(metric.get_signature()))

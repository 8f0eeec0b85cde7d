"""Similarity of a sentence to its reference: chrF and BLEU of single sentences.

Both follow sacrebleu (chrF2; BLEU with exponential smoothing and effective order), which tests
compare with. They are written out here because millions of sentences are compared, each reference
with several translations.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from waitinfo.text.scripts import mostly_unspaced

CHARACTERS = 6  # longest n-gram of chrF
WORDS = 4  # longest n-gram of BLEU
BETA = 2.0  # weight of recall relative to precision
TOKENS = re.compile(r"\w+|[^\w\s]")

Counts = list[Counter[Sequence[str]]]  # n-grams of each length


def ngrams(units: Sequence[str], longest: int) -> Counts:
    """Counts of all n-grams, by n - 1; units are letters of a text or a tuple of words."""
    return [
        Counter(units[i : i + n] for i in range(len(units) - n + 1)) for n in range(1, longest + 1)
    ]


def matches(first: Counts, second: Counts) -> list[int]:
    return [(a & b).total() for a, b in zip(first, second, strict=True)]


def chrf(reference: str) -> Callable[[str], float]:
    """chrF2 of translations of one reference, from 0 to 100."""
    known = ngrams("".join(reference.split()), CHARACTERS)

    def score(translation: str) -> float:
        found = ngrams("".join(translation.split()), CHARACTERS)
        precision = recall = 0.0
        orders = 0
        for same, a, b in zip(matches(found, known), found, known, strict=True):
            if a and b:
                precision += same / a.total()
                recall += same / b.total()
                orders += 1
        if not precision + recall:
            return 0.0
        precision, recall = precision / orders, recall / orders
        return 100 * (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)

    return score


def words(text: str, unspaced: bool) -> tuple[str, ...]:
    """Words and punctuation, or the letters of a text without spaces."""
    return tuple("".join(text.split()) if unspaced else TOKENS.findall(text))


def bleu(reference: str) -> Callable[[str], float]:
    """Sentence BLEU of translations of one reference, from 0 to 100."""
    unspaced = mostly_unspaced([reference])
    right = words(reference, unspaced)
    known = ngrams(right, WORDS)

    def score(translation: str) -> float:
        given = words(translation, unspaced)
        found = ngrams(given, WORDS)
        total, orders, smoothing = 0.0, 0, 1.0
        same = matches(found, known)
        if not given or not any(same):
            return 0.0
        for count, all_of_length in zip(same, found, strict=True):
            possible = all_of_length.total()
            if not possible:
                break
            orders += 1
            if not count:
                smoothing *= 2
            total += math.log(count / possible if count else 1 / (smoothing * possible))
        brevity = min(0.0, 1 - len(right) / len(given))
        return 100 * math.exp(total / orders + brevity)

    return score


SIMILARITIES: dict[str, Callable[[str], Callable[[str], float]]] = {"chrf": chrf, "bleu": bleu}

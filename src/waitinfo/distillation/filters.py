"""Which translation is learned from: the best of several that passes the filters.

Each filter has a reason, which is counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.text.files import normalise
from waitinfo.text.identification import other_language
from waitinfo.text.languages import UNKNOWN, Languages
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


SHORT = 10  # tokens below which the length ratio says nothing
COPIED_WORDS, COPIED_SHARE = 5, 0.8  # of a copy: at least; share in the source
WORD = re.compile(r"[^\W\d_]+")
# How often a group of 1, 2, … words, or letters, may follow itself; the last entry: longer groups.
WORD_REPEATS, LETTER_REPEATS = (3, 2, 2, 1), (5, 4, 3, 3, 2)
LONGEST_GROUP = 12

EMPTY, COPY, REPEATED = "empty", "copy of the source", "repeated words"
SOURCE_LANGUAGE, TARGET_LANGUAGE = "source in another language", "target in another language"


def is_copy(source: str, target: str) -> bool:
    """Whether the words of a target are those of its source, or nearly all of them are."""
    left, right = WORD.findall(source.lower()), WORD.findall(target.lower())
    if not right:
        return False  # numbers and symbols are the same in many languages
    if left == right:
        return True
    known = set(left)
    inside = sum(word in known for word in right)
    return len(right) >= COPIED_WORDS and inside >= COPIED_SHARE * len(right)


def repeats(units: Sequence[str], limits: Sequence[int]) -> bool:
    """Whether a group of units follows itself more often than the limits allow."""
    for size in range(1, min(LONGEST_GROUP, len(units) // 2) + 1):
        limit = limits[min(size, len(limits)) - 1]
        run = 0  # units in a row that are equal to the one a group earlier
        for before, unit in zip(units, units[size:], strict=False):
            run = run + 1 if before == unit else 0
            if run >= limit * size:
                return True
    return False


def is_repetitive(text: str) -> bool:
    """Whether a text goes round in circles, as "the same the same the same"."""
    lowered = text.lower()
    if mostly_unspaced([text]):
        return repeats("".join(lowered.split()), LETTER_REPEATS)
    return repeats([word.strip(".,;:!?") for word in lowered.split()], WORD_REPEATS)


@dataclass(frozen=True)
class Filters:
    """What a pair must be like."""

    max_tokens: int = 250
    max_ratio: float = 3.0  # tokens of the longer side to the shorter, for ten tokens or more
    languages: Languages = UNKNOWN

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_ratio"):
            if not getattr(self, name) >= 1:
                option = name.replace("_", "-")
                raise WaitinfoError(f"--{option} {getattr(self, name):g}: must be at least 1")

    def of_source(self, source: str) -> str | None:
        """Why a source is not translated at all; None if it is."""
        if not source:
            return EMPTY
        return SOURCE_LANGUAGE if other_language(source, self.languages.source) else None

    def of_pair(
        self, source: str, target: str, lengths: tuple[int, int], reference: str | None = None
    ) -> str | None:
        """Why a translation is dropped; None if it is kept. `lengths` are numbers of tokens.

        A copy or a repetition is right where the reference, or the source, has it too.
        """
        if not target:
            return EMPTY
        if reason := self._length(*lengths):
            return reason
        if is_copy(source, target) and not (reference and is_copy(source, reference)):
            return COPY
        if is_repetitive(target) and not is_repetitive(source):
            return REPEATED
        return TARGET_LANGUAGE if other_language(target, self.languages.target) else None

    def _length(self, source: int, target: int) -> str | None:
        longer, shorter = max(source, target), min(source, target)
        if longer > self.max_tokens:
            return f"longer than {self.max_tokens} tokens"
        if longer >= SHORT and longer > self.max_ratio * shorter:
            return f"length ratio over {self.max_ratio:g}"
        return None


# Choosing

CHOICES = ("score", *SIMILARITIES)


class Candidates(NamedTuple):
    """A sentence and its translations."""

    source: str
    reference: str | None  # None for text without a translation
    translations: list[str]
    scores: list[float] | None  # the teacher's; None: they are in its order, best first
    lengths: list[tuple[int, int]]  # tokens of source and translation, by translation


class ChosenTranslation(NamedTuple):
    """Which translation was chosen, or why none was."""

    number: int | None
    reason: str | None


@dataclass(frozen=True)
class Chooser:
    """Takes the best translation that passes the filters."""

    by: str
    filters: Filters

    def __post_init__(self) -> None:
        if self.by not in CHOICES:
            raise unknown("--choose", self.by, CHOICES)

    def choose(self, sentence: Candidates) -> ChosenTranslation:
        """The best translation that passes; else why the best of all does not."""
        first: str | None = None
        for number in self._ranked(sentence):
            reason = self.filters.of_pair(
                sentence.source,
                sentence.translations[number],
                sentence.lengths[number],
                sentence.reference,
            )
            if reason is None:
                return ChosenTranslation(number, None)
            first = first or reason
        return ChosenTranslation(None, first)

    def choose_all(self, sentences: Sequence[Candidates]) -> list[ChosenTranslation]:
        return [self.choose(sentence) for sentence in sentences]

    def _ranked(self, sentence: Candidates) -> list[int]:
        """Numbers of the translations, best first; equal ones stay in the teacher's order."""
        value: Callable[[int], float]
        if self.by != "score" and sentence.reference is not None and len(sentence.translations) > 1:
            similarity = SIMILARITIES[self.by](sentence.reference)
            value = [similarity(text) for text in sentence.translations].__getitem__
        elif sentence.scores is not None:
            value = sentence.scores.__getitem__
        else:
            return list(range(len(sentence.translations)))
        return sorted(range(len(sentence.translations)), key=lambda number: -value(number))


def read_translations(line: str, scored: bool) -> tuple[list[str], list[float] | None]:
    """The translations of a line as `translate --best` writes it, and their scores if it has."""
    columns = [normalise(column) for column in line.split("\t")]
    if not scored:
        return columns, None
    if len(columns) % 2:
        raise WaitinfoError("a line of translations has a score too few; start again with --force")
    return columns[1::2], [float(score) for score in columns[::2]]

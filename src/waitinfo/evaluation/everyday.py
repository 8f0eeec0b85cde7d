"""Everyday sentences with all their acceptable translations, and how many a model gets right.

Each line of the files in `data` has both languages: the first sentence of one is the source of all
sentences of the other. English to German has a file of its own, and that of German to English the
other way round. A translation is right if it is one of the acceptable ones, but for capitals,
punctuation, contractions and digits; chrF shows how far off others are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from typing import NamedTuple

from waitinfo.errors import unknown
from waitinfo.text.similarity import chrf
from waitinfo.text.speech.marks import lower_without_punctuation

# The files of each direction; a file is named after its columns.
FILES = {"de-en": ("de-en",), "en-de": ("en-de", "de-en")}
PATTERN = re.compile(r"\[([^\]]*)\]")
CLOSEST = 16  # acceptable translations compared by chrF, those with the most words in common
CONTRACTIONS = {
    "can't": "can not", "cannot": "can not", "won't": "will not", "let's": "let us",
    "geht's": "geht es", "gibt's": "gibt es",
}  # fmt: skip
ENDINGS = {
    "n't": " not", "'re": " are", "'ve": " have", "'ll": " will", "'m": " am", "'d": " would",
    "'s": " is",
}  # fmt: skip
DIGITS = {
    "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7",
    "eight": "8", "nine": "9", "ten": "10", "twelve": "12", "zwei": "2", "drei": "3", "vier": "4",
    "fünf": "5", "sechs": "6", "sieben": "7", "acht": "8", "neun": "9", "zehn": "10", "zwölf": "12",
}  # fmt: skip


class Item(NamedTuple):
    """A sentence and all its acceptable translations."""

    subject: str
    source: str
    translations: list[str]


def expand(text: str) -> list[str]:
    """All sentences of a pattern: `a [b|c] d || e` is `a b d`, `a c d` and `e`."""
    found = []
    for pattern in text.split(" || "):
        parts = PATTERN.split(pattern)  # every other part is a list of alternatives
        choices = [part.split("|") if n % 2 else [part] for n, part in enumerate(parts)]
        found += [" ".join("".join(chosen).split()) for chosen in product(*choices)]
    return list(dict.fromkeys(found))


def read_set(source: str = "de", target: str = "en") -> list[Item]:
    """The sentences from one language to the other."""
    direction = f"{source}-{target}"
    if direction not in FILES:
        raise unknown("languages", direction, FILES)
    items = []
    for name in FILES[direction]:
        text = (files("waitinfo.evaluation") / "data" / f"everyday.{name}.tsv").read_text("utf-8")
        for line in text.splitlines():
            if not line.startswith("#"):
                subject, *sides = line.split("\t")
                sentences = dict(zip(name.split("-"), map(expand, sides), strict=True))
                items.append(Item(subject, sentences[source][0], sentences[target]))
    return items


def plain(text: str) -> str:
    """What is compared: lower case, no punctuation, no contractions, small numbers as digits."""
    words = []
    for word in lower_without_punctuation(text.replace("’", "'")).split():
        full = CONTRACTIONS.get(word)
        if full is None:
            ending = next((e for e in ENDINGS if word.endswith(e) and word != e), "")
            full = word.removesuffix(ending) + ENDINGS.get(ending, "")
        words += [DIGITS.get(part, part) for part in full.split()]
    return " ".join(words)


@dataclass(frozen=True)
class Verdict:
    """What became of one sentence."""

    item: Item
    translation: str
    right: bool
    chrf: float  # against the closest acceptable translation


def judge(item: Item, translation: str) -> Verdict:
    """Whether a translation is acceptable, and its chrF."""
    given = plain(translation)
    right = given in {plain(text) for text in item.translations}
    known = set(given.split())
    # A few references with the most words in common: the closest one is among them.
    distance = {text: len(known ^ set(plain(text).split())) for text in item.translations}
    closest = sorted(item.translations, key=lambda text: distance[text])[:CLOSEST]
    return Verdict(item, translation, right, max(chrf(text)(translation) for text in closest))


def judge_all(items: Sequence[Item], translations: Sequence[str]) -> list[Verdict]:
    return [judge(*pair) for pair in zip(items, translations, strict=True)]


def summary(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """Mean chrF, and the share of right translations, both in percent."""
    count = len(verdicts)
    right = sum(verdict.right for verdict in verdicts)
    return sum(verdict.chrf for verdict in verdicts) / count, 100 * right / count

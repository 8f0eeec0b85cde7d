"""A newcomer's corpus: German number words and their English translations."""

from __future__ import annotations

import random

GERMAN = [
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
ENGLISH = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
GERMAN_TENS = [
    "zwanzig",
    "dreißig",
    "vierzig",
    "fünfzig",
    "sechzig",
    "siebzig",
    "achtzig",
    "neunzig",
]
ENGLISH_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def number(value: int) -> tuple[str, str]:
    """A number below 100 in both languages; German says the units before the tens."""
    if value < 20:
        return GERMAN[value], ENGLISH[value]
    tens, units = divmod(value, 10)
    german, english = GERMAN_TENS[tens - 2], ENGLISH_TENS[tens - 2]
    if not units:
        return german, english
    first = "ein" if units == 1 else GERMAN[units]
    return f"{first}und{german}", f"{english}-{ENGLISH[units]}"


def number_pairs(count: int, below: int = 100, seed: int = 1) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [number(draw.randrange(below)) for _ in range(draw.randint(1, 6))]
        pairs.append((" ".join(w for w, _ in words), " ".join(w for _, w in words)))
    return pairs

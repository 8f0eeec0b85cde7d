"""Scripts that are written without spaces between words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

# Thai, Lao, Myanmar, Khmer; East Asian punctuation, kana and ideographs with their extensions.
# Hangul is written with spaces.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u303f\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uaa60-\uaa7f\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff9f\U0001b000-\U0001b16f\U00020000-\U000323af]"
)
MARKS = ("\u3099", "\u309a", "\u102e")  # join with a letter of these scripts into another


def is_unspaced(text: str) -> bool:
    """Whether a text contains a character of a script without spaces."""
    return UNSPACED.search(text) is not None


def last_unspaced(text: str) -> int:
    """Length of the longest prefix that ends with a character of such a script."""
    found = [match.end() for match in UNSPACED.finditer(text)]
    return found[-1] if found else 0


def longest_word(text: str) -> int:
    """Characters of the longest word; a character of a script without spaces stands for itself."""
    runs = (run for word in text.split() for run in UNSPACED.split(word))
    return max(map(len, runs), default=0)


def mostly_unspaced(texts: Iterable[str]) -> bool:
    """Whether most letters of some texts belong to scripts without spaces."""
    unspaced = letters = 0
    for text in texts:
        unspaced += len(UNSPACED.findall(text))
        letters += sum(not char.isspace() for char in text)
    return 2 * unspaced > letters


def settled(text: str) -> int:
    """Length of the prefix whose normal form cannot change, whatever follows.

    The last character may join with a mark that follows it. Only characters that never do, as
    ideographs, are settled at once.
    """
    if not text:
        return 0
    end = len(text) - 1
    while end > 0 and _joins(text[end - 1], text[end]):
        end -= 1
    last = text[end:]
    alone = len(last) == 1 and is_unspaced(last)
    return len(text) if alone and not any(_composes(last, mark) for mark in MARKS) else end


def _joins(first: str, second: str) -> bool:
    """Whether two neighbouring characters have to be normalised together."""
    surrogates = "\ud800" <= first <= "\udbff"
    return bool(unicodedata.combining(second)) or surrogates or _composes(first, second)


def _composes(first: str, second: str) -> bool:
    return len(unicodedata.normalize("NFC", first + second)) < 2

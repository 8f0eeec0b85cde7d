"""Scripts that are written without spaces between words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

# Thai, Lao, Myanmar, Khmer; East Asian punctuation, kana and ideographs with their extensions.
# Hangul is written with spaces.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u303f\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uaa60-\uaa7f\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff9f\U0001b000-\U0001b16f\U00020000-\U000323af]"
)
MARKS = ("\u3099", "\u309a", "\u102e")  # join with a letter of these scripts into another
# Vowels and final consonants that are no combining marks, and may join with the letter before.
_AFTER = (
    "\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0cc2\u0cd5\u0cd6\u0d3e\u0d57\u0dcf\u0ddf\u102e"
    "\u1161-\u1175\u11a8-\u11c2\u1b35\U00011127\U0001133e\U00011357\U000114b0\U000114ba\U000114bd"
    "\U000115af\U00011930"
)
AFTER = re.compile(f"[{_AFTER}]")
PILE = 64  # marks on one letter, and more than any language needs


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


def piles_marks(text: str) -> bool:
    """Whether a letter has more than `PILE` marks. Sorting them takes time squared."""
    return not text.isascii() and _pile().search(text) is not None


@cache
def _pile() -> re.Pattern[str]:
    """Too many marks. What follows two marks is no beginning: so each is looked at a few times."""
    marks = "".join(chr(n) for n in range(0x300, 0x20000) if unicodedata.combining(chr(n)))
    mark = f"[{marks}{_AFTER}]"
    return re.compile(f"{mark}(?<!{mark}{mark}){mark}{{{PILE}}}")


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
    return len(text) if end == len(text) - 1 and _alone(text[end]) else end


def letter_end(text: str, start: int) -> int:
    """Where the letter ends that starts at a place, with all that is normalised with it."""
    end = start + 1
    if not _alone(text[start]):
        while end < len(text) and _joins(text[end - 1], text[end]):
            end += 1
    return end


def _alone(char: str) -> bool:
    """Whether a character stays as it is, whatever follows."""
    return is_unspaced(char) and not any(_composes(char, mark) for mark in MARKS)


def _joins(first: str, second: str) -> bool:
    """Whether two neighbouring characters may have to be normalised together."""
    return _follows(second) or "\ud800" <= first <= "\udbff"


def _follows(char: str) -> bool:
    """Whether a character may join with the letter before."""
    return bool(unicodedata.combining(char)) or AFTER.match(char) is not None


def _composes(first: str, second: str) -> bool:
    return len(unicodedata.normalize("NFC", first + second)) < 2


def split_words(text: str) -> list[str]:
    """The words of a text; characters of scripts without spaces are words of their own."""
    return UNSPACED.sub(lambda found: f" {found.group()} ", text).split()

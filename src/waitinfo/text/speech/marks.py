"""Lower case without punctuation, in any language."""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import lru_cache

# Marks that belong to a word or number when letters or digits stand on both sides: don't, e-mail,
# EU-Staaten, 3,5, 14:30.
INSIDE = re.compile(r"((?<=\d)[.,:](?=\d)|(?<=[^\W_])['-](?=[^\W_]))")
OUTSIDE = ".,;:!?\"'()-„“”‚‘’…–—[]"
KEPT = {"%", "‰", "&", "@", "#", "§"}  # punctuation in Unicode that people read as a word
QUOTES = str.maketrans(dict.fromkeys("’ʼ＇‘", "'") | dict.fromkeys("‐‑", "-"))
# Scripts written without spaces: nothing takes the place of a mark there.
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uff00-\uff9f]"
)


def _marks() -> dict[int, str | None]:
    """Punctuation, by character: a space, or nothing in scripts without spaces."""
    table: dict[int, str | None] = {}
    for code in range(sys.maxunicode + 1):
        letter = chr(code)
        if unicodedata.category(letter)[0] == "P" and letter not in KEPT:
            table[code] = None if UNSPACED.match(letter) else " "
    return table


_MARKS: dict[int, str | None] = {}


@lru_cache(maxsize=1 << 16)
def _clean(word: str) -> list[str]:
    """What is left of a word with punctuation: one word, several, or none."""
    if not _MARKS:
        _MARKS.update(_marks())
    parts = INSIDE.split(word.translate(QUOTES))  # every other part is a mark that stays
    parts[::2] = [part.translate(_MARKS) for part in parts[::2]]
    return "".join(parts).split()


def lower_without_punctuation(text: str) -> str:
    """The part of speech style that needs no knowledge of the language.

    Punctuation is removed except inside words and numbers; symbols such as % and € stay.
    """
    words: list[str] = []
    for word in text.lower().split():
        bare = word.strip(OUTSIDE)
        if bare.isalnum():  # almost every word, and much faster
            words.append(bare)
        else:
            words += _clean(unicodedata.normalize("NFC", word))
    return " ".join(words)


def join(first: str, second: str) -> str:
    """Two sentences in one line; without a space in scripts that have none."""
    touching = first[-1:] + second[:1]
    unspaced = len(touching) == 2 and all(map(UNSPACED.match, touching))
    return first + second if unspaced else f"{first} {second}".strip()

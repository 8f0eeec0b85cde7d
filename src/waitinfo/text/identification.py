"""Text that is plainly in another language than the one expected.

Two kinds of evidence count: letters of another script, and frequent words of another language
(`common_words`) that the expected language does not have. There must be enough of it, and hardly
any frequent words of the expected language. So short and mixed text, names and quotations pass:
silence is better than a false alarm. A language that is not known here is never complained about.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections import Counter
from functools import cache

from waitinfo.text.common_words import NAMES, WORDS
from waitinfo.text.scripts import is_unspaced

# Not the parts of addresses and code.
WORD = re.compile(r"(?<![\w/=&?@.#\\])[^\W\d_]+(?:['’][^\W\d_]+)?(?![\w/=&@(])")
LEAST_HITS = 4  # frequent words of the other language
LEAST_DISTINCT = 3  # different ones
LEAST_SHARE = 0.2  # of all words
OWN_SHARE = 0.2  # at most so many of the expected language for each of the other
LEAST_LETTERS = 12  # of another script; a Chinese or Japanese one counts as three
SCRIPT_SHARE = 0.75  # of all letters
ENOUGH = 200  # words after which a watch is over
LONGEST = 64  # letters of a word

# Scripts as Unicode names begin with them. Languages that are not listed use Latin letters.
SCRIPTS = {
    "ar": "ARABIC", "fa": "ARABIC", "bg": "CYRILLIC", "ru": "CYRILLIC", "uk": "CYRILLIC",
    "el": "GREEK", "he": "HEBREW", "hi": "DEVANAGARI", "th": "THAI", "ko": "HANGUL CJK",
    "ja": "HIRAGANA KATAKANA CJK", "zh": "CJK",
}  # fmt: skip

DENSE = frozenset(SCRIPTS["ja"].split())  # a letter says about as much as a syllable


@cache
def word_languages() -> dict[str, frozenset[str]]:
    """The languages of every frequent word."""
    found: dict[str, set[str]] = {}
    for language, words in WORDS.items():
        for word in words.split():
            found.setdefault(word, set()).add(language)
    return {word: frozenset(languages) for word, languages in found.items()}


@cache
def script(letter: str) -> str:
    """LATIN, CYRILLIC, CJK, …"""
    name = unicodedata.name(letter, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    return re.split(r"[ -]", name, maxsplit=1)[0]


def language_name(code: str) -> str:
    return NAMES.get(code, code)


def base_code(code: str | None) -> str | None:
    """The language of a code that is known here: pt for pt-BR; None for any other."""
    if code is None:
        return None
    base = code.split("-")[0].lower()
    base = {"nb": "no", "nn": "no"}.get(base, base)
    return base if base in NAMES else None


class Evidence:
    """What some text says about its language, given the language that is expected."""

    def __init__(self, language: str | None) -> None:
        self.language = base_code(language)
        self.words = self.letters = self.foreign = 0
        self._hits: Counter[frozenset[str]] = Counter()  # frequent words, by their languages
        self._distinct: dict[str, set[str]] = {}  # different words of other languages
        self._scripts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Count the words and letters of a text."""
        known = word_languages()
        for word in WORD.findall(text.lower()):
            self.words += 1
            self.letters += len(word)
            languages = known.get(word.replace("’", "'"))
            if languages is not None:
                self._hits[languages] += 1
                if self.language not in languages:
                    self.foreign += 1
                    for language in languages:
                        self._distinct.setdefault(language, set()).add(word)
            elif not word.isascii():
                self._scripts.update(map(script, filter(str.isalpha, word)))

    def other_language(self) -> str | None:
        """The name of the other language or script that the text is plainly in; None if none."""
        if self.language is None:
            return None
        return self._other_script() or self._other_words()

    def _other_script(self) -> str | None:
        own = SCRIPTS.get(self.language or "", "LATIN").split()
        others = {name: count for name, count in self._scripts.items() if name not in own and name}
        letters = sum(others.values())
        dense = sum(count for name, count in others.items() if name in DENSE)
        if letters + 2 * dense < LEAST_LETTERS or letters < SCRIPT_SHARE * self.letters:
            return None
        name = max(others, key=lambda name: others[name])
        return f"{name.title() if name != 'CJK' else name} script"

    def _other_words(self) -> str | None:
        needed = max(LEAST_HITS, LEAST_SHARE * self.words)
        if self.foreign < needed:
            return None
        best, most = None, 0
        for language, distinct in self._distinct.items():
            hits = own = 0
            for languages, count in self._hits.items():
                if self.language not in languages:
                    hits += count if language in languages else 0
                elif language not in languages:
                    own += count
            plain = len(distinct) >= LEAST_DISTINCT and own <= OWN_SHARE * hits
            if hits >= needed and plain and hits > most:
                best, most = language, hits
        return None if best is None else language_name(best)


def other_language(text: str, language: str | None) -> str | None:
    """The language or script that a text is plainly in, if it is not the expected one; else None.

    >>> other_language("Je ne sais pas où est la gare, mais je peux vous aider.", "de")
    'French'
    >>> other_language("Das Restaurant heißt „Chez nous“, nicht wahr?", "de")
    """
    evidence = Evidence(language)
    evidence.add(text)
    return evidence.other_language()


class LanguageWarning(UserWarning):
    """The text of a stream is plainly in another language than the model's source language."""


class LanguageWatch:
    """Watches text that arrives in pieces, and reports once if it is in another language."""

    def __init__(self, language: str | None, raw: bool = False) -> None:
        self.other: str | None = None  # the language that was found
        self._evidence = Evidence(language)
        self._raw, self._rest = raw, ""  # `raw` pieces may end within a word
        self._over = self._evidence.language is None

    def add(self, text: str) -> str | None:
        """What to tell the user, if this piece has made it plain; None in all other cases."""
        if self._over:
            return None
        if self._raw:
            text, self._rest = _whole_words(self._rest + text)
        self._evidence.add(text)
        self.other = self._evidence.other_language()
        self._over = self.other is not None or self._evidence.words >= ENOUGH
        return None if self.other is None else self.message

    def warn(self, text: str) -> None:
        """The same, as a `LanguageWarning`: one for every watch, whatever others have warned of."""
        if message := self.add(text):
            warnings.warn_explicit(message, LanguageWarning, "waitinfo", 1, registry={})

    @property
    def message(self) -> str:
        expected = language_name(self._evidence.language or "")
        return f"the text looks like {self.other}, but the model translates from {expected}"


def _whole_words(text: str) -> tuple[str, str]:
    """Cut a text after its last complete word; a long text without an end is taken as it is."""
    for place in range(len(text), 0, -1):
        if text[place - 1].isspace() or is_unspaced(text[place - 1]):
            return text[:place], text[place:]
    return (text, "") if len(text) > LONGEST else ("", text)

"""Written text in the style of a speech recogniser's output."""

from __future__ import annotations

import random
import re
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from waitinfo.errors import WaitinfoError
from waitinfo.text.speech.numbers import READERS

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


# Recognition errors: words mistaken for similar ones, cut short, left out or added. A word is
# mistaken for one that sounds the same, or that differs in its ending. Which words these are
# follows from the text itself (`Lexicon`): two words are confusable if they have the same key
# without spelling differences that are not heard (German, English) or the ending (any language).


# Spellings that sound alike, applied in order.
SOUNDS = {
    "de": [(r"ph|v|w(?=r)", "f"), (r"th|dt|d$", "t"), (r"b$", "p"), (r"g$", "k"), (r"ck|c|q", "k"),
           (r"tz|z", "ts"), (r"chs|x", "ks"), (r"ieh?|ih", "i"), (r"äu|oi", "eu"),
           (r"ai|ey|ay", "ei"), (r"äh?|eh", "e"), (r"(?<=[aouöü])h", ""), (r"y", "ü"), (r"ß", "s"),
           (r"(.)\1", r"\1")],
    "en": [(r"['’]", ""), (r"^kn|^gn", "n"), (r"^wr", "r"), (r"^wh", "w"), (r"ph", "f"),
           (r"gh", ""), (r"ck|c(?![eiyh])|q", "k"), (r"c(?=[eiy])", "s"), (r"x", "ks"),
           (r"e$", ""), (r"(?<=.)[aeiouyw]+", "a"), (r"(.)\1", r"\1")],
}  # fmt: skip
ENDINGS = {
    "de": re.compile(r"(?<=...)(?:en|em|er|es|e|s|n|t|st|te|ten)$"),
    "en": re.compile(r"(?<=...)(?:s|es|ed|d|ing|er|ly)$"),
}
ANY_ENDING = re.compile(r"(?<=....)\w{1,2}$")
LITTLE_GERMAN = "und in die der das ist es ja so auf an zu da"
LITTLE_ENGLISH = "and a the in to of it is that so at on"
LITTLE = {"de": LITTLE_GERMAN.split(), "en": LITTLE_ENGLISH.split()}  # words that are added
WORDS = 30_000  # most frequent words of a text that others are mistaken for
NEIGHBOURS = 8  # at most, for a word


class Lexicon:
    """The words of a text, and for each the words it can be taken for."""

    def __init__(self, texts: Iterable[str], language: str | None) -> None:
        counts = Counter(word for text in texts for word in text.split())
        self._sounds = [(re.compile(old), new) for old, new in SOUNDS.get(language or "", [])]
        self._ending = ENDINGS.get(language or "", ANY_ENDING)
        ranked = [word for word, _ in counts.most_common(WORDS) if word.isalpha()]
        self._by_key: dict[str, list[str]] = defaultdict(list)
        for word in ranked:
            for key in self._keys(word):
                if len(self._by_key[key]) <= NEIGHBOURS:
                    self._by_key[key].append(word)
        self._known: dict[str, list[str]] = {}
        self.little = LITTLE.get(language or "", [word for word in ranked[:12] if len(word) < 5])

    def _keys(self, word: str) -> set[str]:
        sound = word
        for old, new in self._sounds:
            sound = old.sub(new, sound)
        stem = self._ending.sub("", word)
        return {f"sound {sound}", f"stem {stem}"} if self._sounds else {f"stem {stem}"}

    def similar(self, word: str) -> list[str]:
        """Words that this one can be mistaken for."""
        if word not in self._known:
            found = {w: None for key in sorted(self._keys(word)) for w in self._by_key.get(key, ())}
            self._known[word] = [other for other in found if other != word]
        return self._known[word]


class Mishearing:
    """Makes errors at a rate: the expected number of word edits, divided by the words."""

    SUBSTITUTE, CUT, DROP = 0.55, 0.15, 0.2  # shares; the rest adds a word

    def __init__(self, lexicon: Lexicon, rate: float, draw: random.Random) -> None:
        self.lexicon, self.rate, self.random = lexicon, rate, draw

    def mishear(self, words: list[str]) -> list[str]:
        count = int(len(words) * self.rate + self.random.random())
        if not count:
            return words
        places = self.random.sample(range(len(words)), min(count, len(words)))
        heard: list[list[str]] = [[word] for word in words]
        for place in places:
            heard[place] = self._mistake(words[place])
        result = [word for group in heard for word in group]
        return result or words[:1]  # something was said

    def _mistake(self, word: str) -> list[str]:
        kind = self.random.random()
        if kind < self.SUBSTITUTE:
            similar = self.lexicon.similar(word)
            return [self.random.choice(similar)] if similar else self._cut(word)
        if kind < self.SUBSTITUTE + self.CUT:
            return self._cut(word)
        if kind < self.SUBSTITUTE + self.CUT + self.DROP or not self.lexicon.little:
            return []
        return [word, self.random.choice(self.lexicon.little)]

    def _cut(self, word: str) -> list[str]:
        """The end of a word is lost; of a short one, everything."""
        if len(word) < 4:
            return []
        return [word[: self.random.randint(max(2, len(word) // 2), len(word) - 1)]]


# Speech

FILLERS = {
    "de": ("äh", "ähm", "äh", "ähm", "hm", "also", "ja", "sozusagen"),
    "en": ("uh", "um", "uh", "um", "er", "well", "you know", "i mean"),
}


@dataclass(frozen=True)
class SpeechStyle:
    """How often speech differs from writing. Case and punctuation are always removed."""

    numbers: float = 0.7  # share of the lines whose numbers are spelled out
    hyphens: float = 0.5  # share of the lines whose compounds lose their hyphens
    fillers: float = 0.02  # for each word
    repeats: float = 0.015  # for each word
    errors: float = 0.05  # for each word

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise WaitinfoError(f"speech style {name} {value:g}: must be from 0 to 1")


PLAIN = SpeechStyle(0, 0, 0, 0, 0)  # lower case without punctuation, nothing else


def style_of(errors: float, full: bool) -> SpeechStyle:
    """Errors at a rate, with all other signs of speech or with none."""
    return replace(SpeechStyle() if full else PLAIN, errors=errors)


class Speaker:
    """Says lines one after the other. What it says depends on the seed and the lines before.

    Numbers, symbols, abbreviations and fillers are known in German and English; in other languages
    (or None) these parts are left out. `texts` is the text whose words are mistaken for each other.
    """

    def __init__(
        self,
        language: str | None = None,
        style: SpeechStyle | None = None,
        texts: Iterable[str] = (),
        seed: int = 1,
    ) -> None:
        self.language = (language or "").lower().split("-")[0]
        self.style = style or SpeechStyle()
        self.random = random.Random(seed)
        self._reader = READERS.get(self.language)
        self._fillers = FILLERS.get(self.language, ())
        words = map(lower_without_punctuation, texts) if self.style.errors else ()
        self._mishearing = Mishearing(Lexicon(words, self.language), self.style.errors, self.random)

    @property
    def knows_language(self) -> bool:
        return self._reader is not None

    def say(self, text: str) -> str:
        """A line as a recogniser would give it; the line itself if it has no words."""
        style, draw = self.style, self.random.random
        spell_out = draw() < style.numbers
        split_up = draw() < style.hyphens
        said = text
        if self._reader is not None and style.numbers:
            said = self._reader.read(text) if spell_out else self._reader.words(text)
        said = lower_without_punctuation(said)
        if split_up and "-" in said:
            said = said.replace("-", " ")
        words = said.split()
        if not words:
            return text
        if style.errors:
            words = self._mishearing.mishear(words)
        if style.repeats:
            words = self._repeat(words)
        if style.fillers and self._fillers:
            words = self._hesitate(words)
        return " ".join(words)

    def _repeat(self, words: list[str]) -> list[str]:
        """Words said twice; of a long one the first time often only the beginning."""
        for _ in range(int(len(words) * self.style.repeats + self.random.random())):
            place = self.random.randrange(len(words))
            word = words[place]
            if len(word) > 5 and self.random.random() < 0.5:
                word = word[: self.random.randint(2, len(word) // 2)]
            words = [*words[:place], word, *words[place:]]
        return words

    def _hesitate(self, words: list[str]) -> list[str]:
        for _ in range(int(len(words) * self.style.fillers + self.random.random())):
            place = self.random.randrange(len(words) + 1)
            words = [*words[:place], self.random.choice(self._fillers), *words[place:]]
        return words

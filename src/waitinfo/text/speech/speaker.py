"""Written text in the style of a speech recogniser's output."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from waitinfo.errors import WaitinfoError
from waitinfo.text.speech.errors import Lexicon, Recogniser
from waitinfo.text.speech.marks import lower_without_punctuation
from waitinfo.text.speech.numbers import READERS

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
        self._recogniser = Recogniser(Lexicon(words, self.language), self.style.errors, self.random)

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
            words = self._recogniser.mishear(words)
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

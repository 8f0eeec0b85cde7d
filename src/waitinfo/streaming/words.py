"""Words of a stream: text in, source tokens and sentence ends out; target tokens in, text out.

Source words are tokenized once they are complete. A word with characters of a script without spaces
is read token by token, each as soon as no further letter can change it; a full stop inside it ends
a sentence.

Target words are shown once they are complete: when the next one begins or the sentence ends. In
scripts without spaces, every character is.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from typing import NamedTuple

from waitinfo.streaming.segmenter import CLOSERS, Pauses, Segmentation, ends_sentence
from waitinfo.text.files import normalise
from waitinfo.text.scripts import is_unspaced, last_unspaced
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import SPACE, GrowingWord, Tokenizer

END = None  # in the queue: the sentence ends here
STOPS = "。！？｡!?"  # end a sentence inside a word
TAIL = 8  # letters of a word that show whether a sentence ends with it
GO_ON = re.compile(f"[{re.escape(STOPS + CLOSERS)}〉》］｝〕、,，…—ー～]")  # not after these


class WordPart(NamedTuple):
    """Source tokens that belong together: a word, or one token of a word without spaces."""

    text: str  # '' where only a later token completes a character
    tokens: list[int]
    starts_word: bool = True
    done: int = 0  # number of tokens that were taken already


class Reader:
    """The source text of one stream. `queue` holds what was not taken yet."""

    def __init__(
        self, tokenizer: Tokenizer, raw: bool = False, segmentation: Segmentation | None = None
    ) -> None:
        self.tokenizer, self.raw = tokenizer, raw
        self.segmentation = segmentation or Segmentation()
        self.queue: deque[WordPart | None] = deque()
        self._pauses = Pauses(self.segmentation.pause) if self._mode == "pause" else None
        self._letters = ""  # of a word that may go on
        self._growing: GrowingWord | None = None  # that word, if its script has no spaces
        self._spelled: list[int] = []  # bytes of a character that is not complete
        self._begun = False  # a token of that word was read
        self._stopped = False  # the last letter of that word may end a sentence

    @property
    def _mode(self) -> str:
        return self.segmentation.mode

    def add(self, text: str, at: float | None = None) -> None:
        """Text that has arrived: whole words, or any piece of text if `raw`.

        `at` is the time in seconds, for pauses.
        """
        words = [] if not text else _words(text)
        if self._pauses is not None and at is not None and self._pauses.found(at, bool(words)):
            self._end_word()
            self.queue.append(END)
        if not self.raw:
            for word in words:
                self._grow(word)
                self._end_word()
            return
        if words and separates(text[0]):
            self._end_word()
        for number, word in enumerate(words):
            if number:
                self._end_word()
            self._grow(word)
        if text and separates(text[-1]):
            self._end_word()

    def divide(self, text: str, size: int) -> tuple[str, str]:
        """Text to add first, of about this size, and the rest."""
        if not self.raw:  # each piece is of whole words
            size = next((n for n in range(size, len(text)) if separates(text[n])), len(text))
        return text[:size], text[size:]

    def go_on(self) -> None:
        """The text begins inside a word without spaces, after some token of it."""
        self._growing, self._begun = GrowingWord(self.tokenizer, inside=True), True

    def end(self) -> None:
        """No more text will come."""
        self._end_word()
        self.queue.append(END)

    # Words

    def _grow(self, letters: str) -> None:
        """More letters of the present word."""
        letters = letters.replace(SPACE, "_")  # as `normalise` does
        if self._growing is None:
            self._letters += letters
            if not (is_unspaced(self._letters) and self.tokenizer.grows):
                return
            letters, self._letters = self._letters, ""
            self._growing = GrowingWord(self.tokenizer)
        for letter in letters:
            self._add_letter(letter)

    def _add_letter(self, letter: str) -> None:
        assert self._growing is not None
        if self._stopped and not GO_ON.match(letter):
            self._end_growing()
            self.queue.append(END)
        self._stopped = self.segmentation.punctuated and letter in STOPS
        self._letters = (self._letters + letter)[-TAIL:]
        self._enqueue(self._growing.add(letter))

    def _end_word(self) -> None:
        """The present word is complete."""
        if self._growing is not None:
            self._end_growing()
            word = self._letters
        else:
            word = normalise(self._letters)
            if word:
                self.queue.append(WordPart(word, self.tokenizer.encode(word)))
        self._letters, self._growing, self._stopped = "", None, False
        if self.segmentation.punctuated and ends_sentence(word):
            self.queue.append(END)

    def _end_growing(self) -> None:
        assert self._growing is not None
        self._enqueue(self._growing.close())
        self._begun = False

    def _enqueue(self, tokens: list[int]) -> None:
        """Tokens of a word without spaces, one by one."""
        for token in tokens:
            self._spelled.append(token)
            text = self.tokenizer.spell(self._spelled)
            if "\ufffd" in text and self.tokenizer.is_byte(token) and len(self._spelled) < 4:
                text = ""
            else:
                self._spelled = []
            text = text.removeprefix(SPACE)
            self.queue.append(WordPart(text, [token], not self._begun))
            self._begun |= bool(text)


def _words(text: str) -> list[str]:
    """The parts of a text between spaces and control characters."""
    if text.isprintable():
        return text.split()
    return "".join(" " if separates(char) else char for char in text).split()


def separates(char: str) -> bool:
    """Whether a character ends a word and belongs to none."""
    return char.isspace() or unicodedata.category(char) == "Cc"


class WordBuilder:
    """Collects target tokens and returns the text that they complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._open: list[int] = []  # tokens of the current word, which may continue
        self._shown = 0  # characters of these tokens that were shown
        self._inside = False  # the beginning of the current word was shown
        self._last = ""  # the last character shown
        self._first = True  # nothing of this sentence was shown

    @property
    def open(self) -> bool:
        """Whether text was written and not shown yet."""
        return bool(self._open)

    def go_on(self, last: str, first: bool, inside: bool) -> None:
        """Go on with a text that ends with a character.

        first: at the beginning of a sentence. inside: in the middle of a word.
        """
        self._last, self._first, self._inside = last, first, inside

    def add(self, token: int, last: bool = False) -> str:
        """Return the text that a written token completes; the `last` token completes all.

        It begins with a space if one separates it from the text before.
        """
        text = ""
        if token == EOS or self.tokenizer.starts_word(token):
            text += self._end_word()
        if token != EOS:
            self._open.append(token)
            text += self._show_certain()
        if last:
            text += self._end_word()
            self._first = True
        return text

    def _end_word(self) -> str:
        """The rest of the current word."""
        word = self.tokenizer.decode(self._open)
        text = self._show(word[self._shown :])
        self._open, self._shown, self._inside = [], 0, False
        return text

    def _show_certain(self) -> str:
        """The characters of the current word that stay as they are, whatever follows."""
        newest = self._open[-1]
        if not (self.tokenizer.is_byte(newest) or is_unspaced(self.tokenizer.piece(newest))):
            return ""
        word = self.tokenizer.decode(self._open)
        end = last_unspaced(word)
        text = self._show(word[self._shown : end])
        self._shown = max(self._shown, end)
        if 0 < end == len(word):
            self._open, self._shown = [], 0
        return text

    def _show(self, text: str) -> str:
        text = " ".join(text.split())
        if not text:
            return ""
        space = not self._inside and self._separated(text)
        self._last, self._first, self._inside = text[-1], False, True
        return f" {text}" if space else text

    def _separated(self, text: str) -> bool:
        """Whether a space comes before a new word."""
        # No token says so between two sentences.
        between = self._first and is_unspaced(self._last + text[0])
        return bool(self._last) and not between

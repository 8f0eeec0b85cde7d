"""The text side of one stream: words in, tokens, sentence ends; tokens out, words.

A session knows neither the engine nor other streams. `add` and `end` take text, `next_input` gives
the tokens to feed, and `record` turns what the engine did into events.

Translated words are shown once they are complete, and what was shown is never taken back. The end
of a sentence starts the model on a new one, so a stream can run for hours. Text without sentence
ends moves through a window. Where that is not possible, a sentence that is longer than the model
has room for is continued as if it were the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from waitinfo.streaming.event import Event
from waitinfo.streaming.reader import END, Reader
from waitinfo.streaming.segmenter import Segmentation, ends_sentence
from waitinfo.streaming.window import Cut, Mark, Weights, Window
from waitinfo.streaming.words import WordBuilder
from waitinfo.text.identification import LanguageWatch
from waitinfo.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from waitinfo.streaming.engine import TokenEvent

PATIENCE = 8  # source tokens after which a sentence that the model has ended is over
LEAST = 8  # a full window moves on by at least one part of so many


class Input(NamedTuple):
    """Source tokens for the engine."""

    tokens: list[int]
    complete: bool  # the sentence ends after them


class Session:
    """One stream's text. `limit` is the number of source tokens that fit into a sentence.

    `slides` says whether the system can translate text without sentence ends. Text that is plainly
    not in `language` causes a warning, once.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limit: int,
        raw: bool = False,
        segmentation: Segmentation | None = None,
        has_info: bool = True,
        slides: bool = True,
        language: str | None = None,
    ) -> None:
        self.vocabulary, self.limit, self.has_info = vocabulary, limit, has_info
        self.segmentation = segmentation or Segmentation()
        self.slides = slides and self.segmentation.mode in ("auto", "pause", "none")
        self.sentence = 0
        self.full = False  # the window has to move on before more fits
        self.ended_early = False  # the model has ended a sentence inside the window
        self.watch = LanguageWatch(language, raw)
        self._reader = Reader(vocabulary.source, raw, self.segmentation)
        self._punctuated: bool | None = None  # whether the text has sentence ends, once known
        self._window = Window()
        self._complete = False  # the end of this sentence was handed over
        self._ended = False  # and it is the text's own end
        self._skipping = False  # the model ended a sentence before all of its words came
        self._builder = WordBuilder(vocabulary.target)
        self.patience = self._patience()

    # Text in

    def add(self, text: str, at: float | None = None) -> None:
        """Source text that has arrived: whole words, or any piece of text in a `raw` session."""
        self.watch.warn(text)
        self._reader.add(text, at)

    def end(self) -> None:
        """The sentence ends here. What follows, if anything, is the next one."""
        self._reader.end()

    # Tokens for the engine

    @property
    def _room(self) -> int:
        """Source tokens that still fit."""
        windowed = self.segmentation.mode in ("auto", "none") and not self._punctuated
        size = min(self.limit, self.segmentation.window) if self.slides and windowed else self.limit
        return size - len(self._window.words)

    def next_input(self) -> Input | None:
        """What has arrived of the present sentence and was not handed over yet, if anything."""
        if self._complete:
            return None  # the engine is still at this sentence
        tokens: list[int] = []
        queue = self._reader.queue
        while queue and not self._complete:
            item = queue[0]
            if item is END or self._skipping:
                queue.popleft()
                if item is END:
                    self._end_sentence()
                continue
            room = self._room
            if len(item.tokens) <= room:
                queue.popleft()
                word, pieces = item.text or None, item.tokens
            elif self._window.words:
                self.full = self.slides
                self._complete = not self.slides  # go on in a new sentence
                break
            else:  # the word is too long
                queue[0] = item._replace(tokens=item.tokens[room:])
                word, pieces = None, item.tokens[:room]
            tokens += pieces
            self._window.read(word, len(pieces))
        return Input(tokens, self._complete) if tokens or self._complete else None

    def _end_sentence(self) -> None:
        self._skipping = False
        self._complete = self._ended = bool(self._window.words)

    # Moving on

    def move_on(self, weights: Weights) -> Cut | None:
        """Where to cut the window; None if it has to be completed as a sentence."""
        window = self._window
        if self.ended_early:
            cut: Cut | None = window.cut_ended(weights)
        else:
            cut = window.cut_full(weights, max(1, len(window.words) // LEAST))
            self._punctuated = False
        self.full = self.ended_early = False
        if cut is None:
            self._complete = True
            return None
        window.drop(cut)
        self._begin()
        return cut

    def _begin(self) -> None:
        """A new sentence or window."""
        self.sentence += 1
        self.patience = self._patience()

    def _patience(self) -> int:
        """Source tokens after which the model's own sentence end counts; 0 for never."""
        mode = self.segmentation.mode
        unpunctuated = mode in ("none", "pause") or (mode == "auto" and self._punctuated is False)
        return PATIENCE if self.slides and unpunctuated else 0

    # Tokens of the engine

    def record(self, found: TokenEvent, time: float) -> list[Event]:
        """The events of a token that the engine read or wrote."""
        text, word = "", None
        if found.kind == "READ":
            piece = self.vocabulary.source.piece(found.token)
            # End-of-sentence, the token after the last one, completes no word.
            words = self._window.words
            word = words[found.read - 1] if found.read <= len(words) else None
        else:
            piece = self.vocabulary.target.piece(found.token)
            text = self._write(found)
            word = text.strip() or None
        event = Event(
            kind=found.kind,
            token=piece,
            word=word,
            info=found.info if self.has_info else None,
            read=found.read,
            written=found.written,
            source_info=found.source_info,
            target_info=found.target_info,
            lag=found.read - found.written,
            sentence=self.sentence,
            time=time,
            text=text,
        )
        events = [event]
        if found.cut is not None:
            events.append(
                event._replace(kind="CUT", token="", word=None, text="", reason=found.cut)
            )
        if found.last:
            self._end_of_translation(found)
        return events

    def _write(self, found: TokenEvent) -> str:
        """Text that a written token makes visible; notes where words and sentences end."""
        window, builder = self._window, self._builder
        window.write(found.read)
        began = builder.open
        text = builder.add(found.token, found.last)
        mark = Mark.SENTENCE if ends_sentence(text.rsplit(" ", 1)[-1]) else Mark.WORD
        if text and not builder.open:
            window.mark(0, mark)
        elif text and began:
            window.mark(1, mark)
        return text

    def _end_of_translation(self, found: TokenEvent) -> None:
        read_all = self._complete and found.read > len(self._window.words)
        if self.patience and not read_all:
            self.ended_early = True  # go on with the rest of the window
            return
        if self._ended:
            self._punctuated = True  # not before: how soon the end arrived must not matter
        self._skipping = not self._complete
        self._window, self._complete, self._ended = Window(), False, False
        self._begin()

"""The text side of one stream: words in, tokens, sentence ends; tokens out, words.

A session knows neither the engine nor other streams. `add` and `end` take text, `next_input` gives
the tokens to feed, and `record` turns what the engine did into events.

Text is tokenized a word at a time, once the word is known to be complete. Translated words are
shown once they are complete, and what was shown is never taken back. The end of a sentence starts
the model on a new one, so a stream can run for hours; a sentence that is longer than the model has
room for is continued as if it were the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from waitinfo.streaming.event import Event
from waitinfo.streaming.segmenter import ends_sentence
from waitinfo.streaming.words import WordBuilder
from waitinfo.text.files import normalise
from waitinfo.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from waitinfo.streaming.engine import TokenEvent

END = None  # in the queue: the sentence ends here


class Input(NamedTuple):
    """Source tokens for the engine."""

    tokens: list[int]
    complete: bool  # the sentence ends after them


class Session:
    """One stream's text. `limit` is the number of source tokens that fit into a sentence."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        limit: int,
        raw: bool = False,
        segment: bool = True,
        has_info: bool = True,
    ) -> None:
        self.vocabulary, self.limit = vocabulary, limit
        self.raw, self.segment, self.has_info = raw, segment, has_info
        self.sentence = 0
        self._letters = ""  # of a word that may go on
        self._queue: deque[tuple[str, list[int]] | None] = deque()
        self._words: list[str | None] = []  # by source token of this sentence: the word it ends
        self._complete = False  # the end of this sentence was handed over
        self._skipping = False  # the model ended a sentence before all of its words came
        self._builder = WordBuilder(vocabulary.target)

    # Text in

    def add(self, text: str) -> None:
        """Source text that has arrived: whole words, or any piece of text in a `raw` session."""
        if not self.raw:
            self._enqueue(text.split())
            return
        words = (self._letters + text).split()
        open_ended = bool(text) and not text[-1].isspace()
        still_open = not text and bool(self._letters)
        self._letters = words.pop() if words and (open_ended or still_open) else ""
        self._enqueue(words)

    def end(self) -> None:
        """The sentence ends here. What follows, if anything, is the next one."""
        self._enqueue([self._letters])
        self._letters = ""
        self._queue.append(END)

    def _enqueue(self, words: Iterable[str]) -> None:
        for word in (part for text in words for part in normalise(text).split()):
            self._queue.append((word, self.vocabulary.source.encode(word)))
            if self.segment and ends_sentence(word):
                self._queue.append(END)

    # Tokens for the engine

    def next_input(self) -> Input | None:
        """What has arrived of the present sentence and was not handed over yet, if anything."""
        if self._complete:
            return None  # the engine is still at this sentence
        tokens: list[int] = []
        while self._queue and not self._complete:
            item = self._queue[0]
            if item is END or self._skipping:
                self._queue.popleft()
                self._skipping &= item is not END
                self._complete = item is END and bool(self._words)
                continue
            word, pieces = item
            room = self.limit - len(self._words)
            if len(pieces) <= room:
                self._queue.popleft()
            elif self._words:
                self._complete = True  # the sentence is too long: go on in a new one
                break
            else:
                self._queue[0] = (word, pieces[room:])  # the word is too long
                word, pieces = "", pieces[:room]
            tokens += pieces
            self._words += [None] * (len(pieces) - 1) + [word or None]
        return Input(tokens, self._complete) if tokens or self._complete else None

    # Tokens of the engine

    def record(self, found: TokenEvent, time: float) -> Event:
        """The event of a token that the engine read or wrote."""
        if found.kind == "READ":
            tokenizer = self.vocabulary.source
            # End-of-sentence, the token after the last one, completes no word.
            word = self._words[found.read - 1] if found.read <= len(self._words) else None
        else:
            tokenizer = self.vocabulary.target
            word = " ".join(self._builder.add(found.token, found.last)) or None
        event = Event(
            kind=found.kind,
            token=tokenizer.piece(found.token),
            word=word,
            info=found.info if self.has_info else None,
            read=found.read,
            written=found.written,
            source_info=found.source_info,
            target_info=found.target_info,
            lag=found.read - found.written,
            sentence=self.sentence,
            time=time,
        )
        if found.last:
            self._next_sentence()
        return event

    def _next_sentence(self) -> None:
        self.sentence += 1
        self._skipping = not self._complete
        self._words, self._complete = [], False

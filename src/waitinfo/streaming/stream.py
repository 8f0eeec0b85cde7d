"""A stream: words go in as they are spoken or typed, translated words come out as soon as due.

Text is tokenized a word at a time, once a word is known to be complete. Translated words are shown
once they are complete; what was shown is never taken back. Sentence ends found on the fly start the
model anew, so a stream can run for hours; a sentence longer than the model's positions is continued
as if it were the next.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.engine import READ, Engine, TokenEvent
from waitinfo.streaming.segmenter import ends_sentence
from waitinfo.streaming.words import WordBuilder
from waitinfo.text.files import normalise

if TYPE_CHECKING:
    from waitinfo.streaming.translator import Translator


@dataclass(frozen=True, slots=True)
class Event:
    """One token read or written, and how the two sides then stand."""

    kind: str  # READ or WRITE
    token: str  # as the vocabulary has it; "</s>" ends a sentence
    word: str | None  # the word this read completed, or the word or words this write made visible
    info: float | None  # None in a model without info
    read: int  # source tokens of this sentence so far
    written: int
    source_info: float  # totals of this sentence so far
    target_info: float
    lag: int  # tokens read less tokens written
    sentence: int  # counted from 0
    time: float  # seconds since the stream began

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


END = None  # in the queue: the sentence ends here


class Stream:
    """One stream of a `Translator`; made by `Translator.stream`."""

    def __init__(
        self, translator: Translator, k: float, raw: bool = False, segment: bool = True
    ) -> None:
        self._translator = translator
        self._k = k
        self.raw, self.segment = raw, segment
        self.trace: list[Event] = []  # everything that happened
        self.finished = False
        self.slot: int | None = None  # given by the translator when there is something to do
        self._letters = ""  # of a word that may go on
        self._queue: deque[tuple[str, list[int]] | None] = deque()
        self._ends: list[str | None] = []  # by source token of this sentence: the word it completes
        self._skipping = False  # the model ended a sentence whose words still come
        self._sentence = 0
        self._words = WordBuilder(translator.vocabulary.target)
        self._shown: list[str] = []
        self._outbox: list[Event] = []
        self.began = time.monotonic()

    # For the one who has the stream

    def push(self, text: str) -> list[Event]:
        """Source text that has arrived; returns what it caused.

        Whole words, or with `raw` any piece of text: then a word is complete once a space follows.
        """
        self.accept(text)
        return self._translator.serve(self)

    def finish(self) -> list[Event]:
        """No more text will come; returns the rest."""
        self.accept_end()
        events = self._translator.serve(self)
        self.close()
        return events

    def close(self) -> None:
        """Give the stream up, finished or not."""
        self.finished = True
        self._queue.clear()
        self._translator.forget(self)

    @property
    def text(self) -> str:
        """All that has been shown."""
        return " ".join(self._shown)

    @property
    def k(self) -> float:
        return self._k

    @k.setter
    def k(self, value: float) -> None:
        """Turn the latency dial; counts from the next decision on."""
        self._k = self._translator.check_dial(value)

    # For the translator

    def accept(self, text: str) -> None:
        """Take text in without serving it yet."""
        if self.finished:
            raise WaitinfoError("this stream has been finished; open another")
        if not self.raw:
            self._enqueue(text.split())
            return
        words = (self._letters + text).split()
        open_ended = bool(text) and not text[-1].isspace()
        still_open = not text and bool(self._letters)
        self._letters = words.pop() if words and (open_ended or still_open) else ""
        self._enqueue(words)

    def accept_end(self) -> None:
        if self.finished:
            raise WaitinfoError("this stream has been finished; open another")
        self._enqueue([self._letters])
        self._letters = ""
        self._queue.append(END)

    def _enqueue(self, words: Iterable[str]) -> None:
        tokenizer = self._translator.vocabulary.source
        for word in (part for text in words for part in normalise(text).split()):
            self._queue.append((word, tokenizer.encode(word)))
            if self.segment and ends_sentence(word):
                self._queue.append(END)

    @property
    def waiting(self) -> bool:
        """Whether text waits to be fed to the engine."""
        return bool(self._queue)

    def feed(self, engine: Engine) -> None:
        """Move text into the engine, up to the end of the sentence it is at."""
        assert self.slot is not None
        engine.set_dial(self.slot, self._k)
        while self._queue and not engine.fed[self.slot]:
            item = self._queue[0]
            if item is END or self._skipping:
                self._queue.popleft()
                self._skipping &= item is not END
                if item is END and self._ends:
                    self._end_sentence(engine)
                continue
            word, tokens = item
            room = engine.room(self.slot)
            if len(tokens) <= room:
                self._queue.popleft()
            elif self._ends:
                self._end_sentence(engine)  # too long a sentence: go on in a new one
                continue
            else:
                self._queue[0] = (word, tokens[room:])  # too long a word
                word, tokens = "", tokens[:room]
            engine.feed(self.slot, tokens)
            self._ends += [None] * (len(tokens) - 1) + [word or None]

    def _end_sentence(self, engine: Engine) -> None:
        assert self.slot is not None
        engine.feed(self.slot, [], complete=True)
        self._ends.append(None)

    def take(self, found: TokenEvent, engine: Engine) -> None:
        """Record what the engine did for this stream."""
        if found.kind == READ:
            vocabulary = self._translator.vocabulary.source
            word = self._ends[found.read - 1]
        else:
            vocabulary = self._translator.vocabulary.target
            word = self._show(found)
        event = Event(
            kind=found.kind,
            token=vocabulary.piece(found.token),
            word=word,
            info=found.info if engine.has_info else None,
            read=found.read,
            written=found.written,
            source_info=found.source_info,
            target_info=found.target_info,
            lag=found.read - found.written,
            sentence=self._sentence,
            time=time.monotonic() - self.began,
        )
        self.trace.append(event)
        self._outbox.append(event)
        if found.last:
            self._next_sentence(engine)

    def _show(self, found: TokenEvent) -> str | None:
        """The words that a written token completes."""
        words = self._words.add(found.token, found.last)
        self._shown += words
        return " ".join(words) or None

    def _next_sentence(self, engine: Engine) -> None:
        assert self.slot is not None
        self._sentence += 1
        self._ends = []
        self._skipping = not engine.fed[self.slot]
        engine.reset(self.slot, self._k)
        self.feed(engine)

    def collect(self) -> list[Event]:
        """Events since the last time."""
        events, self._outbox = self._outbox, []
        return events

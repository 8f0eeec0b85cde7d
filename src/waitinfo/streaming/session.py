"""The text side of one stream: words in, tokens, sentence ends; tokens out, words.

A session knows neither the engine nor other streams. `add` and `end` take text, `next_input` gives
the tokens to feed, and `record` turns what the engine did into events.

Translated words are shown once they are complete, and what was shown is never taken back. The end
of a sentence starts the model on a new one, so a stream can run for hours. Text without sentence
ends moves through a window. Where that is not possible, a sentence that is longer than the model
has room for is continued as if it were the next.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import FRESH, Progress, Replay, ReplayError
from waitinfo.streaming.segmenter import Segmentation, ends_sentence
from waitinfo.streaming.window import Boundary, Cut, Weights, Window
from waitinfo.streaming.words import END, Reader, WordBuilder
from waitinfo.text.identification import LanguageWatch
from waitinfo.text.languages import Opening
from waitinfo.text.tokenizer import Vocabulary

if TYPE_CHECKING:
    from waitinfo.streaming.engine import TokenEvent

PATIENCE = 8  # source tokens after which a sentence that the model has ended is over
LEAST = 8  # a full window moves on by at least an eighth of its tokens
AHEAD = 64  # words, or tokens of words without spaces, that wait until they fit


class Input(NamedTuple):
    """Source tokens for the engine."""

    tokens: list[int]
    complete: bool  # the sentence ends after them


class Session:
    """One stream's text. `limit` is the number of source tokens that fit into a sentence.

    `slides` says whether the system can translate text without sentence ends. Text that is plainly
    not in `language` causes a warning, once. Every sentence begins with the `opening`; windows,
    which would forget it, do not slide then.
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
        opening: Opening | None = None,
    ) -> None:
        self.vocabulary, self.limit, self.has_info = vocabulary, limit, has_info
        self.segmentation, self.opening = segmentation or Segmentation(), opening
        modes = ("auto", "pause", "none")
        self.slides = slides and self.segmentation.mode in modes and opening is None
        self.resumed = FRESH  # what was done before the stream was interrupted
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
        self._again = 0  # source tokens that an interrupted window had read when it began
        self._builder = WordBuilder(vocabulary.target)
        self.patience = self._patience()

    def resume(self, replay: Replay) -> None:
        """Begin where an interrupted stream is to be continued."""
        self.resumed = replay
        self.sentence, self._punctuated = replay.sentence, replay.punctuated
        self.patience = self._patience()
        self._again = replay.begun
        if replay.inside:
            self._reader.go_on()
        if replay.sentence:
            first = not replay.kept
            target = self.vocabulary.target
            inside = not first and not target.starts_word(replay.path[0][0])
            self._builder.go_on(replay.after, first, inside)
        for token, read in replay.path[: replay.kept]:
            self._write(token, read)
        self._window.kept = replay.kept

    @cached_property
    def progress(self) -> Progress:
        """How far the reader of the events has come; for whoever takes them, on one thread.

        Tell it of each text (`progress.source.add`) and each event. It costs nothing unused.
        """
        return Progress(self.vocabulary.target, self.resumed)

    def replay(self) -> Replay:
        """What would continue the stream after all events that its reader has taken."""
        return self.progress.replay()

    # Text in

    def add(self, text: str, at: float | None = None) -> None:
        """Source text that has arrived: whole words, or any piece of text in a `raw` session."""
        self.watch.warn(text)
        self._reader.add(text, at)

    @property
    def hungry(self) -> bool:
        """Whether more text would be of use, or enough waits already."""
        return len(self._reader.queue) < AHEAD

    def divide(self, text: str, size: int) -> tuple[str, str]:
        """Text to add first, of about this size, and the rest."""
        return self._reader.divide(text, size)

    def end(self) -> None:
        """The sentence ends here. What follows, if anything, is the next one."""
        self.watch.warn(" ")  # the last word is complete
        self._reader.end()

    # Tokens for the engine

    @property
    def _room(self) -> int:
        """Source tokens that still fit."""
        mode = self.segmentation.mode
        windowed = mode == "none" or (mode == "auto" and not self._punctuated)
        size = min(self.limit, self.segmentation.window) if self.slides and windowed else self.limit
        return size - len(self._window.words)

    def next_input(self) -> Input | None:
        """What has arrived of the present sentence and was not handed over yet, if anything."""
        if self._complete:
            return None  # the engine is still at this sentence
        queue = self._reader.queue
        tokens = self._open() if queue and queue[0] is not END else []
        while queue and not self._complete:
            item = queue[0]
            if item is END or self._skipping:
                queue.popleft()
                if item is END:
                    self._end_sentence()
                continue
            room = self._room
            end = item.done + room
            if len(item.tokens) <= end:
                queue.popleft()
                word, pieces = item.text or None, item.tokens[item.done :]
            elif self._window.words:
                self.full = self.slides
                self._complete = not self.slides  # go on in a new sentence
                break
            else:  # the word is too long
                queue[0] = item._replace(done=end)
                word, pieces = None, item.tokens[item.done : end]
            tokens += pieces
            self._window.read(word, len(pieces))
        if (self.full or self._complete) and len(self._window.words) < self._again:
            raise ReplayError("resume: the text is shorter than what was read of it")
        return Input(tokens, self._complete) if tokens or self._complete else None

    def _open(self) -> list[int]:
        """The first token of a sentence, which is not part of its text."""
        if self.opening is None or self._window.words or self._skipping:
            return []
        self._window.read("", 1)
        return [self.opening.source]

    def _end_sentence(self) -> None:
        self._skipping = False
        self._complete = self._ended = bool(self._window.words)

    # Moving on

    def move_on(self, weights: Weights) -> Cut | None:
        """Where to cut the window; None if it has to be completed as a sentence.

        weights: [T, S] how much each token written has looked at each source token read.
        """
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
        if self._complete and not window.words:
            self._end()  # nothing is left of the sentence
        else:
            self._begin()
        return cut

    @property
    def begun(self) -> bool:
        """Whether words of the present sentence or window were handed over."""
        return bool(self._window.words)

    def moved(self, read: int, time: float) -> Event:
        """The event of a window that has moved on; `read` source tokens stay in view."""
        written = len(self._window.marks)
        return Event(
            kind="MOVE",
            token="",
            word=None,
            info=None,
            read=read,
            written=written,
            source_info=0.0,
            target_info=0.0,
            lag=read - written,
            sentence=self.sentence,
            time=time,
            kept=self._window.words_kept(read),
        )

    def _begin(self) -> None:
        """A new sentence or window."""
        self.sentence += 1
        self.patience = self._patience()
        self._again = 0

    def _end(self) -> None:
        """A sentence is over, and nothing of it stays."""
        if self._ended:
            self._punctuated = True  # not before: how soon the end arrived must not matter
        self._skipping = not self._complete
        self._window, self._complete, self._ended = Window(), False, False
        self._begin()

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
            word = (words[found.read - 1] or None) if found.read <= len(words) else None
        else:
            piece = self.vocabulary.target.piece(found.token)
            text = self._write(found.token, found.read, found.last)
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
            read_all = self._complete and found.read > len(self._window.words)
            if self.patience and not read_all:
                self.ended_early = True  # go on with the rest of the window
                return events
            overfull = self.slides and self._complete and not self._ended
            self._end()
            if overfull:
                events.append(self.moved(0, time))
        return events

    def _write(self, token: int, read: int, last: bool = False) -> str:
        """Text that a written token makes visible; notes where words and sentences end."""
        window, builder = self._window, self._builder
        window.write(read)
        began = builder.open
        text = builder.add(token, last)
        words = text.split()
        if not words:
            return text
        mark = Boundary.SENTENCE if ends_sentence(words[-1]) else Boundary.WORD
        if not builder.open:
            window.mark(0, mark, len(words))
        elif began:
            window.mark(1, mark, len(words))
        else:
            window.mark(0, Boundary.NOTHING, len(words))
        return text

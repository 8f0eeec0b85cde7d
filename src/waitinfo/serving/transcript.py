"""From the events of a stream to its messages: words, positions in the text, and replays."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from waitinfo.serving.protocol import Replay, Resume, Word, Words
from waitinfo.streaming.event import Event
from waitinfo.streaming.scheduler import WORDS
from waitinfo.text.files import join_surrogates, normalise
from waitinfo.text.scripts import is_unspaced
from waitinfo.text.tokenizer import Tokenizer

WORD = re.compile(r"\S+")
END_OF_SENTENCE = "</s>"


class SourceText:
    """Where in a client's text the model is, in code points."""

    def __init__(self, start: int = 0) -> None:
        self.received = start
        self._complete = start  # after the last complete word
        self.position = start  # after the last word that was read
        self.aligned = True  # the position is exactly as far as the model has read
        self._open = ""  # text after the last complete word
        self._parts: deque[tuple[str, int | None]] = deque()  # to be read; where a word ends
        self._heard = ""  # of the next part

    @property
    def ahead(self) -> int:
        """Characters of complete words that the model has not read yet."""
        return self._complete - self.position

    def longest_word(self, text: str) -> int:
        """Characters of the longest word that this text makes."""
        return max(map(len, (self._open + text).split()), default=0)

    def add(self, text: str) -> int:
        """Text that has arrived; the number of words it completes."""
        self.received += len(text)
        text = self._open + text
        begin = self.received - len(text)
        words = list(WORD.finditer(text))
        whole = len(words)
        if words and words[-1].end() == len(text):
            whole -= 1
        self._open = text[words[whole].start() :] if whole < len(words) else ""
        for word in words[:whole]:
            self._enqueue(word.group(), begin + word.end())
        return whole

    def cut(self) -> int:
        """A word ends here, whatever follows."""
        text, self._open = self._open, ""
        if text:
            self._enqueue(text, self.received)
        return int(bool(text))

    def _enqueue(self, word: str, end: int) -> None:
        self._complete = end
        parts = normalise(word).split()
        self._parts.extend((part, None) for part in parts[:-1])
        self._parts.extend((part, end) for part in parts[-1:])

    def read(self, word: str) -> None:
        """The model has read a word, or a part of one."""
        self._heard += word
        if self._parts and self._heard == self._parts[0][0]:
            end = self._parts.popleft()[1]
            self._heard = ""
            self.aligned = end is not None
            if end is not None:
                self.position = end
        else:
            self.aligned = False


class Surrogates:
    """Joins pairs of surrogates that were cut apart, as UTF-16 does with 😀."""

    def __init__(self) -> None:
        self._half = ""

    def add(self, text: str) -> str:
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._half, text = text[-1], text[:-1]
        return text if text.isprintable() else join_surrogates(text)


class Written(NamedTuple):
    """A token of a word that may go on, and what had been read when it was written."""

    event: Event
    read: int
    position: int


class Transcript:
    """Takes the events of a stream, gives its words, and knows where it could be resumed.

    The events of a resumed stream that its client has seen before are not reported again.
    """

    def __init__(self, tokenizer: Tokenizer, resume: Resume | None = None) -> None:
        self.tokenizer = tokenizer
        self.source = SourceText(resume.position if resume else 0)
        self.words_in = self.words_out = self.lags = 0
        self.start = resume.position if resume else 0
        self.first = self.sentence = resume.sentence if resume else 0
        self._read = self._written = 0  # words of this sentence
        self._tokens = 0  # source tokens of this sentence
        self._open: list[Written] = []
        self._path: list[tuple[int, int]] = []  # not reported yet
        self._events = {
            "READ": self._read_event,
            "WRITE": self._write_event,
            "CUT": self._cut_event,
        }
        last = resume.last if resume else ""
        self._unseen = last  # last character shown before this stream, until something is shown
        self._shown = self._before = last  # last character shown, and the one before `start`
        self._last_seen = False  # the client has seen the last WRITE before
        self._seen_writes = len(resume.path) if resume else 0
        self._seen_reads = resume.read if resume else 0

    def take(self, events: Sequence[Event], trace: bool) -> Words | None:
        """What is new for the client, if anything."""
        words: list[Word] = []
        shown: list[dict[str, Any]] = []
        for event in events:
            self._begin(event.sentence + (event.kind == "CUT"))  # a cut ends its sentence
            new = self._events[event.kind](event)
            if new is None:
                continue
            words += new
            if trace:
                shown.append(event.as_dict())
        if not words and not shown:
            return None
        return Words(
            text="".join(word.text for word in words),
            words=words,
            position=self.source.position,
            time=round(events[-1].time, 4),
            trace=shown if trace else None,
            replay=self._replay(),
        )

    def _begin(self, sentence: int) -> None:
        """Note that a sentence has begun, and so the one before it has ended."""
        if sentence == self.sentence:
            return
        self.sentence = sentence
        self._read = self._written = self._tokens = 0
        self._open = []
        self._seen_reads = 0
        if self.source.aligned and not self._seen_writes:
            self.start, self.first, self._path = self.source.position, sentence, []
            self._before = self._shown

    def _read_event(self, event: Event) -> list[Word] | None:
        self._tokens = event.read
        if event.word:
            self._read += 1
            self.source.read(event.word)
        seen = self._seen_writes > 0 or event.read <= self._seen_reads
        return None if seen else []

    def _write_event(self, event: Event) -> list[Word] | None:
        seen = self._seen_writes > 0
        if seen:
            self._seen_writes -= 1
        else:
            self._path.append((self.tokenizer.token(event.token), event.read))
        self._last_seen = seen
        words = self._show(event)
        if event.token == END_OF_SENTENCE:
            self._begin(event.sentence + 1)
        if seen:
            return None
        self.words_out += len(words)
        self.lags += sum(word.lag for word in words)
        return words

    def _cut_event(self, event: Event) -> list[Word] | None:
        return None if self._last_seen else []

    def _show(self, event: Event) -> list[Word]:
        """The words that a token makes visible: those written before it."""
        now = Written(event, self._read, self.source.position)
        if not event.word:
            self._open.append(now)
            return []
        tokens = self._open or [now]
        self._open = [now]
        shown = WORDS.findall(self._spaced(event.text))
        infos = [token.event.info for token in tokens if token.event.info is not None]
        info = round(sum(infos) / len(shown), 4) if infos else None
        return [self._word(word, tokens, info, event) for word in shown]

    def _spaced(self, text: str) -> str:
        """Text of an event; the first of a resumed stream follows text that it has not seen."""
        before, self._unseen, self._shown = self._unseen, "", text[-1]
        due = before and not text.startswith(" ") and not is_unspaced(before + text[0])
        return f" {text}" if due else text

    def _word(self, text: str, tokens: Sequence[Written], info: float | None, event: Event) -> Word:
        first, last = tokens[0], tokens[-1]
        found = Word(
            word=text.strip(),
            text=text,
            sentence=event.sentence,
            info=info,
            read=last.read,
            position=last.position,
            lag=last.read - self._written,
            source_info=round(first.event.source_info, 4),
            target_info=round(first.event.target_info - (first.event.info or 0.0), 4),
            time=round(event.time, 4),
        )
        self._written += 1
        return found

    def _replay(self) -> Replay:
        path, self._path = self._path, []
        several = self.first != self.sentence
        return Replay(
            position=self.start,
            sentence=self.first,
            path=path,
            read=0 if several else self._tokens,
            last=self._before,
        )

"""From the events of a stream to its messages: words, and positions in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from waitinfo.serving.protocol import Resume, ResumePoint, Words, WrittenWord
from waitinfo.streaming.channel import WORDS
from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import DialState, Replay
from waitinfo.streaming.stream import Handle
from waitinfo.text.files import join_surrogates
from waitinfo.text.scripts import is_unspaced


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


def replay_of(resume: Resume) -> Replay:
    """What a client has sent to resume a stream, for the stream."""
    given = resume.model_dump(exclude={"vocabulary", "dial"})
    return Replay(**given, dial=None if resume.dial is None else DialState(*resume.dial))


class Transcript:
    """Takes the events of a stream, and gives its words and replays as messages.

    The events of a resumed stream that its client has seen before are not reported again.
    """

    def __init__(self, stream: Handle) -> None:
        self._stream, self.progress = stream, stream.session.progress
        self.source, resumed = self.progress.source, stream.session.resumed
        self.words_in = self.words_out = self.lags = 0
        self._open: list[Written] = []
        # Text was shown before the first of this stream, which does not know how it ended.
        self._follows = resumed.sentence > 0 and resumed.after == " "

    def take(self, events: Sequence[Event], trace: bool) -> Words | None:
        """What is new for the client, if anything."""
        words: list[WrittenWord] = []
        shown: list[dict[str, Any]] = []
        for event in events:
            new = self._take(event)
            if new is None:
                continue
            words += new
            if trace:
                shown.append(event.as_dict())
        if self.progress.rest():
            self._open = []
        if not words and not shown:
            return None
        self.words_out += len(words)
        self.lags += sum(word.lag for word in words)
        return Words(
            text="".join(word.text for word in words),
            words=words,
            position=self.source.position,
            time=round(events[-1].time, 4),
            trace=shown if trace else None,
            replay=self._point(),
        )

    def _point(self) -> ResumePoint:
        """The replay of now, whose path continues that of the message before."""
        found = vars(self._stream.replay())
        return ResumePoint.model_validate(found | {"path": self.progress.news()})

    def _take(self, event: Event) -> list[WrittenWord] | None:
        """The words that an event shows; None if the client has seen it before."""
        progress = self.progress
        if progress.enter(event):
            self._open = []
        words = self._show(event) if event.kind == "WRITE" else []
        if event.kind == "MOVE":
            assert event.kept is not None
            gone = progress.words_read - event.kept[0]  # words that have left the window
            still = self._open if event.written else []
            self._open = [token._replace(read=max(0, token.read - gone)) for token in still]
        return words if progress.take(event) else None

    def _show(self, event: Event) -> list[WrittenWord]:
        """The words that a token makes visible: those written before it."""
        now = Written(event, self.progress.words_read, self.source.position)
        if not event.word:
            self._open.append(now)
            return []
        tokens = self._open or [now]
        self._open = [now]
        shown = WORDS.findall(self._spaced(event.text))
        infos = [token.event.info for token in tokens if token.event.info is not None]
        info = round(sum(infos) / len(shown), 4) if infos else None
        first, last, before = tokens[0].event, tokens[-1], self.progress.words_written
        return [
            WrittenWord(
                word=text.strip(),
                text=text,
                sentence=event.sentence,
                info=info,
                read=last.read,
                position=last.position,
                lag=last.read - number,
                source_info=round(first.source_info, 4),
                target_info=round(first.target_info - (first.info or 0.0), 4),
                time=round(event.time, 4),
            )
            for number, text in enumerate(shown, before)
        ]

    def _spaced(self, text: str) -> str:
        """Text of an event; a resumed stream does not know that there was text before it."""
        due = self._follows and not text.startswith(" ") and not is_unspaced(text[0])
        self._follows = False
        return f" {text}" if due else text

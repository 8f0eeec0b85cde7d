"""From the events of a stream to its messages: words, and positions in the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from waitinfo.serving.protocol import Resume, ResumePoint, Words, WrittenWord
from waitinfo.streaming.channel import WORDS
from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import DialState, Place, Recorder, Replay
from waitinfo.streaming.words import separates
from waitinfo.text.files import join_surrogates, normalise
from waitinfo.text.scripts import PILE, UNSPACED, is_unspaced, letter_end, longest_word, piles_marks
from waitinfo.text.tokenizer import Tokenizer

SPACES = 64  # that are kept between two words


class SourceText:
    """Where in a client's text the model is, in code points."""

    def __init__(self, start: int = 0) -> None:
        self.received = start
        self.position = start  # after the last word, or part of one, that was read
        self.aligned = True  # the position is exactly as far as the model has read
        self._text = ""  # from the position on
        self._at = 0  # of that, this much is done with
        self._open = ""  # text after the last complete word
        self._tail = ""  # the last characters that have arrived
        self._heard = ""  # was read and not found

    @property
    def ahead(self) -> int:
        """Characters that the model has not read yet."""
        return self.received - self.position

    @property
    def inside(self) -> bool:
        """Whether the text goes on without a space after the position."""
        return self._at == len(self._text) or not separates(self._text[self._at])

    def longest_word(self, text: str) -> int:
        """Characters of the longest word that this text makes."""
        return longest_word(self._open + text)

    def piles_marks(self, text: str) -> bool:
        """Whether this text makes a letter with too many marks."""
        return piles_marks(self._tail + text)

    def add(self, text: str) -> int:
        """Text that has arrived; the number of words it completes.

        In scripts without spaces, the number of characters.
        """
        self.received += len(text)
        self._tail = (self._tail + text)[-PILE:]
        self._text = self._text[self._at :] + text
        self._at = 0
        self._skip_spaces()
        letters = len(UNSPACED.findall(text))
        words = (self._open + text).split()
        last = words.pop() if words and not separates(text[-1:] or self._open[-1]) else ""
        self._open = "" if is_unspaced(last) else last
        return letters + sum(not is_unspaced(word) for word in words)

    def _skip_spaces(self) -> None:
        """Forget all but the last of many spaces: no word may ever come that takes them along."""
        if self._heard or len(self._text) <= SPACES or not separates(self._text[SPACES]):
            return
        end = next((n for n, char in enumerate(self._text) if not separates(char)), None)
        count = (len(self._text) if end is None else end) - 1
        if count >= SPACES:
            self._text = self._text[count:]
            self.position += count

    def cut(self) -> int:
        """A word ends here, whatever follows."""
        open_word, self._open = self._open, ""
        return int(bool(open_word))

    def read(self, word: str) -> None:
        """The model has read a word, or a part of one."""
        self._heard += word
        begin = self._at
        while begin < len(self._text) and separates(self._text[begin]):
            begin += 1
        end, heard = self._found(begin)
        self._heard = self._heard[heard:]
        self.aligned = not self._heard
        if heard:
            self.position += end - self._at
            self._at = end

    def _found(self, at: int) -> tuple[int, int]:
        """Where the text ends that was read, from a place on, and how much of what was read it is.

        The tokenizer gets other characters where some of a letter are joined, split or sorted.
        """
        text, heard, done = self._text, self._heard, 0
        if text.startswith(heard, at):
            return at + len(heard), len(heard)
        while done < len(heard) and at < len(text):
            end = letter_end(text, at)
            letter = normalise(text[at:end])
            if not heard.startswith(letter, done):
                return self._parted(at, min(end, at + PILE), done)
            at, done = end, done + len(letter)
        return at, done

    def _parted(self, at: int, last: int, done: int) -> tuple[int, int]:
        """A sentence may have been ended within a letter; else the rest of it comes later."""
        rest = self._heard[done:]
        for end in range(at + 1, last):
            if normalise(self._text[at:end]) == rest:
                return end, done + len(rest)
        return at, done


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

    The events of a resumed stream that its client has seen before are not reported again. `dial`
    and `memory` are as for the `Recorder`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        resume: Resume | None = None,
        dial: Callable[[int], DialState | None] = lambda sentence: None,
        memory: Callable[[int], Sequence[float]] = lambda sentence: (),
    ) -> None:
        replay = Replay(after="") if resume is None else replay_of(resume)
        self.source = SourceText(replay.position)
        self.recorder = Recorder(tokenizer, replay, self._here, dial, memory)
        self.words_in = self.words_out = self.lags = 0
        self._open: list[Written] = []
        # Text was shown before the first of this stream, which does not know how it ended.
        self._follows = replay.sentence > 0 and replay.after == " "

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
        if self.recorder.rest():
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
            replay=ResumePoint.model_validate(vars(self.recorder.replay())),
        )

    def _take(self, event: Event) -> list[WrittenWord] | None:
        """The words that an event shows; None if the client has seen it before."""
        recorder = self.recorder
        if recorder.enter(event):
            self._open = []
        words = self._show(event) if event.kind == "WRITE" else []
        if event.kind == "MOVE":
            assert event.kept is not None
            gone = recorder.words_read - event.kept[0]  # words that have left the window
            still = self._open if event.written else []
            self._open = [token._replace(read=max(0, token.read - gone)) for token in still]
        new = recorder.take(event)
        if event.kind == "READ" and event.word:
            self.source.read(event.word)
        return words if new else None

    def _here(self) -> Place:
        source = self.source
        return Place(source.position, source.inside, source.aligned)

    def _show(self, event: Event) -> list[WrittenWord]:
        """The words that a token makes visible: those written before it."""
        now = Written(event, self.recorder.words_read, self.source.position)
        if not event.word:
            self._open.append(now)
            return []
        tokens = self._open or [now]
        self._open = [now]
        shown = WORDS.findall(self._spaced(event.text))
        infos = [token.event.info for token in tokens if token.event.info is not None]
        info = round(sum(infos) / len(shown), 4) if infos else None
        first, last, before = tokens[0].event, tokens[-1], self.recorder.words_written
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

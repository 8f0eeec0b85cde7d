"""From the events of a stream to its messages: words, positions in the text, and replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from waitinfo.serving.protocol import Begin, Resume, ResumePoint, Word, Words
from waitinfo.streaming import replay
from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import DialState
from waitinfo.streaming.scheduler import WORDS
from waitinfo.streaming.words import separates
from waitinfo.text.files import join_surrogates, normalise
from waitinfo.text.scripts import PILE, UNSPACED, is_unspaced, letter_end, longest_word, piles_marks
from waitinfo.text.tokenizer import Tokenizer

END_OF_SENTENCE = "</s>"
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


def replay_of(resume: Resume) -> replay.Replay:
    """What a client has sent to resume a stream, for the stream."""
    given = resume.model_dump(exclude={"position", "read", "vocabulary", "dial"})
    dial = None if resume.dial is None else DialState(*resume.dial)
    return replay.Replay(**given, dial=dial)


class Place(NamedTuple):
    """Where a source token begins."""

    position: int
    inside: bool  # a word without spaces, in the middle
    clean: bool  # a stream could begin here


class Transcript:
    """Takes the events of a stream, gives its words, and knows where it could be resumed.

    The events of a resumed stream that its client has seen before are not reported again. `dial`
    tells what a stream that holds its lag knew when a sentence began, `memory` what its policy did.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        resume: Resume | None = None,
        dial: Callable[[int], DialState | None] = lambda sentence: None,
        memory: Callable[[int], Sequence[float]] = lambda sentence: (),
    ) -> None:
        resume = resume or Resume.model_validate({"position": 0, "after": ""})
        self.tokenizer, self._dial, self._memory = tokenizer, dial, memory
        self.source = SourceText(resume.position)
        self.words_in = self.words_out = self.lags = 0
        self.sentence = resume.sentence
        self._begins = Begin.model_validate(resume.model_dump())  # where a replay would begin
        self._read, self._written = 0, resume.shown  # words of this sentence or window
        self._tokens = 0  # source tokens of it that were read
        self._places: list[Place] = []  # by source token in view
        self._view = list(resume.path[: resume.kept])  # target tokens in view
        self._whole = True  # no source word is read in part
        self._over = False  # the sentence has ended
        self._open: list[Written] = []
        self._path: list[tuple[int, int]] = []  # not reported yet
        self._events = {
            "READ": self._read_event,
            "WRITE": self._write_event,
            "CUT": self._cut_event,
            "MOVE": self._move_event,
        }
        self._last = resume.after  # character shown
        # Text was shown before the first of this stream, which does not know how it ended.
        self._follows = resume.sentence > 0 and resume.after == " "
        self._last_seen = False  # the client has seen the last WRITE before
        self._seen_writes = len(resume.path) - resume.kept
        self._seen_reads = resume.read

    def take(self, events: Sequence[Event], trace: bool) -> Words | None:
        """What is new for the client, if anything."""
        words: list[Word] = []
        shown: list[dict[str, Any]] = []
        for event in events:
            if event.kind in ("READ", "WRITE") and event.sentence != self.sentence:
                self._begin(event.sentence)
            new = self._events[event.kind](event)
            if new is None:
                continue
            words += new
            if trace:
                shown.append(event.as_dict())
        if self._over:  # with no MOVE after it
            self._begin(self.sentence + 1)
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
        """A sentence begins, and so the one before it has ended."""
        self.sentence, self._over = sentence, False
        self._read = self._written = self._tokens = 0
        self._open, self._places, self._view = [], [], []
        self._seen_reads = 0
        # A sentence starts a new word, even where the text has no space.
        self._restart(self._here._replace(inside=False), [], punctuated=True)

    @property
    def _here(self) -> Place:
        source = self.source
        return Place(source.position, source.inside, source.aligned and self._whole)

    def _restart(
        self, place: Place, path: list[tuple[int, int]], punctuated: bool, begun: int = 0
    ) -> None:
        """From now on, a replay begins here, if it can."""
        if place.clean and not self._seen_writes:
            self._path = list(path)
            self._begins = Begin(
                position=place.position,
                sentence=self.sentence,
                begun=begun,
                kept=len(path),
                shown=self._written,
                punctuated=punctuated,
                inside=place.inside,
                after=self._last,
            )

    def _read_event(self, event: Event) -> list[Word] | None:
        self._tokens = event.read
        self._places.append(self._here)
        if event.token != END_OF_SENTENCE:  # which may come within a word longer than a window
            self._whole = bool(event.word)
        if event.word:
            self._read += 1
            self.source.read(event.word)
        seen = self._seen_writes > 0 or event.read <= self._seen_reads
        return None if seen else []

    def _write_event(self, event: Event) -> list[Word] | None:
        token = (self.tokenizer.token(event.token), event.read)
        self._view.append(token)
        seen = self._seen_writes > 0
        if seen:
            self._seen_writes -= 1
        else:
            self._path.append(token)
        self._last_seen = seen
        words = self._show(event)
        self._over = event.token == END_OF_SENTENCE
        if seen:
            return None
        self.words_out += len(words)
        self.lags += sum(word.lag for word in words)
        return words

    def _cut_event(self, event: Event) -> list[Word] | None:
        self._over = True
        return None if self._last_seen else []

    def _move_event(self, event: Event) -> list[Word] | None:
        """The window has moved on; what is still in view belongs to the next one."""
        gone = len(self._places) - event.read
        place = self._places[gone] if event.read else self._here
        self._places = self._places[gone:]
        kept = self._view[len(self._view) - event.written :] if event.written else []
        self._view = [(token, max(1, read - gone)) for token, read in kept]
        assert event.kept is not None
        words = self._read - event.kept[0]  # that have left the window
        still = self._open if event.written else []
        self._open = [token._replace(read=max(0, token.read - words)) for token in still]
        self._read, self._written = event.kept
        self.sentence, self._tokens, self._over = event.sentence, event.read, False
        self._seen_reads = 0
        self._restart(place, self._view, punctuated=False, begun=event.read)
        return None if self._seen_writes else []

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
        """Text of an event; a resumed stream does not know that there was text before it."""
        due = self._follows and not text.startswith(" ") and not is_unspaced(text[0])
        self._follows = False
        return f" {text}" if due else text

    def _word(self, text: str, tokens: Sequence[Written], info: float | None, event: Event) -> Word:
        first, last = tokens[0], tokens[-1]
        self._last = text[-1]
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

    def _replay(self) -> ResumePoint:
        path, self._path = self._path, []
        begins = self._begins
        return ResumePoint(
            **begins.model_dump(),
            path=path,
            read=0 if begins.sentence != self.sentence else self._tokens,
            dial=self._dial(begins.sentence),
            memory=list(self._memory(begins.sentence)),
        )

"""Where an interrupted stream continues: what says so, and what finds it out from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import ClassVar, NamedTuple

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.streaming.words import separates
from waitinfo.text.files import normalise
from waitinfo.text.scripts import PILE, UNSPACED, is_unspaced, letter_end, longest_word, piles_marks
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.text.tokenizer import Tokenizer

END_OF_SENTENCE = "</s>"
SPACES = 64  # of the source that are kept between two words


class ReplayError(WaitinfoError):
    """No stream of this model can have been interrupted so."""

    code: ClassVar[str] = "resume"


class DialState(NamedTuple):
    """What a stream that holds its lag knew when its present sentence or window began."""

    k: float  # the dial
    aim: float  # the lag that it was set for
    behind: float  # sum of the differences between goal and lag
    source: float  # source words so far, and translated words: their ratio is the pace
    target: float


@dataclass(frozen=True)
class Replay:
    """What a stream had written of its present sentence or window when it was interrupted.

    A stream opened with it gets the source again from the beginning of that sentence or window. It
    reads and writes the same tokens at the same places, and then goes on as if it had not been
    interrupted. A window that has moved on begins with tokens that were read and written before:
    the first `begun` source tokens are read again at once, and the first `kept` tokens of the path
    are not reported again.
    """

    path: Sequence[tuple[int, int]] = ()  # tokens written, each with the source tokens read before
    sentence: int = 0  # number of the present sentence or window
    seconds: float = 0.0  # age of the stream when it was interrupted
    begun: int = 0  # source tokens that had been read when the window began
    kept: int = 0  # tokens of the path that had been written then
    shown: int = 0  # words among them that had been shown
    punctuated: bool | None = None  # whether the text had sentence ends, if that was known
    inside: bool = False  # the source begins inside a word without spaces
    after: str = " "  # the last character that had been shown
    dial: DialState | None = None  # of a stream that holds its lag
    memory: Sequence[float] = ()  # of the policy, when the window began
    position: int = 0  # of its beginning in the source
    read: int = 0  # source tokens of it that were reported

    def check(self, vocabulary: int, capacity: int, memory: int = 0) -> None:
        """Raise unless a model with this vocabulary can have written it.

        capacity: source tokens that fit into a sentence. memory: numbers that its policy remembers.
        """
        for token, read in self.path:
            if not 0 <= token < vocabulary or token in (BOS, PAD) or not 0 <= read <= capacity + 1:
                raise ReplayError(
                    f"replay: token {token} after {read} cannot have been written by this model"
                )
        possible = (
            0 <= self.begun <= capacity
            and 0 <= self.kept <= min(len(self.path), 2 * capacity)
            and 0 <= self.shown <= 4 * self.kept
            and all(1 <= r <= self.begun and t != EOS for t, r in self.path[: self.kept])
        )
        if not possible:
            raise ReplayError("replay: no window can have begun with these tokens")
        if self.memory and (len(self.memory) != memory or not all(map(isfinite, self.memory))):
            raise ReplayError(f"replay: the policy remembers {memory} numbers, not {self.memory}")


FRESH = Replay(after="")  # of a stream that was not interrupted


class Place(NamedTuple):
    """A place in the source."""

    position: int
    inside: bool  # in the middle of a word without spaces
    clean: bool  # a stream could begin here


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


class Progress:
    """How far the reader of a stream's events has come, and the replay that would continue it.

    `given` is what this stream was resumed with: events that its client has seen come again.
    """

    def __init__(self, tokenizer: Tokenizer, given: Replay) -> None:
        self.source = SourceText(given.position)
        self.sentence = given.sentence
        self.words_read, self.words_written = 0, given.shown  # of this sentence or window
        self._tokenizer = tokenizer
        self._begins = given  # where a replay would begin
        self._tokens = 0  # source tokens of this sentence or window that were read
        self._places: list[Place] = []  # by source token in view
        self._view = list(given.path[: given.kept])  # target tokens in view
        self._path = list(given.path)  # since then
        self._given = len(self._path)  # tokens of it that the client has
        self._whole = True  # no source word is read in part
        self._over = False  # the sentence has ended
        self._last = given.after  # character shown
        self._last_seen = False  # the last WRITE was seen before the interruption
        self._seen_writes, self._seen_reads = len(given.path) - given.kept, given.read

    def enter(self, event: Event) -> bool:
        """Whether a sentence begins with this event; then the one before has ended."""
        begins = event.kind in ("READ", "WRITE") and event.sentence != self.sentence
        if begins:
            self._begin(event.sentence)
        return begins

    def rest(self) -> bool:
        """After all events there are: whether a sentence has ended, so that the next begins."""
        over = self._over
        if over:  # with no MOVE after it
            self._begin(self.sentence + 1)
        return over

    def take(self, event: Event) -> bool:
        """Follow an event; whether it was not seen before."""
        self.enter(event)
        if event.kind == "READ":
            new = self._read(event)
            if event.word:
                self.source.read(event.word)
            return new
        if event.kind == "WRITE":
            return self._write(event)
        if event.kind == "MOVE":
            return self._move(event)
        self._over = True
        return not self._last_seen

    def replay(self) -> Replay:
        """The replay that would continue the stream now."""
        self.rest()
        sentence = self._begins.sentence
        read = 0 if sentence != self.sentence else self._tokens
        return replace(self._begins, path=list(self._path), read=read)

    def news(self) -> list[tuple[int, int]]:
        """What the path of the replay has more than at the last call, or all of a new one."""
        begin, self._given = self._given, len(self._path)
        return self._path[begin:]

    def _begin(self, sentence: int) -> None:
        self.sentence, self._over = sentence, False
        self.words_read = self.words_written = self._tokens = 0
        self._places, self._view = [], []
        self._seen_reads = 0
        # A sentence starts a new word, even where the text has no space.
        self._restart(self._place()._replace(inside=False), [], punctuated=True)

    def _place(self) -> Place:
        source = self.source
        return Place(source.position, source.inside, source.aligned and self._whole)

    def _restart(
        self, place: Place, path: list[tuple[int, int]], punctuated: bool, begun: int = 0
    ) -> None:
        """From now on, a replay begins here, if it can."""
        if place.clean and not self._seen_writes:
            self._path, self._given = list(path), 0
            self._begins = Replay(
                position=place.position,
                sentence=self.sentence,
                begun=begun,
                kept=len(path),
                shown=self.words_written,
                punctuated=punctuated,
                inside=place.inside,
                after=self._last,
            )

    def _read(self, event: Event) -> bool:
        self._tokens = event.read
        self._places.append(self._place())
        if event.token != END_OF_SENTENCE:  # which may come within a word longer than a window
            self._whole = bool(event.word)
        self.words_read += bool(event.word)
        return not self._seen_writes and event.read > self._seen_reads

    def _write(self, event: Event) -> bool:
        token = (self._tokenizer.token(event.token), event.read)
        self._view.append(token)
        self._last_seen = self._seen_writes > 0
        if self._last_seen:
            self._seen_writes -= 1
        else:
            self._path.append(token)
        self._over = event.token == END_OF_SENTENCE
        if event.word:
            self.words_written += len(event.text.split())
            self._last = event.text[-1]
        return not self._last_seen

    def _move(self, event: Event) -> bool:
        """The window has moved on; what is still in view belongs to the next one."""
        gone = len(self._places) - event.read
        place = self._places[gone] if event.read else self._place()
        self._places = self._places[gone:]
        kept = self._view[len(self._view) - event.written :] if event.written else []
        self._view = [(token, max(1, read - gone)) for token, read in kept]
        assert event.kept is not None
        self.words_read, self.words_written = event.kept
        self.sentence, self._tokens, self._over = event.sentence, event.read, False
        self._seen_reads = 0
        self._restart(place, self._view, punctuated=False, begun=event.read)
        return not self._seen_writes

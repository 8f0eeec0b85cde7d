"""Holding a lag: a controller that turns the dial of a stream.

It measures the lag of what is written and turns the dial so that the mean tends to the target,
whatever the speaker does. The dial depends on what was read and written alone, never on time or on
how the text arrived. So a stream still writes the same for the same text, and the batched decoder
writes the same tokens when it is given the dials (`LagController.turns`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from waitinfo.errors import number
from waitinfo.streaming.event import Event
from waitinfo.streaming.replay import DialState, Replay
from waitinfo.systems import System, check_dial
from waitinfo.trained.calibration import WORDS, Calibration, interpolate, read_calibration

SPAN = 25  # words shown after which a lag is measured within a sentence
GAIN = 0.025  # share of the accumulated error that is corrected at a time
STEP = 1.0  # words of lag by which the dial is turned at a time, at most
ENDS = "</s>"
REMEMBERED = 4096  # sentences whose first state is kept, for streams whose events wait


def mean_lag(
    delays: Sequence[int], pace: float, source: int | None = None, first: int = 0
) -> float:
    """Mean lag of words behind an ideal writer, who shows one for every `pace` source words.

    delays: source words read when each was shown, of those from `first` on. With the length of the
    source, the sum ends at the first word shown after all of it, as that of LAAL does.
    """
    total, count = 0.0, 0
    for shown, delay in enumerate(delays, first):
        total += delay - shown * pace
        count += 1
        if source is not None and delay >= source:
            break
    return total / count


class LagMeter:
    """Measures the lag of a translation without a reference, a sentence or SPAN words at a time.

    `pace` is the expected number of source words for each translated word. It is corrected by what
    finished sentences had.
    """

    def __init__(self, pace: float) -> None:
        # The given pace counts as much as a hundred translated words.
        self._source, self._target = 100 * pace, 100.0
        self._delays: list[int] = []  # of the words shown in this sentence
        self._measured = 0  # of them are measured already

    @property
    def pace(self) -> float:
        return self._source / self._target

    def show(self, delay: int) -> float | None:
        """A word is shown after `delay` source words of its sentence; sometimes, return a lag."""
        self._delays.append(delay)
        if len(self._delays) - self._measured < SPAN:
            return None
        return self._measure(self.pace)

    def end(self, source: int) -> float | None:
        """The sentence ends after `source` words; its lag, or that of its last words."""
        shown = len(self._delays)
        lag = None
        if shown > self._measured and source:
            pace = self.pace if self._measured else source / shown
            lag = self._measure(pace, source)
        self._source += source
        self._target += shown
        self._delays, self._measured = [], 0
        return lag

    def move(self, source: int, kept: int) -> float | None:
        """A window moves on: `source` words leave it, and `kept` of the words shown stay in view.

        Lags are counted from the beginning of the window on both sides. Returns the lag of what
        was not measured yet.
        """
        lag = self._measure(self.pace) if len(self._delays) > self._measured else None
        leave = len(self._delays) - kept
        self._source += source
        self._target += leave
        self._delays = [delay - source for delay in self._delays[leave:]]
        self._measured = kept
        return lag

    def begin(self, kept: int) -> None:
        """Start in a window in which some words were shown, and measured, before."""
        self._delays, self._measured = [0] * kept, kept

    @property
    def totals(self) -> tuple[float, float]:
        """Source words and translated words that the pace comes from."""
        return self._source, self._target

    @totals.setter
    def totals(self, found: tuple[float, float]) -> None:
        self._source, self._target = found

    def _measure(self, pace: float, source: int | None = None) -> float:
        first, self._measured = self._measured, len(self._delays)
        return mean_lag(self._delays[first:], pace, source, first)


def sentence_lags(delays: Sequence[int], source: int, meter: LagMeter) -> Iterator[float]:
    """The lags that a meter measures in a whole sentence."""
    for delay in delays:
        if (lag := meter.show(delay)) is not None:
            yield lag
    if (lag := meter.end(source)) is not None:
        yield lag


class WordCount:
    """Counts the source words of a stream as its tokens are read; a word counts from its first."""

    def __init__(self) -> None:
        self.words = 0
        self.inside = False  # the last token has not ended its word

    def read(self, event: Event) -> None:
        if event.token != ENDS:
            self.words += not self.inside
            self.inside = event.word is None

    def kept(self, event: Event) -> int:
        """Words that stay in view when a window moves on."""
        assert event.kept is not None
        return event.kept[0]


class LetterCount(WordCount):
    """The same in a script without spaces, in letters: those of the tokens that are read."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: list[int] = []  # of the tokens in view

    def read(self, event: Event) -> None:
        if event.token == ENDS:
            return
        if event.read == 1:
            self._sizes.clear()
        self._sizes.append(letter_count(event.token))
        self.words += self._sizes[-1]

    def kept(self, event: Event) -> int:
        self._sizes = self._sizes[max(0, len(self._sizes) - event.read) :]
        return sum(self._sizes)


def letter_count(piece: str) -> int:
    """Letters of a source token; of those that are bytes, the first stands for its letter."""
    if piece.startswith("<0x"):
        return int(not 0x80 <= int(piece[3:-1], 16) < 0xC0)
    return 1 if piece == "<unk>" else len(piece.replace("▁", ""))


class DialTurn(NamedTuple):
    """The dial from a place in a stream on."""

    sentence: int
    written: int  # tokens of this sentence that are written before it counts
    k: float


class LagController:
    """Turns the dial of one stream so that the mean lag tends to `target`.

    After every sentence, or SPAN words of a long one, the difference between goal and measured lag
    is added up. The dial is set for the goal plus a share (GAIN) of that sum: an integral
    controller. It never leaves the calibrated range and never turns by more than STEP words of
    lag, or by more than one on a whole dial.
    """

    def __init__(self, target: float, calibration: Calibration, history: int | None = None) -> None:
        self.target, self.calibration = target, calibration
        self.goal = calibration.goal(target)
        self.k = calibration.dial(target)
        self.turns: deque[DialTurn] = deque(
            [DialTurn(0, 0, self.k)], maxlen=None if history is None else max(1, history)
        )
        self._set = self.goal  # the lag that the dial is set for
        self._behind = 0.0  # sum of the differences
        self._meter = LagMeter(calibration.pace)
        self._count = WordCount() if calibration.source == WORDS else LetterCount()
        self._begun = False  # a sentence has begun since the controller took over
        self._first = 0  # sentences before this one are not observed
        self._states: OrderedDict[int, DialState] = OrderedDict()  # by sentence, at its beginning

    def resume(self, replay: Replay) -> None:
        """Take over from the controller of an interrupted stream.

        If that had not been at work when the sentence began, it begins with the next one.
        """
        self._first = replay.sentence
        if replay.dial is None:
            self._first += bool(replay.path or replay.sentence)
            return
        self.k, self._set, self._behind, *totals = replay.dial
        self._meter.totals = (totals[0], totals[1])
        self._meter.begin(replay.shown)
        self.turns[0] = DialTurn(replay.sentence, replay.kept, self.k)

    def state(self, sentence: int) -> DialState | None:
        """What it knew at the beginning of a sentence or window, if it was at work then."""
        return self._states.get(sentence)

    def states_after(self, sentence: int) -> dict[int, DialState]:
        """What it knew at the beginnings of the sentences or windows after one."""
        return {begun: state for begun, state in [*self._states.items()] if begun > sentence}

    def follow(self, k: float, states: Mapping[int, DialState]) -> None:
        """Be where the controller of the same stream is that has observed it."""
        if k != self.k:
            self.k = k
        for sentence, state in states.items():
            self._states[sentence] = state
            if len(self._states) > REMEMBERED:
                self._states.popitem(last=False)

    def observe(self, event: Event, last: bool) -> None:
        """What a stream reports: a token read or written, or a window that moves on.

        `last` ends a sentence, and none of its words stay in view.
        """
        if event.kind == "MOVE":
            self._move(event)
            return
        if not self._begun and event.sentence >= self._first:
            self._begin(event)
        if self._begun:
            if event.kind == "READ":
                self._count.read(event)
            elif event.word:
                shown = event.word.split()
                for _ in shown if self.calibration.target == WORDS else "".join(shown):
                    self._correct(self._meter.show(self._count.words))
            self._note(event.sentence, event.written)
        if last:
            self.end(event.sentence)

    def end(self, sentence: int) -> None:
        """A sentence is over."""
        if self._begun:
            self._correct(self._meter.end(self._count.words))
        self._count.words = 0
        self._begun = sentence + 1 >= self._first
        self._note(sentence + 1, 0)
        self._remember(sentence + 1)

    def _begin(self, event: Event) -> None:
        """Begin with the first token of a sentence; within one, its beginning was not seen."""
        self._begun = event.kind == "READ" and event.read == 1
        if self._begun:
            self._remember(event.sentence)

    def _move(self, event: Event) -> None:
        """Source words that were read and stay in view count as read in the next window."""
        assert event.kept is not None
        source, shown = self._count.kept(event), event.kept[1]
        if not self._begun:
            self._begun = event.sentence >= self._first
            self._meter.begin(shown)
        elif event.written:
            self._correct(self._meter.move(self._count.words - source, shown))
        else:  # the model has ended a sentence: all of what it wrote belongs to it
            self._correct(self._meter.end(self._count.words - source))
        self._count.words = source
        self._note(event.sentence, event.written)
        self._remember(event.sentence)

    def _remember(self, sentence: int) -> None:
        if self._begun:
            self._states[sentence] = DialState(self.k, self._set, self._behind, *self._meter.totals)
            if len(self._states) > REMEMBERED:
                self._states.popitem(last=False)

    def _note(self, sentence: int, written: int) -> None:
        """Note where the dial was turned, if it was."""
        if self.k != self.turns[-1].k:
            self.turns.append(DialTurn(sentence, written, self.k))

    def _correct(self, lag: float | None) -> None:
        """Turn the dial after a lag was measured."""
        if lag is None:
            return
        lags, dials = self.calibration.measured, self.calibration.dials
        reach = (lags[0] - self.goal) / GAIN, (lags[-1] - self.goal) / GAIN
        self._behind = min(max(self._behind + self.goal - lag, reach[0]), reach[1])
        wanted = self.goal + GAIN * self._behind
        self._set = min(max(wanted, self._set - STEP), self._set + STEP)
        k = self.calibration.round(interpolate(self._set, lags, dials))
        if self.calibration.whole:
            k = min(max(k, self.k - 1), self.k + 1)
        self.k = k


class Dials:
    """Dial values of a model's streams: checked, or found for a lag."""

    def __init__(self, folder: Path, system: System) -> None:
        self.folder, self.system = folder, system

    @cached_property
    def calibration(self) -> Calibration:
        return read_calibration(self.folder, self.system)

    def check(self, k: float | None) -> float:
        """A dial value as given, or the system's default; an error if it is out of range."""
        return check_dial(self.system, k)

    def at_lag(self, lag: float) -> float:
        """The dial value that had a lag on the development set."""
        return self.calibration.dial(number("lag", lag))

    def controller(self, lag: float, history: int | None = None) -> LagController:
        return LagController(number("lag", lag), self.calibration, history)

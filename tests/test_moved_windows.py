"""Windows that have moved on: interrupted at any place, and held at a lag, nothing changes."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import Inquirer, Judge, recorded_engine
from tests.streams import WORDS, calibration, record, toy_model
from waitinfo import Event, Translator, WaitinfoError
from waitinfo.streaming.lag import GAIN, SPAN, STEP, LagController
from waitinfo.streaming.replay import Replay
from waitinfo.streaming.stream import Stream
from waitinfo.text.special import EOS


def translator(system: str = "wait-k", capacity: int = 24) -> Translator:
    found = Translator(toy_model(system), streams=4, capacity=capacity)
    found.dials.calibration = calibration()
    return found


def plain(seed: int, count: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)


@dataclass
class Interrupted:
    """What is to be kept of a stream, worked out from its events alone."""

    server: Translator
    sentence: int = 0
    first: int = 0  # source words that are done with
    words: list[str | None] = field(default_factory=list)  # by source token in view
    path: list[tuple[int, int]] = field(default_factory=list)
    begun: int = 0
    kept: int = 0
    shown: int = 0
    punctuated: bool | None = None

    def take(self, event: Event) -> None:
        if event.kind == "MOVE":
            gone = len(self.words) - event.read
            self.first += sum(word is not None for word in self.words[:gone])
            self.words = self.words[gone:]
            left = self.path[len(self.path) - event.written :] if event.written else []
            self.path = [(token, max(1, read - gone)) for token, read in left]
            self.begun, self.kept, self.shown = event.read, event.written, event.kept[1]
            self.sentence, self.punctuated = event.sentence, False
        elif event.kind == "READ":
            self._begin(event.sentence)
            if event.token != "</s>":
                self.words.append(event.word)
        elif event.kind == "WRITE":
            self._begin(event.sentence)
            self.path.append((self.server.vocabulary.target.token(event.token), event.read))

    def _begin(self, sentence: int) -> None:
        if sentence != self.sentence:
            self.first += sum(word is not None for word in self.words)
            self.sentence, self.words, self.path, self.punctuated = sentence, [], [], True
            self.begun = self.kept = self.shown = 0

    def replay(self, stream: Stream) -> Replay:
        channel = stream._channel
        dial = None if channel.controller is None else channel.controller.state(self.sentence)
        return Replay(
            self.path, self.sentence, 0.0, self.begun, self.kept, self.shown, self.punctuated,
            dial=dial, memory=channel.memories.get(self.sentence, ()),
        )  # fmt: skip


def tokens(events: list[Event]) -> list[tuple]:
    """Without CUT: an end that has been accepted is not explained again."""
    return record([event for event in events if event.kind != "CUT"])


def interrupt_everywhere(
    server: Translator, words: list[str], segment: str, every: int = 1, **dial: float
) -> int:
    """Interrupt a stream after `every` event, continue it, and compare; how often windows moved."""
    whole = server.stream(segment=segment, history=None, **dial)  # type: ignore[arg-type]
    events = [event for word in words for event in whole.push(word)] + whole.finish()
    lost = Interrupted(server)
    for place, event in enumerate(events, 1):
        lost.take(event)
        if place % every:
            continue
        replay = lost.replay(whole)
        again = server.stream(segment=segment, history=None, replay=replay, **dial)  # type: ignore[arg-type]
        found = again.push(" ".join(words[lost.first :])) + again.finish()
        reads = [e.read for e in found[: replay.begun]]
        assert reads == list(range(1, replay.begun + 1)), "what was in view is read again"
        start = next(
            (n for n, e in enumerate(events) if e.sentence == replay.sentence and e.kind != "MOVE"),
            len(events),
        )
        assert tokens(found[replay.begun :]) == tokens(events[start:]), (place, replay)
    whole.close()
    return sum(event.kind == "MOVE" for event in events)


@pytest.mark.parametrize(
    ("system", "segment", "every"),
    [("wait-k", "none:8", 1), ("wait-info", "auto:8", 3), ("wait-info", "none:8", 4)],
)
def test_continues_word_for_word(system: str, segment: str, every: int) -> None:
    """Text without punctuation, and with some after that."""
    server = translator(system)
    words = [*plain(3, 14), "ba.", *plain(4, 3)]
    assert interrupt_everywhere(server, words, segment, every, k=2.0) >= 2


@pytest.mark.parametrize("system", ["mma", "gsimt", "moe-wait-k"])
def test_every_kind_of_attention_continues(system: str) -> None:
    server = translator(system)
    dial = {} if system in ("mma", "gsimt") else {"k": 2.0}
    assert interrupt_everywhere(server, plain(5, 14), "none:8", every=5, **dial) > 1


@pytest.mark.parametrize(
    ("system", "k"),
    [
        *(("local-agreement", 1), ("alignatt", 1), ("confidence", 0.01), ("punctuation", 2)),
        ("veto", 3),
    ],
)
def test_every_policy_continues(system: str, k: float) -> None:
    assert interrupt_everywhere(translator(system), plain(5, 14), "none:8", every=7, k=k) > 1


def test_a_head_continues() -> None:
    server = Translator(replace(toy_model("wait-info"), system=Judge()), streams=4, capacity=24)
    assert interrupt_everywhere(server, plain(5, 14), "none:8", every=7, k=1.0) > 1


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_policy_remembers_continues(recorded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if recorded:
        monkeypatch.setattr(
            "waitinfo.streaming.translator.new_engine",
            lambda *given: recorded_engine(*given[:6]),
        )
    server = Translator(replace(toy_model(), system=Inquirer()), streams=4, capacity=24)
    words = plain(8, 12)
    assert interrupt_everywhere(server, words, "none:8", every=4, k=1.0) > 1
    stream = server.stream(1.0, segment="none:8")
    stream.push(" ".join(words))
    assert stream._channel.memories[1] != (), "the test needs a window that keeps something"
    with pytest.raises(WaitinfoError, match="replay: the policy remembers 2 numbers, not"):
        server.stream(replay=Replay(memory=(1.0,)))


def test_recorded_rounds_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend for GPUs begins windows in the same way."""
    monkeypatch.setattr(
        "waitinfo.streaming.translator.new_engine",
        lambda *given: recorded_engine(*given[:6]),
    )
    server = translator("wait-info")
    assert interrupt_everywhere(server, plain(3, 15), "none:8", every=6, k=2.0) >= 2


def test_a_held_lag_continues_too() -> None:
    server = translator("wait-info")
    assert interrupt_everywhere(server, plain(6, 36), "none:12", every=9, lag=3.0) >= 3


# The lag of windows


class Account:
    """Every dial value from the events; all words of the stream are numbered once and for all."""

    def __init__(self, controller: LagController) -> None:
        self.goal, self.table = controller.goal, controller.calibration
        self.read = self.shown = 0  # words of the whole stream
        self.origin = (0, 0)  # where the present window begins, in words of both sides
        self.fresh: list[tuple[int, int]] = []  # words that are not measured: number and delay
        self.total = (100 * self.table.pace, 100.0)
        self.behind, self.aim = 0.0, self.goal
        self.turned = [self.table.dial(controller.target)]
        self.measured = False  # some words of the present sentence are
        self.inside = False  # a source word has begun

    def take(self, event: Event, ends: bool) -> None:
        if event.kind == "READ" and event.token != "</s>":
            self.read, self.inside = self.read + (not self.inside), event.word is None
        elif event.kind == "WRITE":
            for _ in (event.word or "").split():
                self.show()
            if ends:
                self.end((self.read, self.shown))
        elif event.kind == "MOVE" and event.kept is not None:
            begin = (self.read - event.kept[0], self.shown - event.kept[1])
            if event.written:
                self.correct(self.total[0] / self.total[1])
                self.settle(begin, event.kept[1] > 0)
            else:  # the model has ended a sentence
                self.end(begin)

    def show(self) -> None:
        self.fresh.append((self.shown, self.read))
        self.shown += 1
        if len(self.fresh) == SPAN:
            self.correct(self.total[0] / self.total[1])
            self.measured = True

    def end(self, where: tuple[int, int]) -> None:
        own = (where[0] - self.origin[0]) / max(1, self.shown - self.origin[1])
        self.correct(self.total[0] / self.total[1] if self.measured else own, where[0])
        self.settle(where, measured=False)

    def settle(self, where: tuple[int, int], measured: bool) -> None:
        source, target = (t + w - o for t, w, o in zip(self.total, where, self.origin, strict=True))
        self.total, self.origin, self.measured = (source, target), where, measured

    def correct(self, pace: float, end: int | None = None) -> None:
        if not self.fresh:
            return
        late = (n for n, (_, delay) in enumerate(self.fresh, 1) if end is not None and delay >= end)
        counted = self.fresh[: next(late, None)]
        lag = fmean(d - self.origin[0] - (n - self.origin[1]) * pace for n, d in counted)
        lags = self.table.measured
        low, high = ((lags[place] - self.goal) / GAIN for place in (0, -1))
        self.behind = min(max(self.behind + self.goal - lag, low), high)
        self.aim = min(max(self.goal + GAIN * self.behind, self.aim - STEP), self.aim + STEP)
        dial = float(np.interp(self.aim, lags, self.table.dials))
        if dial != self.turned[-1]:
            self.turned.append(dial)
        self.fresh = []


@settings(max_examples=6)
@given(st.integers(0, 1 << 30), st.sampled_from([2.0, 4.5]), st.sampled_from([12, 40]))
def test_the_lag_of_windows_by_brute_force(seed: int, lag: float, window: int) -> None:
    server = translator("wait-info", capacity=128)
    stream = server.stream(lag=lag, segment=f"none:{window}", history=None)
    events = stream.push(" ".join(plain(seed, 90))) + stream.finish()
    controller = stream._channel.controller
    assert controller is not None
    account = Account(controller)
    events = [event for event in events if event.kind != "CUT"]
    for event, after in itertools.zip_longest(events, events[1:]):
        last = after is None or event.sentence < after.sentence
        account.take(event, ends=last and (after is None or after.kind != "MOVE"))
    assert [turn.k for turn in stream.turns] == pytest.approx(account.turned)
    places = [(turn.sentence, turn.written) for turn in stream.turns]
    assert places == sorted(places)


# Replays that cannot be


@pytest.mark.parametrize(
    "changed",
    [
        {"begun": 40}, {"begun": -1}, {"kept": 4}, {"kept": -1}, {"begun": 1}, {"shown": 99},
        {"path": [(EOS, 1), (9, 2)]}, {"path": [(9, 0), (9, 2)]},
    ],
)  # fmt: skip
def test_impossible_windows_are_refused(changed: dict) -> None:
    server = translator()
    good = Replay([(9, 1), (8, 2)], 3, 0.0, begun=2, kept=2, shown=1, punctuated=False)
    with server.stream(2, segment="none:12", replay=good) as stream:
        stream.push("ba be bi bo")
    with pytest.raises(WaitinfoError, match="replay"):
        server.stream(2, segment="none:12", replay=replace(good, **changed))
    assert server.open_streams == 0


def test_a_text_that_is_shorter_than_what_was_read() -> None:
    server = translator()
    stream = server.stream(2, segment="none:12", replay=Replay([(9, 1)], 3, 0.0, 11, 1, 0, False))
    stream.push("ba")
    with pytest.raises(WaitinfoError, match="shorter than what was read"):
        stream.finish()
    assert server.open_streams == 0

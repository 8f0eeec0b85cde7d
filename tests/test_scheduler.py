"""Many streams on one engine: threads, cancellation, errors, limits and released slots."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch

from tests.streams import LONG, alone, record, some_text, toy_model
from waitinfo import Event, Stream, Translator, WaitinfoError
from waitinfo.streaming.channel import PART
from waitinfo.streaming.event import Observer, RoundStats
from waitinfo.streaming.session import AHEAD, Session
from waitinfo.systems.base import PolicyState, System


class Recorder(Observer):
    def __init__(self) -> None:
        self.rounds: list[RoundStats] = []
        self.refusals: list[str] = []
        self.failures: list[Exception] = []

    def round(self, stats: RoundStats) -> None:
        self.rounds.append(stats)

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def failed(self, error: Exception) -> None:
        self.failures.append(error)


@pytest.fixture
def observer() -> Recorder:
    return Recorder()


@pytest.fixture
def translator(observer: Recorder) -> Translator:
    return Translator(toy_model(), streams=8, capacity=48, observer=observer)


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Switch between threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@lru_cache
def in_threads(*tasks: Callable[[], object]) -> list[object]:
    """Run tasks at the same time; return their results or exceptions."""
    found: list[object] = [None] * len(tasks)
    barrier = threading.Barrier(len(tasks))

    def run(number: int, task: Callable[[], object]) -> None:
        barrier.wait()
        try:
            found[number] = task()
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(tasks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive(), "a thread waits forever"
    return found


# Waiting


def test_a_push_does_not_wait_for_the_backlog_of_others(
    translator: Translator, observer: Recorder
) -> None:
    slow, quick = translator.stream(2), translator.stream(2)
    slow.push(LONG, wait=False)
    events = quick.push("ba be")
    assert events and slow._channel.busy
    assert len(observer.rounds) <= 1 + sum(event.kind == "WRITE" for event in events)
    assert record([*events, *quick.finish()]) == alone("ba be")
    slow.finish(wait=False)
    assert record(list(slow)) == alone(LONG)


def test_an_answer_takes_no_extra_round(translator: Translator, observer: Recorder) -> None:
    stream = translator.stream(3)
    for text in ("ba", "be", "bi bo bu", "da."):
        observer.rounds.clear()
        written = sum(event.kind == "WRITE" for event in stream.push(text))
        assert len(observer.rounds) == max(1, written)


def test_a_long_text_is_split_over_rounds(observer: Recorder) -> None:
    translator = Translator(toy_model(), streams=4, capacity=600, observer=observer)
    backend = translator._scheduler.engine.backend
    backend.rules = backend.rules._replace(round_tokens=16)
    stream = translator.stream(300, segment="whole", history=None)
    stream.push(LONG)
    assert max(stats.read for stats in observer.rounds) <= 16
    assert sum(stats.read for stats in observer.rounds) == stream.trace[-1].read > 300
    whole = Translator(toy_model(), streams=1, capacity=600).stream(300, segment="whole")
    whole.push(LONG)
    assert record([*stream.trace, *stream.finish()]) == record([*whole.trace, *whole.finish()])


@pytest.mark.parametrize("text", ["ba be " * 200, "日本" * 40, "ba日 " * 60])
def test_a_long_text_is_tokenized_as_it_is_needed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one message could hold up a round, and its tokens fill the memory."""
    added: list[tuple[int, int]] = []
    add = Session.add

    def noted(session: Session, part: str, at: float | None = None) -> None:
        add(session, part, at)
        added.append((len(part), len(session._reader.queue)))

    monkeypatch.setattr(Session, "add", noted)
    translator = Translator(toy_model(), streams=2)
    stream, pieces = (translator.stream(2, raw=True, history=None) for _ in range(2))
    stream.push(text), stream.finish()
    assert max(size for size, _ in added) <= PART
    assert max(waiting for _, waiting in added) < AHEAD + 4 * PART
    for at in range(0, len(text), 7):
        pieces.push(text[at : at + 7])
    pieces.finish()
    assert record(stream.trace) == record(pieces.trace)


def test_idle_streams_cost_nothing(observer: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round visits only the active streams, even if many are open."""
    loaded = toy_model()
    translator = Translator(loaded, streams=64, capacity=16, observer=observer)
    streams = [translator.stream(2) for _ in range(64)]
    translator.push_many(dict.fromkeys(streams, "ba be"))
    asked: list[int] = []
    ready = type(loaded.system).ready

    def counting(system: System, state: PolicyState) -> object:
        asked.append(np.size(state.k))  # of one stream, it may be a number
        return ready(system, state)

    monkeypatch.setattr(type(loaded.system), "ready", counting)
    observer.rounds.clear()
    streams[7].push("bi")
    assert set(asked) == {1}
    assert {stats.streams for stats in observer.rounds} == {1}
    asked.clear()
    streams[7].push("")
    assert not asked


def test_the_dial_releases_words_without_more_text(translator: Translator) -> None:
    stream = translator.stream(20)
    assert not any(event.kind == "WRITE" for event in stream.push("ba be bi bo"))
    stream.k = 1
    assert any(event.kind == "WRITE" for event in stream.push(""))


# Events


def test_iterating_gives_every_event_once(translator: Translator) -> None:
    text = some_text(random.Random(1), 60)
    stream = translator.stream(2, history=None)
    heard: list[Event] = []

    def speak() -> None:
        for word in text.split():
            stream.push(word, wait=False)
        stream.finish(wait=False)

    found = in_threads(speak, lambda: heard.extend(stream))
    assert found == [None, None]
    assert record(heard) == alone(text)
    assert stream.trace == heard and stream.finished
    assert translator.open_streams == 0


def test_a_slow_reader_delays_only_itself(translator: Translator) -> None:
    translator._scheduler.queue = 10
    slow, other = translator.stream(2), translator.stream(2)
    slow.push(LONG, wait=False)
    for _ in range(30):
        other.push("ba")
    assert 10 <= len(slow._channel.events) <= 10 + 48, "a round more than the queue holds"
    slow.finish(wait=False)
    assert record(list(slow)) == alone(LONG)


def test_history_is_bounded(translator: Translator) -> None:
    stream = translator.stream(2, history=50)
    events = [event for _ in range(60) for event in stream.push("ba be bi.")]
    assert stream.trace == events[-50:]
    words = " ".join(e.word for e in events if e.kind == "WRITE" and e.word).split()
    assert stream.text.split() == words[-50:] and len(words) > 50
    everything = translator.stream(2, history=None)
    for _ in range(60):
        everything.push("ba be bi.")
    assert record(everything.trace) == record(events)
    with pytest.raises(WaitinfoError, match="history = -1"):
        translator.stream(history=-1)


# Slots


def test_abandoned_streams_release_their_slots(translator: Translator) -> None:
    for _ in range(30):
        translator.stream().push("ba be")
    assert translator.open_streams == 0
    kept = [translator.stream() for _ in range(8)]
    assert translator.open_streams == 8
    kept[3].close()
    translator.stream()
    del kept
    gc.collect()
    assert translator.open_streams == 0 and len(translator._scheduler.engine.free) == 8


def test_streams_are_context_managers(translator: Translator) -> None:
    with translator.stream() as stream:
        stream.push("ba")
        assert translator.open_streams == 1
    assert translator.open_streams == 0
    with pytest.raises(WaitinfoError, match="has been finished"):
        stream.push("be")


def test_whole_texts(translator: Translator) -> None:
    texts = [some_text(random.Random(seed), 7) for seed in range(20)]
    alone = [translator.translate(text, k=2) for text in texts]
    assert translator.translate(texts, k=2) == alone
    assert translator.translate([]) == [] and translator.translate([""]) == [""]
    for wrong in ([None], ["ba", 3], 5, None):
        with pytest.raises((WaitinfoError, TypeError)):
            translator.translate(wrong)  # type: ignore[call-overload]
    assert translator.open_streams == 0, "none is lost"
    others = [translator.stream() for _ in range(7)]
    assert translator.translate(texts, k=2) == alone, "with one stream free"
    others.append(translator.stream())
    with pytest.raises(WaitinfoError, match="all 8 streams are in use"):
        translator.translate(texts)


def test_refusals_are_observed(translator: Translator, observer: Recorder) -> None:
    streams = [translator.stream() for _ in range(8)]
    with pytest.raises(WaitinfoError, match=r"all 8 streams are in use.*each takes \d+ MiB"):
        translator.stream()
    assert observer.refusals == ["full"]
    assert len(streams) == translator.open_streams


# Threads


@pytest.mark.usefixtures("quick_switches")
def test_a_slot_has_only_one_thread() -> None:
    translator = Translator(toy_model(), streams=1, capacity=16)
    for _ in range(15):
        found = in_threads(*[translator.stream] * 4)
        assert sum(isinstance(item, Stream) for item in found) == 1
        assert sum(isinstance(item, WaitinfoError) for item in found) == 3
        del found
        gc.collect()


@pytest.mark.usefixtures("quick_switches")
def test_threads_do_not_affect_each_other(translator: Translator) -> None:
    texts = [some_text(random.Random(seed), 12) for seed in range(8)]

    def speak(text: str) -> list[tuple]:
        with translator.stream(2) as stream:
            events = [event for word in text.split() for event in stream.push(word)]
            return record(events + stream.finish())

    found = in_threads(*(lambda text=text: speak(text) for text in texts))
    assert found == [alone(text) for text in texts]


@pytest.mark.usefixtures("quick_switches")
def test_closing_does_not_affect_other_streams(translator: Translator) -> None:
    text = some_text(random.Random(5), 30)

    def come_and_go() -> None:
        for number in range(40):
            stream = translator.stream(2)
            stream.push("ba be bi")
            if number % 2:
                stream.close()
            else:
                del stream

    def speak() -> list[tuple]:
        with translator.stream(2) as stream:
            events = [event for word in text.split() for event in stream.push(word)]
            return record(events + stream.finish())

    found = in_threads(come_and_go, speak, come_and_go, speak)
    assert found == [None, alone(text), None, alone(text)]
    assert translator.open_streams == 0


def test_closing_wakes_waiting_threads(translator: Translator) -> None:
    stream = translator.stream(2)
    heard: list[Event] = []

    def close() -> None:
        stream.push("ba", wait=False)
        while not heard:
            pass
        stream.close()

    assert in_threads(lambda: heard.extend(_each(stream, heard)), close) == [None, None]


def _each(stream: Stream, heard: list[Event]) -> Iterator[Event]:
    for event in stream:
        heard.append(event)
        yield event


def test_a_second_push_is_rejected_before_its_text_is_taken(translator: Translator) -> None:
    stream = translator.stream(2)
    stream._scheduler.submit({stream._channel: "ba"}, served_by=object())
    for call in (lambda: stream.push("be"), lambda: stream.push("be", wait=False)):
        with pytest.raises(WaitinfoError, match="another push of this stream is under way"):
            call()
    stream._scheduler.release([stream._channel])
    assert record([*stream.push("bi"), *stream.finish()]) == alone("ba bi")


# Errors


def test_an_error_affects_only_its_own_stream(
    translator: Translator, observer: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Session.add

    def picky(session: Session, text: str, at: float | None) -> None:
        if "bu" in text:
            raise ValueError("no such text, please")
        add(session, text, at)

    monkeypatch.setattr(Session, "add", picky)
    good, bad = translator.stream(2), translator.stream(2)
    with pytest.raises(WaitinfoError, match="no such text, please"):
        translator.push_many({good: "ba be", bad: "bu"})
    assert [str(error) for error in observer.failures] == ["no such text, please"]
    assert translator.open_streams == 1, "the failed one has given its slot back"
    for call in (lambda: bad.push("ba"), bad.finish):
        with pytest.raises(WaitinfoError, match="this stream has failed"):
            call()
    assert record([*good.push("bi"), *good.finish()]) == alone("ba be bi"), "no event was lost"


def test_a_failed_computation_affects_only_its_own_stream(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [translator.stream(2) for _ in range(4)]
    translator.push_many(dict.fromkeys(streams, "ba"))
    backend: Any = translator._scheduler.engine.backend
    victim, compute = streams[2]._channel.slot, backend._compute

    def fragile(rows: Any, *given: object) -> object:
        if victim in rows.tolist():
            raise RuntimeError("a kernel failed")
        return compute(rows, *given)

    monkeypatch.setattr(backend, "_compute", fragile)
    with pytest.raises(WaitinfoError, match="a kernel failed"):
        translator.push_many(dict.fromkeys(streams, "be bi bo"))
    for number in (0, 1, 3):
        streams[number].finish()
        assert record(streams[number].trace) == alone("ba be bi bo")
    assert streams[2].finished and translator.open_streams == 0


@pytest.mark.parametrize("where", ["source", "target"])
def test_a_slot_recovers_from_values_that_are_not_finite(
    translator: Translator, where: str
) -> None:
    text = "ba be bi bo bu da de"
    sick, healthy = translator.stream(2), translator.stream(2)
    translator.push_many({sick: "ba be bi", healthy: "ba be bi"})
    slot = sick._channel.slot
    backend: Any = translator._scheduler.engine.backend
    for cache in backend.source_caches if where == "source" else backend.target_caches:
        cache.values[slot] = torch.nan
    with pytest.raises(WaitinfoError, match="not finite"):
        translator.push_many({sick: "bo bu da de", healthy: "bo bu da de"})
    healthy.finish()
    assert record(healthy.trace) == alone(text)
    again = [translator.stream(2) for _ in range(8)]
    translator.push_many(dict.fromkeys(again, text))
    translator.finish_many(again)
    assert {str(record(stream.trace)) for stream in again} == {str(alone(text))}


def test_an_interrupted_round_loses_nothing(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the thread that runs the round, at the worst points."""
    scheduler = translator._scheduler
    for owner, name in (
        (scheduler, "_take_in"),
        (scheduler._rounds, "run"),
        (scheduler, "_publish"),
    ):
        stream = translator.stream(2, history=None)
        stream.push("ba be")
        original = getattr(owner, name)

        def interrupted(*arguments: object, owner=owner, original=original, name=name) -> None:
            monkeypatch.setattr(owner, name, original)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.push("bi bo")
        stream.push("bu")
        stream.finish()
        assert record(stream.trace) == alone("ba be bi bo bu"), name


def test_a_failing_observer_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Observer):
        def round(self, stats: RoundStats) -> None:
            raise RuntimeError("a metric is full")

    translator = Translator(toy_model(), streams=1, capacity=48, observer=Broken())
    stream = translator.stream(2)
    assert record([*stream.push("ba be"), *stream.finish()]) == alone("ba be")
    assert "an observer failed" in caplog.text


def test_stress() -> None:
    """A short version of `python -m tests.stress`, limited by streams instead of seconds."""
    from tests import stress

    kinds = ("finish", "iterate", "close", "abandon", "fail", "cancelled")
    counts = stress.run(lambda seen: seen["checked"] < 60 or not all(seen[kind] for kind in kinds))
    assert counts["checked"] >= 60

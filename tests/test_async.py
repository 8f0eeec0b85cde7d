"""Streams on event loops: many at a time, cancelled, abandoned, with separate errors."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading

import pytest

from tests.streams import LONG, alone, record, toy_model, wait_for
from waitinfo import AsyncTranslator, Event, Translator, WaitinfoError
from waitinfo.streaming import asynchronous
from waitinfo.streaming.asynchronous import AsyncStream
from waitinfo.streaming.session import Session

TEXTS = ["ba be bi. bo bu", "du do di de da", "ba", "", "be be be be be be be."]


@pytest.fixture
def translator() -> Translator:
    return Translator(toy_model(), streams=6, capacity=48)


class Gate:
    """Holds up the rounds of a translator."""

    def __init__(self) -> None:
        self.computing, self.go_on = threading.Event(), threading.Event()


@pytest.fixture
def gate(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> Gate:
    engine, found = translator._scheduler.engine, Gate()
    advance = engine.advance

    def slow(*arguments: object) -> object:
        assert threading.current_thread() is not threading.main_thread()
        found.computing.set()
        assert found.go_on.wait(600)
        return advance(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "advance", slow)
    return found


async def speak(server: AsyncTranslator, text: str) -> list[tuple]:
    async with server.stream(k=2) as stream:
        events = [event for word in text.split() for event in await stream.push(word)]
        events += await stream.finish()
        assert events == stream.trace
        return record(events)


def test_many_streams_run_together(translator: Translator) -> None:
    async def everyone() -> list[list[tuple]]:
        async with AsyncTranslator(translator) as server:
            return await asyncio.gather(*(speak(server, text) for text in TEXTS))

    assert asyncio.run(everyone()) == [alone(text) for text in TEXTS]
    assert translator.open_streams == 0


def test_threads_and_event_loops_share_a_translator(translator: Translator) -> None:
    found: list[list[tuple]] = []

    def in_a_thread() -> None:
        with translator.stream(2) as stream:
            events = [event for word in LONG.split()[:40] for event in stream.push(word)]
            found.append(record(events + stream.finish()))

    async def everyone() -> list[list[tuple]]:
        server = AsyncTranslator(translator)
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        heard = await asyncio.gather(*(speak(server, text) for text in TEXTS))
        await asyncio.to_thread(thread.join)
        return heard

    assert asyncio.run(everyone()) == [alone(text) for text in TEXTS]
    assert found == [alone(" ".join(LONG.split()[:40]))]


def test_iterating_while_another_task_pushes(translator: Translator) -> None:
    async def both() -> list[Event]:
        stream = AsyncTranslator(translator).stream(2)
        heard: list[Event] = []

        async def listen() -> None:
            async for event in stream:
                heard.append(event)

        listener = asyncio.create_task(listen())
        for word in TEXTS[1].split():
            await stream.push(word, wait=False)
            await asyncio.sleep(0)
        await stream.finish(wait=False)
        await listener
        return heard

    assert record(asyncio.run(both())) == alone(TEXTS[1])


def test_a_change_while_events_are_used_is_not_missed(translator: Translator) -> None:
    """Text that causes no event is worked off while the listener is busy; it still hears of it."""

    async def both() -> None:
        stream = AsyncTranslator(translator).stream(2, raw=True)
        await stream.push("a ", wait=False)
        batches = stream.batches()
        async for events, idle in batches:
            if events and idle:
                break
        await stream.push("b", wait=False)  # no word is complete
        while stream._channel.busy:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)  # the change has been told
        batch = await asyncio.wait_for(anext(batches), 60)
        assert batch == ([], True)
        stream.close()

    asyncio.run(both())


def test_a_cancelled_finish_releases_its_slot(translator: Translator) -> None:
    async def run() -> None:
        server = AsyncTranslator(translator)
        streams = [server.stream(2) for _ in range(6)]
        for stream in streams:
            await stream.push(LONG, wait=False)
            finishing = asyncio.create_task(stream.finish())
            await asyncio.sleep(0)  # it has started and has a lot of work left
            finishing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await finishing
        assert translator.open_streams == 0
        assert await speak(server, TEXTS[0]) == alone(TEXTS[0])

    asyncio.run(run())


def test_a_cancelled_push_loses_no_event(translator: Translator, gate: Gate) -> None:
    async def run() -> list[Event]:
        stream = AsyncTranslator(translator).stream(2, history=None)
        task = asyncio.create_task(stream.push(LONG))
        await asyncio.to_thread(gate.computing.wait, 600)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.go_on.set()
        return [*await stream.push("ba"), *await stream.finish()]

    assert record(asyncio.run(run())) == alone(LONG + " ba")


@pytest.mark.parametrize("late", [True, False])
def test_a_full_queue_is_worked_off_once_it_is_read(translator: Translator, late: bool) -> None:
    """By one who comes late, or by a push that waits: no other stream asks for a round."""
    translator._scheduler.queue = 10

    async def run() -> list[Event]:
        stream = AsyncTranslator(translator).stream(2, history=None)
        if not late:
            return [*await stream.push(LONG), *await stream.finish()]
        await stream.push(LONG, wait=False)
        await stream.finish(wait=False)
        while len(stream._channel.events) < 10 or translator._scheduler._leading:
            await asyncio.sleep(0.001)
        return [event async for event in stream]

    assert record(asyncio.run(run())) == alone(LONG)


@pytest.mark.parametrize("busy", [False, True])
def test_a_thread_that_is_stopped_passes_its_work_on(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """It was woken for text of a stream that another thread reads, and stopped before it began.

    Woken from sleep, or while it was ending the rounds before (`busy`).
    """
    held, go_on = threading.Event(), threading.Event()
    scheduler = translator._scheduler
    lead = scheduler.lead

    def hold() -> None:
        held.set()
        assert go_on.wait(600)

    class Late(asynchronous.SimpleQueue):  # type: ignore[misc]
        def get(self) -> None:  # type: ignore[override]
            super().get()
            hold()

    def slow(*arguments: object) -> None:
        lead(*arguments)  # type: ignore[arg-type]
        hold()

    if busy:
        monkeypatch.setattr(scheduler, "lead", slow)
    else:
        monkeypatch.setattr(asynchronous, "SimpleQueue", Late)
    server = AsyncTranslator(translator)
    server._worker.start()
    if busy:
        scheduler.bells[-1]()
        assert held.wait(600)
    stream = translator.stream(2)
    heard: list[Event] = []
    reader = threading.Thread(target=lambda: heard.extend(stream), daemon=True)
    reader.start()
    wait_for(lambda: bool(scheduler._waiters))
    stream.push("ba be bi", wait=False)
    stream.finish(wait=False)
    assert held.wait(600)
    server.close()
    go_on.set()
    reader.join(600)
    assert not reader.is_alive() and record(heard) == alone("ba be bi")


def test_a_rejected_push_takes_no_text(translator: Translator) -> None:
    async def run() -> list[Event]:
        stream = AsyncTranslator(translator).stream(2, history=None)
        first = asyncio.create_task(stream.push("ba be"))
        await asyncio.sleep(0)
        with pytest.raises(WaitinfoError, match="another push of this stream is under way"):
            await stream.push("bi")
        events = await first
        return [*events, *await stream.push("bi"), *await stream.finish()]

    assert record(asyncio.run(run())) == alone("ba be bi")


def test_an_error_reaches_only_its_own_client(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Session.add

    def picky(session: Session, text: str, at: float | None) -> None:
        if text == "do":
            raise ValueError("no such text, please")
        add(session, text, at)

    monkeypatch.setattr(Session, "add", picky)

    async def everyone() -> list[object]:
        server = AsyncTranslator(translator)
        return await asyncio.gather(
            *(speak(server, text) for text in TEXTS), return_exceptions=True
        )

    found = asyncio.run(everyone())
    assert isinstance(found.pop(1), WaitinfoError)
    assert found == [alone(text) for text in (TEXTS[0], *TEXTS[2:])]
    assert translator.open_streams == 0


def test_the_event_loop_is_never_blocked(translator: Translator, gate: Gate) -> None:
    """During a round, the event loop opens and closes streams, pushes text and changes dials."""

    async def run() -> list[tuple]:
        server = AsyncTranslator(translator)
        stream = server.stream(2)
        pushed = asyncio.create_task(stream.push("ba be"))
        await asyncio.to_thread(gate.computing.wait, 600)
        other: AsyncStream | None = server.stream(2)
        await other.push("bi", wait=False)
        other.k = 3
        other.close()
        assert not pushed.done() and translator.open_streams == 1
        other = None
        gate.go_on.set()
        return record([*await pushed, *await stream.finish()])

    assert asyncio.run(run()) == alone("ba be")


def test_abandoned_streams_and_servers_are_cleaned_up(translator: Translator) -> None:
    async def run() -> None:
        server = AsyncTranslator(translator)
        for _ in range(20):
            await server.stream(2).push("ba be")
        assert translator.open_streams == 0

    for _ in range(3):
        asyncio.run(run())
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "waitinfo":
            thread.join(600)
            assert not thread.is_alive()
    assert not translator._scheduler.bells and not translator._scheduler._waiters


def test_a_broken_scheduler_wakes_all_waiters(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("a fault of our own")

    async def run() -> None:
        stream = AsyncTranslator(translator).stream(2)
        await stream.push("ba")
        monkeypatch.setattr(translator._scheduler._rounds, "run", broken)
        with pytest.raises(WaitinfoError, match="a fault of our own"):
            await asyncio.wait_for(stream.push("be"), 600)

    asyncio.run(run())


EXIT = """
import asyncio
from tests.streams import toy_model
from waitinfo import AsyncTranslator, Translator

kept = []

async def run():
    translator = Translator(toy_model(), streams=8, capacity=48)
    server = AsyncTranslator(translator)
    streams = [server.stream(2) for _ in range(8)]
    for stream in streams:
        await stream.push("ba be bi. " * {sentences}, wait=False)
    await streams[0].push("ba", wait=False)
    kept.append((server, streams) if {keep} else None)

asyncio.run(run())
"""


@pytest.mark.parametrize("keep", [True, False])
def test_a_process_may_end_while_the_thread_is_at_work(keep: bool) -> None:
    """Busy with far more than it can do, or freeing the tensors of a forgotten translator."""
    script = EXIT.format(sentences=2000 if keep else 1, keep=keep)
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (0, "")

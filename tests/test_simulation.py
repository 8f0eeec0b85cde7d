"""The simulation: what holds for thousands of seeds, and the defects that it would find."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("greenlet", reason="needs greenlet")
pytest.importorskip("fastapi", reason="needs the extra serve")

from tests.simulation.scene import Scene
from waitinfo.client.pending import PendingAudio
from waitinfo.client.streams import AsyncRemoteStream
from waitinfo.serving import connection, hearing, rest, watching
from waitinfo.serving.guards import Keys
from waitinfo.serving.hearing import Ear
from waitinfo.serving.hub import Hub
from waitinfo.serving.protocol import AudioPlace
from waitinfo.serving.room import Room
from waitinfo.serving.rooms import Claim, Rooms
from waitinfo.serving.wire import Gathering
from waitinfo.streaming.asynchronous import AsyncStream, NewEvents
from waitinfo.streaming.scheduler import Rounds, Scheduler

PARTS, SEEDS = 8, 250  # 2,000 seeds
MOST = 400  # seeds until a defect has been found


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost(part: int) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        try:
            Scene(seed).run()
        except BaseException as error:
            error.add_note(f"python -m tests.simulation --seed {seed}")
            raise


def digest(seed: int) -> str:
    scene = Scene(seed)
    scene.run()
    return f"{scene.world.steps} {scene.world.digest}"


def test_a_seed_decides_everything() -> None:
    """The same bytes at the same times, also in another process."""
    command = "from tests.test_simulation import digest; print(*map(digest, range(4)), sep='\\n')"
    root = Path(__file__).resolve().parents[1]
    other = subprocess.run(
        [sys.executable, "-c", command], cwd=root, capture_output=True, text=True, check=True
    )
    assert other.stdout.split("\n")[:4] == list(map(digest, range(4)))


# Defects, put back


Patch = pytest.MonkeyPatch


def taken_over(patch: Patch) -> None:
    """A stream that is resumed takes any room."""
    speak = Rooms.speak

    async def careless(rooms: Rooms, claim: Claim) -> Any:
        if claim.again and (held := rooms._rooms.get(claim.name)):
            held.secret = None
        return await speak(rooms, claim)

    patch.setattr(Rooms, "speak", careless)


def pings_answered_in_memory(patch: Patch) -> None:
    patch.setattr(Gathering, "full", lambda *_: None)


def watchers_sent_away(patch: Patch) -> None:
    """A server that stops closes all watchers at once."""
    close = Rooms.close
    patch.setattr(Rooms, "close", lambda rooms, speakers=False: close(rooms, True))


def abandoned_requests_go_on(patch: Patch) -> None:
    async def whether_wanted_or_not(_: Any, work: Any) -> Any:
        return await work

    patch.setattr(rest, "while_wanted", whether_wanted_or_not)


def silence_keeps_others_out(patch: Patch) -> None:
    """No share for an address, and a stream that has said nothing never makes room."""
    patch.setattr(Keys, "share", lambda keys, *_: setattr(keys, "_share", 0))
    patch.setattr(Hub, "_silent", lambda *_: [])


def forged_resumes_are_errors_of_the_server(patch: Patch) -> None:
    patch.setitem(connection.CODES, "refused", 1011)


def vanished_watchers_stay(patch: Patch) -> None:
    patch.setattr(watching, "PING_SECONDS", 1e9)


def repeated_words_are_shown_again(patch: Patch) -> None:
    patch.setattr(Room, "new", lambda _, words: words)


def a_stopping_server_begins_streams(patch: Patch) -> None:
    drain = Hub.drain

    async def and_takes_new_ones(hub: Hub) -> None:
        stopping = asyncio.ensure_future(drain(hub))
        await asyncio.sleep(0)
        hub.draining = False
        await stopping

    patch.setattr(Hub, "drain", and_takes_new_ones)


def a_change_is_missed(patch: Patch) -> None:
    """A task waits for a change that came while it used the events before."""

    async def batches(stream: AsyncStream) -> Any:
        channel, scheduler, notifier = stream._channel, stream._scheduler, stream._notifier()
        channel.listener = notifier
        while not channel.over:
            await notifier.change_of(channel)
            yield NewEvents(scheduler.collect(channel), not channel.busy)

    patch.setattr(AsyncStream, "batches", batches)


def slots_are_kept(patch: Patch) -> None:
    def give_back(rounds: Rounds, channel: Any) -> None:
        if channel.slot is not None:
            del rounds.by_slot[channel.slot]
            channel.slot = None

    patch.setattr(Rounds, "give_back", give_back)


def nobody_leads(patch: Patch) -> None:
    """What arrives while a leader ends waits for the next one."""
    patch.setattr(Scheduler, "_has_work", lambda scheduler: bool(scheduler._inbox))


def text_is_forgotten(patch: Patch) -> None:
    """A client that connects again does not repeat what was not worked off."""
    patch.setattr(AsyncRemoteStream, "_queue_again", lambda stream, _: None)


def audio_is_forgotten(patch: Patch) -> None:
    """A client that connects again begins with what it says then."""
    patch.setattr(PendingAudio, "rest", b"")


def recognised_words_are_told_again(patch: Patch) -> None:
    """A voice that goes on is not told which words have been reported."""
    patch.setattr(hearing, "AudioPlace", lambda sample, words: AudioPlace(sample=sample))


def voices_are_kept(patch: Patch) -> None:
    """One that was cut off keeps its place in the recogniser."""
    patch.setattr(Ear, "close", lambda *_: None)


@pytest.mark.parametrize(
    "defect",
    [
        taken_over, silence_keeps_others_out, pings_answered_in_memory, watchers_sent_away,
        abandoned_requests_go_on,
        forged_resumes_are_errors_of_the_server, vanished_watchers_stay,
        repeated_words_are_shown_again, a_stopping_server_begins_streams, a_change_is_missed,
        slots_are_kept, nobody_leads, text_is_forgotten,
        audio_is_forgotten, recognised_words_are_told_again, voices_are_kept,
    ],
)  # fmt: skip
def test_defects_are_found(defect: Callable[[Patch], None], monkeypatch: Patch) -> None:
    defect(monkeypatch)
    for seed in range(MOST):
        try:
            Scene(seed).run()
        except Exception:
            return
    raise AssertionError(f"{MOST} seeds did not find it")

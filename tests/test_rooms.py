"""Rooms: who may speak, who may watch, and what watchers see."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection

from tests.serving import (
    Running,
    receive,
    running,
    send,
    start,
    toy_hub,
    until,
    wait_for,
    words_of,
)  # fmt: skip
from tests.streams import some_text
from waitinfo import Client, WaitinfoError
from waitinfo.serving import rooms
from waitinfo.serving.guards import KeyLimits, Keys, Refusal
from waitinfo.serving.rooms import Caption, Occupied, Room, Rooms, Tickets, Watcher

SECRET, OTHER = "s" * 16, "o" * 16
KEYS = ("the-speaker's-key", "the-attacker's-key")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub(streams=6)) as found:
        yield found


def say(socket: ClientConnection, text: str, number: int = 1) -> list[str]:
    """The words that a text gives when its sentence ends with it."""
    send(socket, "text", text=text)
    send(socket, "flush", id=number)
    return words_of(until(socket, "idle"))


def hear(socket: ClientConnection, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        found += words_of([receive(socket)])
    return found


def test_everybody_in_the_room_sees_the_words(server: Running) -> None:
    with server.connect("/v1/watch?room=stage") as early:
        assert receive(early)["words"] == []
        with server.connect() as speaker:
            assert start(speaker, k=2, room="stage", secret=SECRET)["secret"] == SECRET
            said = say(speaker, "ba be bi. bo bu. ")
            assert hear(early, len(said)) == said
            with server.connect("/v1/watch?room=stage") as late:
                assert words_of([receive(late)]) == said
            send(speaker, "end")
            until(speaker, "ended")
    wait_for(lambda: len(server.hub.rooms) == 0)


@pytest.mark.parametrize("fields", [{}, {"secret": OTHER}, {"resume": {"position": 0}},
                                    {"resume": {"position": 0}, "secret": OTHER}])  # fmt: skip
def test_nobody_takes_a_room_over(server: Running, fields: dict[str, Any]) -> None:
    """Neither while its speaker speaks, nor after the connection was cut."""
    room = f"held-{len(fields)}-{fields.get('secret')}"
    with server.connect(f"/v1/watch?room={room}") as watcher, server.connect() as attacker:
        receive(watcher)
        with server.connect() as speaker:
            secret = start(speaker, k=2, room=room)["secret"]
            send(attacker, "start", room=room, k=2, **fields)
            assert receive(attacker)["code"] == "room"
            said = say(speaker, "ba be. ")
            speaker.socket.close()
        wait_for(lambda: server.hub.models.find().free == 6)
        send(attacker, "start", room=room, k=2, **fields)
        assert receive(attacker)["code"] == "room"
        with server.connect() as speaker:
            assert start(speaker, k=2, room=room, secret=secret)["type"] == "started"
            said += say(speaker, "bi bo. ", 2)
            send(speaker, "end")
            until(speaker, "ended")
        assert hear(watcher, len(said)) == said
        assert start(attacker, room=room, k=2, **fields)["type"] == "started", "it is free again"


def test_another_key_gives_no_right_to_a_room() -> None:
    with running(toy_hub(keys=Keys(KeyLimits(key) for key in KEYS))) as server:
        speakers, attackers = ({"Authorization": f"Bearer {key}"} for key in KEYS)
        with (
            server.connect(additional_headers=speakers) as speaker,
            server.connect(additional_headers=attackers) as attacker,
        ):
            assert start(speaker, room="stage")["type"] == "started"
            send(attacker, "start", room="stage", resume={"position": 0})
            assert receive(attacker)["code"] == "room"


def test_the_last_connection_of_a_speaker_speaks(server: Running) -> None:
    """One that the server believes to be there still, is closed; what it says is not shown."""
    with server.connect("/v1/watch?room=twice") as watcher, server.connect() as first:
        receive(watcher)
        start(first, k=2, room="twice", secret=SECRET)
        said = say(first, "ba be. ")
        with server.connect() as second:
            assert start(second, k=2, room="twice", secret=SECRET)["type"] == "started"
            assert until(first, "ended")[-1]["reason"] == "replaced"
            said += say(second, "bi bo. ")
            assert hear(watcher, len(said)) == said
            send(second, "end")
            until(second, "ended")


def test_words_that_are_repeated_after_a_break_are_shown_once(server: Running) -> None:
    """The speaker's client has not seen its last words, and so they are reported to it again."""
    with server.connect("/v1/watch?room=break") as watcher:
        receive(watcher)
        text = some_text(random.Random(4), 30)
        with server.connect() as speaker:
            start(speaker, k=2, room="break", secret=SECRET)
            first = []
            for number, word in enumerate(text.split()[:20]):
                send(speaker, "text", text=f"{word} ", id=number)
                first += [m for m in until(speaker, "idle") if m["type"] == "words"]
        resume = first[0]["replay"]
        with server.connect() as speaker:
            start(speaker, k=2, room="break", secret=SECRET, resume=resume)
            send(speaker, "text", text=text[resume["position"] :])
            send(speaker, "end")
            second = until(speaker, "ended")
        said = words_of(first[:1]) + words_of(second)
        assert hear(watcher, len(said)) == said and len(said) > len(words_of(first))


def test_clients_come_back_to_their_room(server: Running) -> None:
    with Client(server.url) as client:
        stream = client.stream(k=2, room="ours")
        stream.push("ba be.")
        with pytest.raises(WaitinfoError, match="belongs to another speaker"):
            client.stream(k=2, room="ours").push("bi")
        again = client.stream(k=2, room="ours", secret=stream.secret)
        again.push("bo.")
        with pytest.raises(WaitinfoError, match="same secret"):
            stream.push("bu.")
        again.finish()


def test_a_room_is_kept_for_a_time(server: Running) -> None:
    class Talking:
        def stop(self, reason: str) -> None:
            raise AssertionError("is asked to stop")

    async def run() -> None:
        found = Rooms(0)
        found.speak("a", SECRET, "me", Talking()).leave(kept=0.01)
        with pytest.raises(Occupied):
            found.speak("a", OTHER, "you", Talking())
        while len(found):
            await asyncio.sleep(0.001)
        found.speak("a", OTHER, "you", Talking()).leave(kept=600)
        for number in range(100):  # they do not fill the server
            found.speak(f"b{number}", SECRET, "me", Talking()).leave(kept=600)
        assert len(found) == 1 + rooms.KEPT
        for number in range(rooms.ROOMS - len(found)):
            found.speak(f"c{number}", SECRET, "me", Talking())
        with pytest.raises(Refusal, match="too many rooms"):
            found.speak("d", SECRET, "me", Talking())

    asyncio.run(run())


# Tickets


def test_a_ticket_gives_leave_to_watch_one_room_and_nothing_else() -> None:
    hub = toy_hub(keys=Keys([KeyLimits(KEYS[0])]))
    with running(hub) as server:
        key = {"Authorization": f"Bearer {KEYS[0]}"}
        with server.connect(additional_headers=key) as speaker:
            ticket = start(speaker, k=2, room="stage")["ticket"]
            said = say(speaker, "ba be. ")
            names = ["waitinfo", f"waitinfo-ticket.{ticket}"]
            with server.connect("/v1/watch?room=stage", subprotocols=names) as watcher:
                assert watcher.subprotocol == "waitinfo" and hear(watcher, len(said)) == said
            with server.connect(f"/v1/watch?room=stage&ticket={ticket}") as watcher:
                assert hear(watcher, len(said)) == said
            for path in (
                "/v1/watch?room=stage",
                f"/v1/watch?room=stage&key={ticket}",
                f"/v1/watch?room=other&ticket={ticket}",
                f"/v1/watch?room=stage&ticket={ticket[:-2]}",
                "/v1/watch?room=stage&ticket=%F0%9F%98%80",
                f"/v1/stream?ticket={ticket}",
                f"/v1/stream?key={ticket}",
                f"/v1/realtime/translations?ticket={ticket}",
            ):
                with pytest.raises(InvalidStatus) as error, server.connect(path):
                    pass
                assert error.value.response.status_code == 401, path
            with pytest.raises(InvalidStatus), server.connect(subprotocols=names):
                pass


def test_tickets_of_replicas_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(rooms.time, "time", lambda: now[0])
    ticket = Tickets(b"x", 60).issue("stage")
    Tickets(b"x", 60).check("stage", ticket)
    for secret, room, given in ((b"y", "stage", ticket), (b"x", "stage2", ticket),
                                (b"x", "stage", "f" + ticket), (b"x", "stage", "")):  # fmt: skip
        with pytest.raises(Refusal, match="not for this room"):
            Tickets(secret, 60).check(room, given)
    now[0] += 61
    with pytest.raises(Refusal, match="expired"):
        Tickets(b"x", 60).check("stage", ticket)


# Watchers


def test_captions_are_formatted_once_and_sent_at_once() -> None:
    sent: list[Caption] = []

    def write(caption: Caption) -> bool:
        sent.append(caption)
        return True

    async def run() -> None:
        found = Rooms(5_000)
        for _ in range(1_000):
            found.watch("a", write)
        seat = found.speak("a", SECRET, "me", object())  # type: ignore[arg-type]
        sent.clear()
        seat.say([{"word": "x", "sentence": 0, "read": 1, "lag": 1}])

    asyncio.run(run())
    assert len(sent) == 1_000 and len({id(caption) for caption in sent}) == 1


@pytest.mark.parametrize("size", [0, 60, 125, 126, 65_535, 65_536])
def test_frames_are_those_of_websockets(size: int) -> None:
    found = Caption([])
    found.text = "x" * size
    assert found.frame == Frame(Opcode.TEXT, found.text.encode()).serialize(mask=False)


def test_a_slow_watcher_gets_the_last_words_once_it_reads() -> None:
    async def run() -> list[dict[str, Any]]:
        open_, sent = [True], []
        room = Room("a")

        def write(caption: Caption) -> bool:
            if open_[0]:
                sent.append(json.loads(caption.text))
            return open_[0]

        watcher = Watcher(room, write)
        room.watchers[watcher] = None

        def word(n: int) -> dict[str, Any]:
            return {"word": str(n), "sentence": 0, "read": n, "lag": 0}

        room.say([word(1)])
        open_[0] = False
        for n in range(2, 1_000):
            room.say([word(n)])
            assert len(watcher._waiting) <= rooms.WAITING
        watcher.end()
        async for caption in watcher.captions():
            sent.append(json.loads(caption.text))
            if len(sent) == 2:
                room.say([word(1_000)])  # comes after what is being sent
        return sent

    first, second, third = asyncio.run(run())
    assert [w["word"] for w in first["words"]] == ["1"]
    assert second["again"] and [w["word"] for w in second["words"]] == [str(n) for n in
        range(1_000 - rooms.REMEMBERED, 1_000)]  # fmt: skip
    assert [w["word"] for w in third["words"]] == ["1000"]


# The end


@pytest.mark.parametrize("late", ["end", "deadline"])
def test_watchers_stay_until_their_speaker_has_gone(late: str) -> None:
    with (
        running(toy_hub(drain=600.0 if late == "end" else 0.2)) as server,
        server.connect("/v1/watch?room=empty") as lonely,
        server.connect("/v1/watch?room=stage") as watcher,
        server.connect() as speaker,
    ):
        receive(watcher)
        receive(lonely)
        start(speaker, k=2, room="stage")
        assert receive(watcher)["fresh"]
        said = say(speaker, "ba be bi. ")
        server.server.handle_exit(signal.SIGTERM, None)
        until(speaker, "closing")
        with pytest.raises(ConnectionClosed):
            receive(lonely)
        if late == "end":
            said += say(speaker, "bo bu. ", 2)
            send(speaker, "text", text="da de")
            send(speaker, "end")
        said += words_of(until(speaker, "ended"))
        assert hear(watcher, len(said)) == said
        with pytest.raises(ConnectionClosed) as closed:
            receive(watcher)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1012

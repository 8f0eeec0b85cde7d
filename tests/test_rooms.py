"""Rooms: who may speak, who may watch, and what watchers see."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection

from tests.redis_server import RedisServer
from tests.serving import (
    Running,
    receive,
    running,
    send,
    start,
    toy_hub,
    toy_served,
    until,
    wait_for,
    words_of,
)  # fmt: skip
from tests.streams import some_text
from waitinfo import Client, WaitinfoError
from waitinfo.serving import interpreting, rooms, tickets
from waitinfo.serving import room as room_module
from waitinfo.serving.guards import Caller, KeyLimits, Keys, Refusal
from waitinfo.serving.hub import Hub
from waitinfo.serving.interpreting import Interpreters
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models
from waitinfo.serving.room import Caption, Room, Watcher
from waitinfo.serving.rooms import Claim, Occupied, Rooms, Seat
from waitinfo.serving.settings import Settings
from waitinfo.serving.tickets import WRONG, Tickets

SECRET, OTHER = "s" * 16, "o" * 16
KEYS = ("the-speaker's-key", "the-attacker's-key")


@pytest.fixture(scope="module", params=["memory", "redis"])
def kept(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """Where rooms are kept, as settings say it: the same holds for both."""
    if request.param == "memory":
        yield {}
        return
    redis = RedisServer()
    yield {"rooms": redis.url}
    redis.close()


@pytest.fixture(scope="module")
def server(kept: dict[str, Any]) -> Iterator[Running]:
    with running(toy_hub(streams=6, **kept)) as found:
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


def test_another_key_gives_no_right_to_a_room(kept: dict[str, Any]) -> None:
    with running(toy_hub(keys=Keys(KeyLimits(key) for key in KEYS), **kept)) as server:
        speakers, attackers = ({"Authorization": f"Bearer {key}"} for key in KEYS)
        with (
            server.connect(additional_headers=speakers) as speaker,
            server.connect(additional_headers=attackers) as attacker,
        ):
            assert start(speaker, room="keyed")["type"] == "started"
            send(attacker, "start", room="keyed", resume={"position": 0})
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

    talking = Talking()

    async def run() -> None:
        found = Rooms(0)

        async def speak(name: str, secret: str, who: str) -> Seat:
            return await found.speak(Claim(name, who, talking, secret))

        (await speak("a", SECRET, "me")).leave(kept=0.01)
        with pytest.raises(Occupied):
            await speak("a", OTHER, "you")
        while len(found):
            await asyncio.sleep(0.001)
        (await speak("a", OTHER, "you")).leave(kept=600)
        for number in range(100):  # they do not fill the server, and nobody loses one
            if number < rooms.KEPT:
                (await speak(f"b{number}", SECRET, "me")).leave(kept=600)
                (await speak("b0", SECRET, "me")).leave(kept=600)
            else:
                with pytest.raises(Refusal, match="wait for their speakers"):
                    await speak(f"b{number}", SECRET, "me")
        assert len(found) == 1 + rooms.KEPT
        for number in range(rooms.KEPT):
            with pytest.raises(Occupied):
                await speak(f"b{number}", OTHER, "me")
        for number in range(rooms.ROOMS - len(found)):
            await speak(f"c{number}", SECRET, "you")
        with pytest.raises(Refusal, match="too many rooms"):
            await speak("d", SECRET, "you")

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
    monkeypatch.setattr(tickets.time, "time", lambda: now[0])
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

    class Talking:
        def stop(self, reason: str) -> None:
            """Nobody asks for it."""

    async def run() -> None:
        found = Rooms(5_000)
        for _ in range(1_000):
            await found.watch("a", write)
        seat = await found.speak(Claim("a", "me", Talking(), SECRET))
        sent.clear()
        await seat.say([{"word": "x", "sentence": 0, "read": 1, "lag": 1}])

    asyncio.run(run())
    assert len(sent) == 1_000 and len({id(caption) for caption in sent}) == 1


@pytest.mark.parametrize("size", [0, 60, 125, 126, 65_535, 65_536])
def test_frames_are_those_of_websockets(size: int) -> None:
    found = Caption([])
    found.text = "x" * size
    assert found.frame == Frame(Opcode.TEXT, found.text.encode()).serialize(mask=False)


def word(number: int, sentence: int = 0) -> dict[str, Any]:
    return {"word": str(number), "sentence": sentence, "read": number, "lag": 0}


def test_a_slow_watcher_gets_what_it_missed_once_it_reads() -> None:
    async def run() -> list[dict[str, Any]]:
        open_, sent = [True], []
        hall = Room("a", "life")

        def write(caption: Caption) -> bool:
            if open_[0]:
                sent.append(json.loads(caption.text))
            return open_[0]

        watcher = Watcher(hall, write)
        hall.join(watcher, None)
        hall.say([word(1)])
        open_[0] = False
        for n in range(2, 1_000):
            hall.say([word(n)])
            assert len(watcher._waiting) <= room_module.WAITING
        watcher.end()
        async for caption in watcher.captions():
            sent.append(json.loads(caption.text))
            if len(sent) == 3:
                hall.say([word(1_000)])  # comes after what is being sent
        return sent

    sent = asyncio.run(run())
    assert sent[0]["again"] and sent[0]["words"] == []
    assert [w["word"] for m in sent for w in m["words"]] == [str(n) for n in range(1, 1_001)]


def test_a_slow_watcher_of_a_room_that_begins_anew_gets_all_of_it() -> None:
    """Its words are counted from 0 again, past the number that the watcher had seen."""

    async def run() -> list[str]:
        open_, sent = [True], []
        hall = Room("a", "life")

        def write(caption: Caption) -> bool:
            if open_[0]:
                sent.append(caption)
            return open_[0]

        watcher = Watcher(hall, write)
        hall.join(watcher, None)
        hall.say([word(n) for n in range(1, 41)])
        open_[0] = False
        hall.forget("another")
        hall.begin()
        for n in range(1, 60 + room_module.WAITING):
            hall.say([word(n)])
        assert watcher._missed
        sent.clear()
        watcher.end()
        sent += [caption async for caption in watcher.captions()]
        return [w["word"] for caption in sent for w in json.loads(caption.text)["words"]]

    assert asyncio.run(run()) == [str(n) for n in range(1, 60 + room_module.WAITING)]


class Reader:
    """A watcher whose connection is cut now and then: it comes back with its last position."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def __call__(self, caption: Caption) -> bool:
        self.messages.append(json.loads(caption.text))
        return True

    @property
    def position(self) -> str | None:
        return self.messages[-1]["position"] if self.messages else None

    @property
    def words(self) -> list[tuple[str | None, str]]:
        """Each with the stream that said it."""
        found, stream = [], None
        for message in self.messages:
            stream = message.get("stream", stream)
            found += [(stream, each["word"]) for each in message["words"]]
        return found


def test_who_comes_back_gets_exactly_what_was_missed() -> None:
    """Whenever it was away, also while another stream began."""

    async def run() -> None:
        draw = random.Random(3)
        hall = Room("a", "life")
        readers = [Reader() for _ in range(20)]
        present = {}
        said: list[tuple[str | None, str]] = []
        hall.begin()
        for reader in readers:
            present[reader] = Watcher(hall, reader)
            hall.join(present[reader], None)
        for number in range(300):
            for reader in readers:
                if draw.random() < 0.1:
                    if (watcher := present.pop(reader, None)) is not None:
                        del hall.watchers[watcher]
                    else:
                        present[reader] = Watcher(hall, reader)
                        hall.join(present[reader], reader.position)
            if draw.random() < 0.05:
                hall.begin()
            hall.say([word(number)])
            said.append((f"life.{hall.stream}", str(number)))
        for reader in readers:
            if reader not in present:
                hall.join(watcher := Watcher(hall, reader), reader.position)
                await take_the_rest(watcher, reader)
            assert reader.words == said

    asyncio.run(run())


async def take_the_rest(watcher: Watcher, reader: Reader) -> None:
    """What could not be sent at once."""
    watcher.end()
    async for caption in watcher.captions():
        reader(caption)


class Sleeper:
    """A watcher that takes nothing until it is read."""

    def __init__(self, hall: Room, position: str) -> None:
        self.watcher = Watcher(hall, lambda _: False)
        hall.join(self.watcher, position)

    @property
    def waiting(self) -> int:
        return sum(len(caption.text) for caption in self.watcher._waiting)

    async def read(self) -> list[str]:
        self.watcher.end()
        messages = [json.loads(caption.text) async for caption in self.watcher.captions()]
        return [each["word"] for message in messages for each in message["words"]]


def test_what_was_missed_waits_in_the_room_and_not_for_each_watcher() -> None:
    """Many who ask for all that was said, each from another word on, and never read."""
    hall, count = Room("a", "life"), room_module.KEPT_WORDS
    hall.begin()
    hall.say([word(number) for number in range(count)])
    sleepers = {n: Sleeper(hall, f"-{n}") for n in range(1, count + 1)}
    sleepers |= {count + n: Sleeper(hall, f"life.{count - n}") for n in range(1, count)}
    most = len(json.dumps(word(count))) * 2 * room_module.LOT
    assert max(sleeper.waiting for sleeper in sleepers.values()) < most
    assert len(hall._made) <= room_module.MADE
    hall.say([word(count)])

    async def check() -> None:
        for n in (1, 7, 99, 100, 101, 250, count, count + 1, count + 350):
            expected = [str(k) for k in range(count - (n - 1) % count - 1, count + 1)]
            assert await sleepers[n].read() == expected

    asyncio.run(check())


def test_a_watcher_too_many_is_refused(kept: dict[str, Any]) -> None:
    with (
        running(toy_hub(watchers=1, **kept)) as server,
        server.connect("/v1/watch?room=small") as watcher,
    ):
        receive(watcher)
        assert refused(server, "/v1/watch?room=small") == "watchers"
        assert refused(server, "/v1/watch?room=other") == "watchers"


@pytest.mark.parametrize("position", ["-" + "9" * 5_000, "{}." + "9" * 5_000, "-0", "-²", ".", ""])
def test_places_that_are_none_leave_no_room_behind(server: Running, position: str) -> None:
    with server.connect("/v1/watch?room=none") as watcher:
        life = receive(watcher)["position"].partition(".")[0]
    path = f"/v1/watch?room=none&after={quote(position.format(life))}"
    with server.connect(path) as watcher:
        assert receive(watcher)["words"] == []
    wait_for(lambda: "none" not in server.hub.rooms._rooms)


def test_what_the_room_has_forgotten_begins_again() -> None:
    hall, late = Room("a", "life"), Reader()
    hall.say([word(number) for number in range(2 * room_module.KEPT_WORDS)])
    hall.join(watcher := Watcher(hall, late), "life.5")
    asyncio.run(take_the_rest(watcher, late))
    assert late.messages[0]["again"] and len(late.words) == room_module.KEPT_WORDS
    for position, count in (
        ("-7", 7),
        ("other.5", 60),
        ("life.x", 60),
        ("-99999", room_module.KEPT_WORDS),
    ):
        reader = Reader()
        hall.join(watcher := Watcher(hall, reader), position)
        asyncio.run(take_the_rest(watcher, reader))
        assert len(reader.words) == count


# PINs


def test_a_room_with_a_pin(kept: dict[str, Any]) -> None:
    with (
        running(toy_hub(streams=2, **kept)) as server,
        server.connect() as speaker,
        server.connect("/v1/watch?room=locked") as early,  # before the room has a PIN
    ):
        receive(early)
        start(speaker, k=2, room="locked", pin="2468")
        with pytest.raises(ConnectionClosed):
            while not receive(early)["words"]:
                pass
        for names in ([], ["waitinfo-pin.2467"]):
            with (
                pytest.raises(InvalidStatus) as error,
                server.connect("/v1/watch?room=locked", subprotocols=["waitinfo", *names]),
            ):
                pass
            assert error.value.response.status_code == 401
            assert json.loads(error.value.response.body)["reason"] == "pin"
        right = ["waitinfo", "waitinfo-pin.2468"]
        with server.connect("/v1/watch?room=locked", subprotocols=right) as watcher:
            said = say(speaker, "ba be. ")
            assert hear(watcher, len(said)) == said
        for _ in range(WRONG):
            answer = httpx.get(
                f"{server.url}/v1/access?room=locked",
                headers={"Waitinfo-Protocols": "waitinfo-pin.1"},
            )
        assert answer.status_code == 429 and "Retry-After" in answer.headers


def refused(server: Running, path: str, *names: str) -> str:
    """Why nobody may watch there."""
    with (
        pytest.raises(InvalidStatus) as error,
        server.connect(path, subprotocols=["waitinfo", *names]),
    ):
        pass
    return json.loads(error.value.response.body)["reason"]


def test_what_was_said_behind_a_pin_stays_there(kept: dict[str, Any]) -> None:
    """When its speaker has gone, and the room is free."""
    right, path = ["waitinfo", "waitinfo-pin.2468"], "/v1/watch?room=past&after=-100"
    with running(toy_hub(**kept)) as server:
        with server.connect() as speaker:
            start(speaker, k=2, room="past", pin="2468")
            with server.connect(path, subprotocols=right) as watcher:
                said = say(speaker, "ba be bi. ")
                send(speaker, "end")
                until(speaker, "ended")
                assert hear(watcher, len(said)) == said
                assert refused(server, path) == "pin"
                with server.connect(path, subprotocols=right) as late:
                    assert hear(late, len(said)) == said
        if kept:  # a Redis remembers it without anybody
            wait_for(lambda: not server.hub.rooms._rooms)
            assert refused(server, path) == "pin"
        with server.connect() as other, server.connect() as again:
            assert start(other, k=2, room="past")["type"] == "started"
            with server.connect("/v1/watch?room=past&after=-100") as watcher:
                assert receive(watcher)["words"] == []
            send(again, "start", room="past")
            assert receive(again)["code"] == "room"


def test_nothing_of_a_room_is_for_the_next_audience(kept: dict[str, Any]) -> None:
    """In no language: whoever opens the room next may leave out its PIN."""
    right, path = ["waitinfo", "waitinfo-pin.2468"], "/v1/watch?room=next&after=-1200"
    with (
        running(two_languages(**kept)) as server,
        server.connect() as speaker,
        server.connect(path, subprotocols=right) as own,
        server.connect(f"{path}&language=fr", subprotocols=right) as french,
    ):
        receive(own), receive(french)
        start(speaker, k=2, room="next", pin="2468")
        said = say(speaker, "ba be bi. bo bu. ")
        assert hear(own, len(said)) == said and hear(french, 1)
        send(speaker, "end")
        until(speaker, "ended")
        wait_for(lambda: server.hub.models.find("french").free == 4)
        with server.connect() as stranger:
            start(stranger, room="next", k=2)
            for address in (path, f"{path}&language=fr"):
                with server.connect(address) as watcher:
                    assert not receive(watcher)["words"]


def test_a_lock_holds_in_every_language(kept: dict[str, Any]) -> None:
    """Also where the speaker changes the PIN, and where nobody interprets any more."""
    path = "/v1/watch?room=locks&language=fr"
    with running(two_languages(**kept)) as server, ExitStack() as sockets:

        def connect(*arguments: Any, **options: Any) -> ClientConnection:
            return sockets.enter_context(server.connect(*arguments, **options))

        speaker, watcher = connect(), connect(path)
        start(speaker, k=2, room="locks", secret=SECRET)
        for pin in ("2468", "1357"):
            wait_for(lambda: "locks/fr" in server.hub.rooms._rooms)
            send(speaker, "text", text="ba be. ")
            send(speaker, "flush", id=1)
            said = [message for message in until(speaker, "idle") if message["type"] == "words"]
            resume = {**said[-1]["replay"], "path": []}
            speaker = connect()
            start(speaker, k=2, room="locks", secret=SECRET, pin=pin, resume=resume)
            with pytest.raises(ConnectionClosed):
                while True:
                    receive(watcher)
            assert refused(server, path) == "pin"
            watcher = connect(path, subprotocols=["waitinfo", f"waitinfo-pin.{pin}"])
        assert say(speaker, "bo bu. ", 3) and hear(watcher, 1)


def test_whether_a_request_would_be_served() -> None:
    with running(toy_hub(keys=Keys([KeyLimits(KEYS[0])]))) as server:
        ask = f"{server.url}/v1/access"
        assert httpx.get(ask).json()["reason"] == "key"
        assert httpx.get(f"{ask}?room=a").status_code == 401
        key = {"Waitinfo-Protocols": f"waitinfo, waitinfo-key.{KEYS[0]}"}
        assert httpx.get(ask, headers=key).status_code == 204
        assert httpx.get(f"{ask}?room=a b", headers=key).status_code == 400


# Further languages


def two_languages(**settings: Any) -> Hub:
    metrics = Metrics()
    models = [toy_served(metrics), toy_served(metrics, name="french", system="full", target="fr")]
    return Hub(Models(models), Settings(**settings), metrics=metrics)


def test_a_room_is_followed_in_another_language(kept: dict[str, Any]) -> None:
    """By one more stream, which is opened when somebody asks, and closed when nobody listens."""
    with running(two_languages(**kept)) as server:
        french = server.hub.models.find("french")
        with server.connect() as speaker, server.connect("/v1/watch?room=tongues") as own:
            start(speaker, k=2, room="tongues", secret=SECRET)
            while (about := receive(own))["room"]["languages"] != ["en", "fr"]:
                assert about["words"] == []
            said = say(speaker, "ba be bi. ")
            assert french.free == 4
            with (
                server.connect("/v1/watch?room=tongues&language=fr") as one,
                server.connect("/v1/watch?room=tongues&language=fr") as two,
            ):
                wait_for(lambda: french.free == 3)
                said += say(speaker, "bo bu. ", 2)
                with french.translator.stream(raw=True, history=None) as stream:
                    stream.push("bo bu. ")
                    stream.finish()
                    expected = stream.text.split()
                for watcher in (one, two):
                    assert hear(watcher, len(expected)) == expected
                send(speaker, "end")
                until(speaker, "ended")
            assert hear(own, len(said)) == said
            wait_for(lambda: french.free == 4)
        with pytest.raises(InvalidStatus), server.connect("/v1/watch?room=a&language=no%20code"):
            pass
    assert not server.hub.interpreters


@pytest.mark.parametrize("text", [" ", "\u3000", "a ", None])
def test_what_was_said_takes_bounded_memory(text: str | None) -> None:
    """Spaces give no words, and so end no sentence."""
    hub = two_languages()
    talking = Interpreters(hub, Claim("a", "me", None, SECRET), Caller())  # type: ignore[arg-type]
    for _ in range(300):
        if text is None:
            talking._put((0, None))
        else:
            talking.hear(talking._end, text * 60_000)
    assert sum(len(piece or "") for _, piece in talking._said) <= interpreting.TEXT
    talking.hear(talking._end, "ba be. bo")
    talking.done(talking._end - 2)
    assert list(talking._said) == [(talking._end, "bo")]


# The end


@pytest.mark.parametrize("late", ["end", "deadline"])
def test_watchers_stay_until_their_speaker_has_gone(kept: dict[str, Any], late: str) -> None:
    with (
        running(toy_hub(drain=600.0 if late == "end" else 0.2, **kept)) as server,
        server.connect("/v1/watch?room=empty") as lonely,
        server.connect(f"/v1/watch?room=last-{late}") as watcher,
        server.connect() as speaker,
    ):
        receive(watcher)
        receive(lonely)
        start(speaker, k=2, room=f"last-{late}")
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

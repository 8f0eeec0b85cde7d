"""WebSocket /v1/stream: what it writes, what it refuses, and how it ends."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

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
    writes_of,
)  # fmt: skip
from tests.streams import WORDS, record, some_text
from waitinfo import Event
from waitinfo.streaming.channel import Rounds

TEXT = some_text(random.Random(11), 40)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toy_hub()) as found:
        yield found


def alone(server: Running, text: str, k: float = 2) -> list[Event]:
    """The events of the same text in a local stream."""
    with server.hub.models.find().translator.stream(k, raw=True, history=None) as stream:
        return stream.push(text) + stream.finish()


def expected_words(server: Running, text: str, k: float = 2) -> list[str]:
    return [
        word
        for event in alone(server, text, k)
        if event.kind == "WRITE" and event.word
        for word in event.word.split()
    ]


def conversation(server: Running, pieces: list[str], **fields: Any) -> list[dict[str, Any]]:
    with server.connect() as socket:
        assert start(socket, k=2, **fields)["type"] == "started"
        for piece in pieces:
            send(socket, "text", text=piece)
        send(socket, "end")
        return until(socket, "ended")


def test_writes_what_a_local_stream_writes(server: Running) -> None:
    draw = random.Random(3)
    cuts = sorted(draw.sample(range(len(TEXT)), 20))
    pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    found = conversation(server, pieces)
    assert words_of(found) == expected_words(server, TEXT)
    texts = [message["text"] for message in found if message["type"] == "words"]
    assert " ".join(texts).split() == words_of(found)
    stats, ended = found[-2:]
    assert ended == {"type": "ended", "reason": "end"}
    assert stats["words_in"] == len(TEXT.split()) and stats["words_out"] == len(words_of(found))
    wait_for(lambda: server.hub.models.find().translator.open_streams == 0)


def test_the_trace_has_every_event(server: Running) -> None:
    found = conversation(server, [TEXT], trace=True)
    events = [Event(**e) for m in found if m["type"] == "words" for e in m["trace"]]
    assert record(events) == record(alone(server, TEXT))


def test_the_dial_turns_live(server: Running) -> None:
    with server.connect() as socket:
        start(socket, k=2, trace=True)
        send(socket, "text", text="ba be bi bo ", id=1)
        assert writes_of(until(socket, "idle")) > 0
        send(socket, "set", k=30)
        send(socket, "text", text="bu da de di ", id=2)
        assert writes_of(until(socket, "idle")) == 0
        send(socket, "set", k=1)
        send(socket, "text", text="do ", id=3)
        assert writes_of(until(socket, "idle")) > 0


def test_flush_ends_the_sentence(server: Running) -> None:
    with server.connect() as socket:
        start(socket, k=2)
        send(socket, "text", text="ba be bi")
        send(socket, "flush", id=7)
        found = words_of(until(socket, "idle"))
        assert found == expected_words(server, "ba be bi")
        send(socket, "end")
        assert not words_of(until(socket, "ended"))


@pytest.mark.parametrize(
    "message",
    [
        "", "{", "[]", "1", '"text"', "null", "{}", '{"type": 5}', '{"type": "dance"}',
        '{"type": "text"}', '{"type": "text", "text": 5}', '{"type": "set", "k": "much"}',
        '{"type": "set", "k": NaN}', '{"type": "set", "k": 1e999}', '{"type": "set", "k": -1}',
        '{"type": "start"}', '{"type": "set", "k": 1.5}', '{"type": "set", "lag": 3}',
        '{"type": "text", "text": "' + "x" * 70_000 + '"}',
        '{"type": "text", "text": "' + "x" * 5_000 + '"}',
        "[" * 50_000,
    ],
    ids=lambda message: message[:30],
)  # fmt: skip
def test_a_bad_message_gets_an_error_and_the_stream_lives_on(server: Running, message: str) -> None:
    with server.connect() as socket:
        start(socket, k=2)
        send(socket, "text", text="ba be ", unknown=[1, 2])
        socket.send(message)
        assert until(socket, "error")[-1]["fatal"] is False
        socket.send(b"bytes")
        assert until(socket, "error")[-1]["message"] == "messages are text, not bytes"
        send(socket, "end")
        assert until(socket, "ended")[-1]["reason"] == "end"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"model": "none"}, "unknown model 'none'; choose one of: toy"),
        ({"system": "mma"}, "unknown system 'mma'; choose one of: wait-k"),
        ({"k": 0.5}, "must be a whole number"),
        ({"version": 2}, "this server speaks 1"),
        ({"lag": 3}, "not calibrated"),
        ({"segmenter": "nowhere"}, "nowhere"),
        ({"room": "a b"}, "room: use up to 64"),
        ({"resume": {"position": 0, "path": [[0, 1]]}}, "cannot have been written"),
        ({"resume": {"position": 0, "path": [[9, 1]] * 3000}}, "2,048 tokens"),
        ({"resume": {"position": 0, "vocabulary": "x"}}, "another vocabulary"),
        ({"resume": {"position": 2**50 + 1}}, "no stream has come so far"),
        ({"resume": {"position": 0, "sentence": 2**52}}, "no stream has come so far"),
        ({"resume": {"position": 0, "begun": 2**52}}, "no stream has come so far"),
        ({"resume": {"position": 0, "kept": 2**52}}, "no stream has come so far"),
        ({"resume": {"position": -1}}, "greater than or equal to 0"),
        ({"resume": {"position": 10**4_000}}, "less than or equal to"),
        ({"version": 10**4_000}, "less than or equal to"),
        ({"model": "\ud83d"}, "model"),
        ({"audio": {"rate": 47_999}}, "multiple of 25"),
        ({"system": "\udc00"}, "system"),
        ({"segmenter": "\ud83d"}, "segmenter"),
    ],
)
def test_a_bad_start_may_be_corrected(server: Running, fields: dict[str, Any], told: str) -> None:
    with server.connect() as socket:
        send(socket, "start", **fields)
        error = receive(socket)
        assert error["type"] == "error" and told in error["message"]
        assert start(socket, k=2)["k"] == 2


def test_halves_of_characters_are_not_sent_back(server: Running) -> None:
    with server.connect("/v1/realtime/translations") as socket:
        receive(socket)
        send(socket, "session.update", event_id="\ud83d", session={"audio": {}})
        error = receive(socket)["error"]
        assert error["code"] == "malformed" and error["event_id"] is None
        send(socket, "session.none", event_id="mine")
        assert receive(socket)["error"]["event_id"] == "mine"


def test_text_is_taken_after_start_alone(server: Running) -> None:
    with server.connect() as socket:
        send(socket, "text", text="ba")
        assert "first message must be start" in receive(socket)["message"]


def test_surrogates_may_be_cut_apart(server: Running) -> None:
    """JavaScript counts 😀 as two characters, and may send each in a message."""
    whole, cut = "ba 😀 be.", ['{"type":"text","text":"ba \\ud83d"}',
                               '{"type":"text","text":"\\ude00 be."}']  # fmt: skip
    with server.connect() as socket:
        start(socket, k=2)
        for message in cut:
            socket.send(message)
        socket.send(json.dumps({"type": "text", "text": "\ud83d"}))
        send(socket, "end")
        found = until(socket, "ended")
    assert words_of(found) == expected_words(server, whole)


def test_stats(server: Running) -> None:
    with server.connect() as socket:
        start(socket, k=2)
        send(socket, "text", text="ba be ", id=1)
        until(socket, "idle")
        send(socket, "stats")
        assert receive(socket)["words_in"] == 2


def test_resume_continues_word_for_word(server: Running) -> None:
    """Cut anywhere: words before and after the cut are those of one stream."""
    words = TEXT.split()
    expected = expected_words(server, TEXT)
    for cut in range(1, len(words), 5):
        client = Replaying(server)
        before = client.say(" ".join(words[:cut]) + " ")
        after = client.say(" ".join(words[cut:]), last=True)
        assert before + after == expected, cut


@pytest.mark.parametrize("segmenter", ["auto:12", "none:12"])
def test_windows_that_have_moved_on_are_resumed(server: Running, segmenter: str) -> None:
    """A client that is cut off after every word of a text without punctuation loses nothing."""
    words = random.Random(2).choices(WORDS, k=45)
    found = conversation(server, [" ".join(words)], segmenter=segmenter, trace=True)
    assert sum(e["kind"] == "MOVE" for m in found for e in m.get("trace") or ()) > 2
    client = Replaying(server, segmenter=segmenter)
    shown, sizes = [], []
    for place, word in enumerate(words):
        shown += client.say(f"{word} ", last=place == len(words) - 1)
        assert client.resume is not None
        sizes.append((len(client.text), len(client.resume["path"])))
    assert shown == words_of(found)
    assert max(text for text, _ in sizes) < 12 * 8 and max(path for _, path in sizes) < 2 * 12 + 10
    whole = [Event(**e) for m in found for e in m.get("trace") or ()]
    assert record(client.events) == record(whole), "and every event is told once"


class Replaying:
    """What a client has to do, in a few lines."""

    def __init__(self, server: Running, **fields: Any) -> None:
        self.server, self.text, self.at, self.fields = server, "", 0, fields
        self.resume: dict[str, Any] | None = None
        self.events: list[Event] = []

    def say(self, text: str, last: bool = False) -> list[str]:
        """Connect, send what is not done with, and leave without a word."""
        with self.server.connect() as socket:
            start(socket, k=2, trace=True, resume=self.resume, **self.fields)
            self.text += text
            send(socket, "text", text=self.text, id=1)
            if last:
                send(socket, "end")
            found = until(socket, "ended" if last else "idle")
        for message in found:
            if message["type"] == "words":
                self._keep(message["replay"])
                self.events += [Event(**event) for event in message["trace"]]
        return words_of(found)

    def _keep(self, replay: dict[str, Any]) -> None:
        same = self.resume and self.resume["sentence"] == replay["sentence"]
        path = [*self.resume["path"], *replay["path"]] if self.resume and same else replay["path"]
        self.text = self.text[replay["position"] - self.at :]
        self.at = replay["position"]
        self.resume = {**replay, "path": path}


def test_marks_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have no length, so that a limit of characters does not count them."""
    with running(toy_hub(pieces=20)) as server, server.connect() as socket:
        start(socket, k=2)
        going, held = threading.Event(), threading.Event()
        going.set()
        run = Rounds.run

        def when_going(rounds: Rounds) -> int:
            if not going.is_set():
                held.set()
            going.wait(600)
            return run(rounds)

        monkeypatch.setattr(Rounds, "run", when_going)
        send(socket, "text", text="ba be ", id=1)
        until(socket, "idle")
        going.clear()
        send(socket, "text", text="bi bo ")
        assert held.wait(600)  # from here on nothing that is sent is worked off
        for _ in range(200):
            send(socket, "flush")
            send(socket, "text", text="")
        (live,) = (connection.live for connection in server.hub._connections)
        channel, before = live.stream._channel, 0
        wait_for(lambda: len(channel.inbox) >= 20)
        while len(channel.inbox) != before:  # until it reads no more
            before = len(channel.inbox)
            time.sleep(0.2)
        assert before <= 22
        going.set()
        send(socket, "end")
        assert until(socket, "ended")[-1]["reason"] == "end"

"""Audio on a server: recognised words and their translation, limits, and going on after a break."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import urllib.request
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection

from tests.listening import WORDS, silence, speech
from tests.serving import Running, receive, running, send, start, toy_served, until, words_of
from tests.streams import wait_for
from waitinfo import AsyncClient, Client
from waitinfo.errors import WaitinfoError
from waitinfo.listening.audio import RATE, Resampler, Samples
from waitinfo.serving.guards import KeyLimits, Keys
from waitinfo.serving.hearing import Ear, Hearing
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models
from waitinfo.serving.settings import Settings
from waitinfo.serving.wire import Gone
from waitinfo.streaming.event import shown_text

BLOCK = 3200  # bytes: 0.1 s at 16 kHz


def hub(recogniser: str = "tones", voices: int = 2, keys: Keys | None = None) -> Hub:
    metrics = Metrics()
    hearing = Hearing(metrics, f"tests.listening:{recogniser}", voices)
    return Hub(Models([toy_served(metrics)]), Settings(), keys, metrics, hearing)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(hub()) as found:
        yield found


def pcm(samples: Samples) -> bytes:
    return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()


def spoken(*parts: Any) -> bytes:
    return pcm(speech([*parts])[0])


def speak(socket: ClientConnection, data: bytes, size: int = BLOCK) -> None:
    for place in range(0, len(data), size):
        socket.send(data[place : place + size])


def heard_of(messages: list[dict[str, Any]]) -> list[str]:
    return [word["text"] for m in messages if m["type"] == "heard" for word in m["words"]]


def shown(messages: list[dict[str, Any]]) -> str:
    return "".join(m["text"] for m in messages if m["type"] == "words")


def expected(server: Running, *sentences: list[str], k: float | None = 2) -> str:
    """What a local stream writes, with a pause after each of some sentences."""
    with server.hub.models.find().translator.stream(k, raw=True, history=None) as stream:
        for words in sentences:
            stream.push("".join(f"{word} " for word in words))
            stream.flush()
        stream.finish()
        return stream.text


AUDIO = {"rate": RATE, "language": "de"}


def test_a_voice_is_heard_and_translated(server: Running) -> None:
    with server.connect() as socket:
        assert start(socket, k=2, audio=AUDIO)["type"] == "started"
        speak(socket, spoken(0.5, *WORDS[:9], 1.5, *WORDS[9:]), 777)
        send(socket, "end")
        found = until(socket, "ended")
    assert heard_of(found) == WORDS
    assert shown(found).strip() == expected(server, WORDS[:9], WORDS[9:])
    heard = [m for m in found if m["type"] == "heard"]
    assert "".join(m["text"] for m in heard) == "".join(f"{word} " for word in WORDS)
    assert [m["pause"] for m in heard].count(True) == 2
    assert any(m["open"] for m in heard)
    times = [t for m in heard for w in m["words"] for t in (w["start"], w["end"])]
    assert times == sorted(times) and abs(times[0] - 0.5) < 0.1
    assert heard[-1]["position"] == pytest.approx(len(spoken(0.5, *WORDS, 1.5)) / 2 / RATE, abs=0.1)
    read = 0  # no word is translated before it was heard
    for message in found:
        if message["type"] == "heard":
            read += len(message["text"])
        elif message["type"] == "words":
            assert message["position"] <= read


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_every_rate_is_heard(server: Running, rate: int) -> None:
    samples = Resampler(RATE, rate).add(speech([*WORDS[:5], 1.2])[0], last=True)
    with server.connect() as socket:
        start(socket, audio={"rate": rate})
        speak(socket, pcm(samples), 9_999)
        send(socket, "end")
        assert heard_of(until(socket, "ended")) == WORDS[:5]


def carry_on(state: dict[str, Any], message: dict[str, Any]) -> None:
    """What a client keeps: docs/serving.md."""
    if message["type"] == "heard":
        state["items"] += [{"type": "text", "text": message["text"]}] if message["text"] else []
        state["items"] += [{"type": "flush"}] if message["pause"] else []
        state["replay"] = message["replay"]
        state["heard"] += [word["text"] for word in message["words"]]
    elif message["type"] == "words":
        replay, before = message["replay"], state["resume"]
        same = before is not None and replay["sentence"] == before["sentence"]
        path = [*before["path"], *replay["path"]] if same else replay["path"]
        if before is None and replay["sentence"] == 0:
            path = replay["path"]
        drop(state["items"], replay["position"] - (before or {"position": 0})["position"], same)
        state["resume"] = {**replay, "path": path}
        state["shown"] += message["text"]


def drop(items: list[dict[str, Any]], count: int, same: bool) -> None:
    while count > 0 and items:
        size = len(items[0].get("text", ""))
        if size > count:
            items[0] = {**items[0], "text": items[0]["text"][count:]}
            return
        items.pop(0)
        count -= size
    while not same and items and items[0]["type"] == "flush":
        items.pop(0)


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_goes_on_after_any_break(server: Running, seed: int) -> None:
    """What two or more connections write together is what one would have written."""
    chance = random.Random(seed)
    data = spoken(0.3, *WORDS[:6], 1.4, *WORDS[6:15], 0.7, *WORDS[15:], 1.5)
    state: dict[str, Any] = {"items": [], "replay": None, "resume": None, "heard": [], "shown": ""}
    for left in (2, 1, 0):
        audio = AUDIO | ({"resume": state["replay"]} if state["replay"] else {})
        begin = 2 * (state["replay"] or {"sample": 0})["sample"]
        resume = {"resume": state["resume"]} if state["resume"] else {}
        with server.connect() as socket:
            assert start(socket, k=2, audio=audio, **resume)["type"] == "started"
            for item in state["items"]:
                socket.send(json.dumps(item))
            speak(socket, data[begin:])
            if not left:
                send(socket, "end")
            enough = chance.randint(3, 14)
            while (message := receive(socket))["type"] != "ended":
                carry_on(state, message)
                enough -= 1
                if left and not enough:
                    break
    assert state["heard"] == WORDS
    whole = expected(server, WORDS[:6], WORDS[6:])
    assert state["shown"].strip() == whole


def test_a_sentence_is_ended_by_hand(server: Running) -> None:
    with server.connect() as socket:
        start(socket, k=2, audio=AUDIO)
        speak(socket, spoken(*WORDS[:4], 0.8))
        found = until(socket, "heard")
        while heard_of(found) != WORDS[:4]:
            found += until(socket, "heard")
        send(socket, "flush", id=7)
        found += until(socket, "idle")
        assert found[-1]["id"] == 7 and any(m.get("pause") for m in found)
        assert shown(found).strip() == expected(server, WORDS[:4])


def test_one_voice_more_is_refused(server: Running) -> None:
    with server.connect() as one, server.connect() as two, server.connect() as three:
        for socket in (one, two):
            assert start(socket, audio=AUDIO)["type"] == "started"
        answer = start(three, audio=AUDIO)
        assert answer["code"] == "full" and answer["retry_after"] > 0
        ready = json.load(urllib.request.urlopen(f"{server.url}/readyz"))
        assert ready["voices"] == 0 and ready["free"] == 2
    wait_for(lambda: server.hub.hearing.free == 2)
    models = json.load(urllib.request.urlopen(f"{server.url}/v1/models"))
    assert [model["voices"] for model in models] == [2]
    figures = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    assert "waitinfo_voices 0.0" in figures
    assert 'waitinfo_refusals_total{reason="voices"} 1.0' in figures


@pytest.mark.parametrize(
    "audio, wrong",
    [
        ({"rate": 4_000}, "audio.rate"),
        ({"rate": "x"}, "audio.rate"),
        ({"language": "fr"}, "translates from de"),
        ({"resume": {"sample": -1}}, "audio.resume.sample"),
        ({"resume": {"sample": 0, "words": [1]}}, "audio.resume.words"),
    ],
)
def test_audio_that_cannot_be_taken(server: Running, audio: dict[str, Any], wrong: str) -> None:
    with server.connect() as socket:
        answer = start(socket, audio=audio)
        assert answer["type"] == "error" and wrong in answer["message"]
    assert wait_for(lambda: server.hub.hearing.free == 2) is None


def test_messages_in_the_wrong_place(server: Running) -> None:
    with server.connect() as socket:
        start(socket)
        socket.send(b"\x00\x00")
        assert "bytes" in until(socket, "error")[-1]["message"]
    with server.connect() as socket:
        start(socket, audio=AUDIO)
        send(socket, "text", text="vorher ")
        socket.send(b"")
        send(socket, "text", text="nachher ")
        assert "before the audio" in until(socket, "error")[-1]["message"]
        socket.send(bytes(65_538))
        assert "65,536 bytes" in until(socket, "error")[-1]["message"]
        send(socket, "end")
        socket.send(b"\x00")
        found = []
        while not found or found[-1]["type"] != "ended":
            found.append(receive(socket))
        assert found[-1]["reason"] == "end"


def test_a_recogniser_that_dies_ends_its_voice_alone() -> None:
    with running(hub("fatal")) as server:
        with server.connect() as socket, server.connect() as text:
            start(socket, audio=AUDIO)
            start(text, k=2)
            speak(socket, spoken("der", "luft", 1.0))
            error = until(socket, "error")[-1]
            assert error["code"] == "voice" and error["fatal"]
            send(text, "text", text="Wörter eines anderen ")
            send(text, "end")
            assert words_of(until(text, "ended"))
        with server.connect() as socket:
            start(socket, audio=AUDIO)
            speak(socket, spoken("guten", "morgen", 1.0))
            send(socket, "end")
            assert heard_of(until(socket, "ended")) == ["guten", "morgen"]


def test_a_server_without_a_recogniser() -> None:
    with running(hub(voices=0)) as server, server.connect() as socket:
        answer = start(socket, audio=AUDIO)
        assert "takes none" in answer["message"] and answer["code"] == "refused"
    with running(hub("nothing")) as server:
        with server.connect() as socket:
            assert "tests.listening:nothing" in start(socket, audio=AUDIO)["message"]
        with server.connect("/v1/realtime/translations") as socket:
            receive(socket)
            for _ in range(3):  # more than there are voices, and none is lost by it
                send(socket, "session.input_audio_buffer.append", audio="AAAA")
                assert "tests.listening:nothing" in receive(socket)["error"]["message"]
        wait_for(lambda: server.hub.hearing.free == 2)
        with server.connect() as socket:
            start(socket)
            send(socket, "end")
            until(socket, "ended")


def test_words_of_a_key_are_counted() -> None:
    keys = Keys([KeyLimits("a-long-key", words_per_minute=6)])
    key = {"Authorization": "Bearer a-long-key"}
    with running(hub(keys=keys)) as server, server.connect(additional_headers=key) as socket:
        start(socket, audio=AUDIO)
        speak(socket, spoken(*WORDS[:10], 1.2))
        found = [receive(socket)]  # the error may come before the last words are sent
        while len(heard_of(found)) < 10 and found[-1]["type"] != "error":
            found.append(receive(socket))
        if found[-1]["type"] != "error":
            speak(socket, pcm(silence(0.3)))
            found += until(socket, "error")
        assert found[-1]["code"] == "rate"


def test_files_may_come_at_once_and_text_is_not_disturbed(server: Running) -> None:
    """A voice that is a minute ahead waits; a stream of text beside it does not."""
    with server.connect() as socket, server.connect() as text:
        start(socket, audio=AUDIO)
        start(text, k=2)
        speak(socket, pcm(silence(40)) + spoken(*WORDS[:3], 1.2), 60_000)
        send(text, "text", text=" ".join(WORDS))
        send(text, "end")
        assert shown(until(text, "ended")).split() == expected(server, WORDS).split()
        send(socket, "end")
        found = until(socket, "ended")
        assert heard_of(found) == WORDS[:3]
        told = [m["position"] for m in found if m["type"] == "heard"]
        assert told == sorted(told) and len(told) > 2  # silence is told, too


# Our own client


def test_our_client_sends_audio(server: Running) -> None:
    samples = speech([0.3, *WORDS[:6], 1.4, *WORDS[6:], 1.5])[0]
    with Client(server.url, k=2) as client, client.stream(audio=AUDIO) as stream:
        for place in range(0, len(samples), 1600):
            stream.hear(samples[place : place + 1600])
        events = stream.finish()
        assert stream.heard.split() == WORDS and stream.open == ""
        assert stream.text == expected(server, WORDS[:6], WORDS[6:])
        assert shown_text(events) == stream.text
        with pytest.raises(WaitinfoError, match="finished"):
            stream.hear(samples)
    with Client(server.url) as client:
        with client.stream(audio=AUDIO) as stream, pytest.raises(WaitinfoError, match="not text"):
            stream.push("ba")
        with client.stream() as stream, pytest.raises(WaitinfoError, match="takes text"):
            stream.hear(b"")


@pytest.mark.parametrize("seed", range(3))
def test_our_client_goes_on_after_breaks(server: Running, seed: int) -> None:
    """Its connections are cut while it speaks; what it gets is what an undisturbed one gets."""
    chance = random.Random(seed)
    data = pcm(speech([0.3, *WORDS[:6], 1.4, *WORDS[6:15], 0.7, *WORDS[15:], 1.5])[0])

    async def talk() -> tuple[str, str, int]:
        client = AsyncClient(server.url, k=2)
        async with client.stream(audio=AUDIO) as stream:
            cuts = sorted(chance.sample(range(20, 90), 3))
            for number, place in enumerate(range(0, len(data), BLOCK)):
                await stream.hear(data[place : place + BLOCK])
                await asyncio.sleep(0.01)
                if number in cuts:
                    for connection in list(server.hub._connections):
                        server.server._loop.call_soon_threadsafe(connection.stop)
            await stream.finish()
            return stream.heard, stream.text, stream.connections

    heard, text, connections = asyncio.run(talk())
    assert heard.split() == WORDS
    assert text == expected(server, WORDS[:6], WORDS[6:])
    assert connections > 1


@pytest.mark.parametrize("lost", ["flush", "answer"])
def test_a_flush_outlives_a_break(
    server: Running, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The server is gone before it has read the flush, or before it has said where it is."""
    gone: list[int] = []

    def cut(ear: Ear, real: Any, *arguments: Any) -> Any:
        if arguments[-1] is None or gone:
            return real(ear, *arguments)
        gone.append(1)
        raise Gone

    name = {"flush": "flush", "answer": "_message"}[lost]
    real = getattr(Ear, name)
    monkeypatch.setattr(Ear, name, lambda ear, *arguments: cut(ear, real, *arguments))

    async def talk() -> tuple[str, int]:
        async with AsyncClient(server.url, k=2).stream(audio=AUDIO) as stream:
            await stream.hear(speech([0.3, *WORDS[:5], 0.7])[0])
            async for _ in stream:
                if len(stream.heard.split()) == 5:
                    break
            await stream.flush()
            await stream.hear(speech([*WORDS[5:], 0.7])[0])
            await stream.finish()
            return stream.text, stream.connections

    text, connections = asyncio.run(talk())
    assert text == expected(server, WORDS[:5], WORDS[5:]) and connections == 2 and gone


# OpenAI's clients


@pytest.fixture
def openai(server: Running) -> Any:
    found = pytest.importorskip("openai", reason="the SDK of OpenAI is not installed")
    return found.OpenAI(
        api_key="none",
        base_url=f"{server.url}/v1",
        websocket_base_url=f"ws://127.0.0.1:{server.port}/v1",
        max_retries=0,
    )


SENTENCES = (WORDS[:9], WORDS[9:16])


def wave_file(rate: int = 44_100) -> bytes:
    """Two sentences."""
    samples = speech([0.3, *SENTENCES[0], 1.5, *SENTENCES[1], 0.4])[0]
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(pcm(Resampler(RATE, rate).add(samples, last=True)))
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_is_translated_for_the_sdk(server: Running, openai: Any) -> None:
    create, file = openai.audio.translations.create, ("talk.wav", wave_file())
    dial = {"k": 2}
    whole = expected(server, *SENTENCES)
    assert create(file=file, model="whisper-1", extra_body=dial).text == whole
    plain = create(file=file, model="toy", response_format="text", extra_body=dial)
    assert plain.strip() == whole
    full = create(file=file, model="toy", response_format="verbose_json", extra_body=dial)
    assert full.language == "english" and full.text == whole
    assert full.duration == pytest.approx(wave_seconds(wave_file()), abs=0.01)
    assert " ".join(each.text for each in full.segments) == whole
    assert full.segments[0].start == pytest.approx(0.3, abs=0.1)
    assert full.segments[0].end < full.segments[-1].start < full.segments[-1].end < full.duration
    srt = create(file=file, model="toy", response_format="srt", extra_body=dial)
    assert srt.startswith("1\n00:00:00,") and " --> " in srt
    shown = [line for line in srt.splitlines() if line and "-->" not in line]
    assert " ".join(line for line in shown if not line.isdecimal()) == whole
    vtt = create(file=file, model="toy", response_format="vtt", extra_body=dial)
    assert vtt.startswith("WEBVTT\n\n00:00:00.")
    assert server.hub.hearing.free == 2


def wave_seconds(data: bytes) -> float:
    with wave.open(io.BytesIO(data)) as file:
        return file.getnframes() / file.getframerate()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "change, status",
    [
        ({"file": ("a.mp3", b"no audio")}, 400),
        ({"file": ("a.wav", b"RIFF1234WAVE")}, 400),
        ({"model": "none"}, 400),
        ({"response_format": "docx"}, 400),
        ({"extra_body": {"k": -1}}, 400),
        ({"extra_body": {"k": 2, "lag": 2}}, 400),
        ({"file": ("a.wav", bytes(27_000_000))}, 413),
    ],
)
def test_a_file_that_cannot_be_translated(
    server: Running, openai: Any, change: dict[str, Any], status: int
) -> None:
    import openai as sdk

    with pytest.raises(sdk.APIError) as found:
        openai.audio.translations.create(**{"file": wave_file(), "model": "toy", **change})
    assert getattr(found.value, "status_code", status) == status  # or the connection was cut
    wait_for(lambda: server.hub.hearing.free == 2)


def test_realtime_audio_by_the_sdk(server: Running, openai: Any) -> None:
    samples = speech([*SENTENCES[0], 1.5, *SENTENCES[1], 0.4])[0]
    data = pcm(Resampler(RATE, 24_000).add(samples, last=True))
    with openai.realtime.translations.connect(model="toy") as session:
        assert session.recv().session.type == "translation"
        settings = {"input": {"transcription": {"model": "any"}}, "output": {"language": "en"}}
        session.send({"type": "session.update", "session": {"audio": settings}})
        assert session.recv().session.audio.output.language == "en"
        for place in range(0, len(data), 9_600):
            sent = base64.b64encode(data[place : place + 9_600]).decode()
            session.send({"type": "session.input_audio_buffer.append", "audio": sent})
        session.send({"type": "session.close"})
        found = []
        while not found or found[-1].type != "session.closed":
            found.append(session.recv())
    heard = [event for event in found if event.type == "session.input_transcript.delta"]
    assert "".join(event.delta for event in heard).split() == [*SENTENCES[0], *SENTENCES[1]]
    written = [event for event in found if event.type == "session.output_transcript.delta"]
    k = server.hub.models.find().system.trained_dial()
    assert "".join(event.delta for event in written).strip() == expected(server, *SENTENCES, k=k)
    times = [event.elapsed_ms for event in heard]
    assert times == sorted(times) and times[-1] < 1000 * len(samples) / RATE + 100


def test_realtime_audio_that_is_none(server: Running) -> None:
    with server.connect("/v1/realtime/translations") as socket:
        receive(socket)
        send(socket, "session.input_audio_buffer.append", audio="%%%")
        assert receive(socket)["error"]["code"] == "malformed"
        send(socket, "session.input_audio_buffer.append", audio="AAAA")
        send(socket, "session.input_text_buffer.append", text="ba ")
        assert "takes audio" in receive(socket)["error"]["message"]
        send(socket, "session.close")
        assert until(socket, "session.closed")

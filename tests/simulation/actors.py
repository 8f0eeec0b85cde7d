"""Clients, attackers and faults."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.simulation.scripts import Script
from tests.simulation.world import ADDRESS, Broken
from tests.streams import record
from waitinfo import AsyncClient, WaitinfoError
from waitinfo.listening.audio import RATE
from waitinfo.streaming.event import Event

if TYPE_CHECKING:
    from tests.simulation.scene import Scene

URL = "http://server"
WATCH = "ws://server/v1/watch?room="
LOST = (OSError, EOFError, TimeoutError, InvalidHandshake, ConnectionClosed)
RETRY = 60.0  # seconds after which a client that was refused tries again
TURNS = 5  # tries of a client that is refused because of others who only wait
ROUNDS = 20.0  # seconds in which some rounds are over, however slow
PATIENCE = 1e5  # seconds: the network and the server come back in the end


async def rest(scene: Scene) -> None:
    """Mostly no time, sometimes long enough for every limit of the server."""
    longest = scene.draw.choice([0.0, 0.0, 0.1, 1.0, 1.0, 40.0, 200.0])
    await asyncio.sleep(scene.draw.random() * longest)


class Speaker:
    """Says a script, maybe in a room, and checks what comes back."""

    def __init__(self, scene: Scene, script: Script, room: str | None, address: str) -> None:
        self.scene, self.script, self.room, self.address = scene, script, room, address
        self.heard: list[tuple] = []
        self.times: list[tuple[float, int]] = []  # when, and from which server
        self.started = self.ending = self.failed = False
        self.over = asyncio.Event()

    async def run(self) -> None:
        ADDRESS.set(self.address)
        try:
            await self._speak()
        finally:
            self.ending = True
            self.over.set()

    async def _speak(self) -> None:
        scene, script = self.scene, self.script
        await rest(scene)
        options: dict[str, Any] = {} if self.room is None else {"room": self.room}
        if script.audio:
            options["audio"] = {"rate": RATE, "language": "de"}
        client = AsyncClient(URL, patience=PATIENCE, segmenter=script.segmenter, **options)
        history = None if script.audio else 0
        async with client.stream(script.k, raw=True, history=history) as stream:
            listening = asyncio.ensure_future(self._listen(stream))
            try:
                if scene.hogged:
                    await self._get_a_place(stream)
                for piece in script.pieces:
                    await self._say(stream, piece)
                    if stream.connections:
                        self.started = True
                    await rest(scene)
                self.ending = True
                await stream.finish(wait=False)
                await listening
            except WaitinfoError as error:
                if not (scene.poisonings and "engine fails" in str(error)):
                    raise Broken(f"a speaker was told: {error}") from error
                self.failed = True
            finally:
                listening.cancel()
        if not self.failed and tuple(self.heard) != script.events:
            raise Broken("a stream ended early")
        if not self.failed and script.audio and stream.heard != script.text.strip():
            raise Broken(f"heard {stream.heard!r} and not {script.text!r}")

    async def _say(self, stream: Any, piece: str | bytes | None) -> None:
        if isinstance(piece, bytes):
            await stream.hear(piece)
        elif piece is None:
            await stream.flush(wait=False)
        else:
            await stream.push(piece, wait=False)

    async def _get_a_place(self, stream: Any) -> None:
        """Although one who says nothing takes all places that can be had."""
        for _ in range(TURNS):
            await asyncio.sleep(RETRY)
            if stream.connections:
                return
        raise Broken("one who says nothing keeps out all others")

    async def _listen(self, stream: Any) -> None:
        async for event in stream:
            if not self.script.text.startswith(stream.heard):
                raise Broken(f"heard {stream.heard!r} of {self.script.text!r}")
            self._hear(event)

    def _hear(self, event: Event) -> None:
        place = len(self.heard)
        self.heard += record([event])
        self.times.append((self.scene.world.now, len(self.scene.hubs)))
        if self.script.events[place : place + 1] != tuple(self.heard[place:]):
            raise Broken(f"event {place} is {self.heard[place]}")


class Watcher:
    """Follows a room until its speaker is done; drops what it has seen, as pages do."""

    def __init__(self, scene: Scene, speaker: Speaker) -> None:
        self.scene, self.speaker = scene, speaker
        self.words: dict[tuple[int, int], str] = {}
        self.last = (-1, 0)
        self.connections = 0
        self.early = False  # there before its speaker had said everything
        self.sent_away: list[tuple[float, int, set[tuple[int, int]]]] = []  # by a stopping server

    async def run(self) -> None:
        while not self.speaker.over.is_set():
            with suppress(*LOST):
                async with await connect(
                    f"ws://server/v1/watch?room={self.speaker.room}"
                ) as socket:
                    self.connections += 1
                    await self._follow(socket)
            await asyncio.sleep(1.0)

    async def _follow(self, socket: ClientConnection) -> None:
        listening = asyncio.ensure_future(self._listen(socket))
        over = asyncio.ensure_future(self.speaker.over.wait())
        try:
            await asyncio.wait([listening, over], return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait([listening], timeout=5.0)  # the last words are under way
            if listening.done():
                listening.result()
        finally:
            for task in (listening, over):
                task.cancel()
            await asyncio.gather(listening, over, return_exceptions=True)

    async def _listen(self, socket: ClientConnection) -> None:
        number, before = len(self.scene.hubs), (-1, 0)
        try:
            while True:
                self.early |= not self.speaker.ending
                message = json.loads(await socket.recv())
                before = (-1, 0) if message.get("again") else before
                for word in message["words"]:
                    place = word["sentence"], word["read"] - word["lag"]
                    if place <= before:
                        raise Broken("a watcher saw a word twice")
                    before = place
                    self._hear(place, word["text"])
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == 1012:
                self.sent_away.append((self.scene.world.now, number, set(self.words)))
            raise

    def check(self) -> None:
        """At the end: whether it has all words that it should have."""
        speaker, script = self.speaker, self.speaker.script
        cut = self.scene.stopped or self.scene.cuts or speaker.failed
        if self.early and self.connections == 1 and not cut and self.words != script.words:
            raise Broken("a watcher that was there all the time missed words")
        places = list(script.words)
        for when, server, words in self.sent_away:
            for shown, (heard, from_) in zip(script.shown, speaker.times, strict=False):
                if from_ == server and heard > when and not words.issuperset(places[:shown]):
                    raise Broken("a watcher was sent away before the last word of its speaker")

    def _hear(self, place: tuple[int, int], text: str) -> None:
        if place <= self.last:
            if self.words.get(place, text) != text:
                raise Broken("a watcher saw a word change")
            return
        self.last = place
        self.words[place] = text
        if self.speaker.script.words.get(place) != text:
            raise Broken(f"a watcher saw {text!r} at {place}, which the speaker did not say")


async def open_socket(scene: Scene, **start: Any) -> ClientConnection:
    socket = await connect("ws://server/v1/stream")
    if start:
        await socket.send(json.dumps({"type": "start", **start}))
    return socket


async def usurper(scene: Scene, speaker: Speaker) -> None:
    """Tries to speak in the room of another, until that one is done."""
    ADDRESS.set("10.6.6.6")
    while not (speaker.started or speaker.ending):
        await asyncio.sleep(0.2)
    for _ in range(5):
        if speaker.ending:
            return
        secret = scene.draw.choice([{}, {"secret": "o" * 16}])
        again = scene.draw.choice([{}, {"resume": {"position": 0}}])
        with suppress(*LOST):
            async with await open_socket(
                scene, room=speaker.room, k=1, **secret, **again
            ) as socket:
                answer = json.loads(await socket.recv())
                if answer["type"] == "started" and not (speaker.ending or scene.poisonings):
                    raise Broken("a room was taken over")
        await asyncio.sleep(scene.draw.random() * scene.draw.choice([0.1, 1.0, 100.0]))


async def pinger(scene: Scene) -> None:
    """Sends pings as long as they are taken, and reads nothing."""
    ADDRESS.set("10.6.6.7")
    with suppress(*LOST):
        async with await open_socket(scene, k=1) as socket:
            await socket.recv()
            socket.transport.pause_reading()
            frame = bytes([0x89, 0x80 + 100, 0, 0, 0, 0]) + b"x" * 100
            for _ in range(40):
                socket.transport.write(frame * 100)
                await asyncio.sleep(0.1)
            await rest(scene)


async def reader_of_nothing(scene: Scene) -> None:
    """Lets the server write, and does not read."""
    ADDRESS.set("10.6.6.8")
    with suppress(*LOST):
        async with await open_socket(scene, k=1, trace=True) as socket:
            socket.transport.pause_reading()
            for _ in range(20):
                await socket.send('{"type":"text","text":"ba be bi. "}')
                await socket.send('{"type":"stats"}')
                await asyncio.sleep(scene.draw.random())
            await asyncio.sleep(scene.draw.random() * 100)


async def silent(scene: Scene) -> None:
    """Takes a place and says nothing."""
    ADDRESS.set("10.6.6.9")
    with suppress(*LOST):
        async with await open_socket(scene, **scene.draw.choice([{}, {"k": 1}])) as socket:
            await asyncio.sleep(scene.draw.random() * 1000)
            socket.transport.abort()


async def hog(scene: Scene) -> None:
    """Opens a stream and says nothing; when it is closed, opens another one."""
    ADDRESS.set("10.6.6.12")
    while not all(speaker.over.is_set() for speaker in scene.speakers):
        with suppress(*LOST):
            async with await open_socket(scene, k=1) as socket:
                while True:
                    await socket.recv()
        await asyncio.sleep(5.0)


async def nonsense(scene: Scene) -> None:
    """Malformed messages, forged resumes; each gets an answer, and none breaks the server."""
    ADDRESS.set("10.6.6.10")
    draw = scene.draw
    with suppress(*LOST):
        async with await open_socket(scene) as socket:
            for _ in range(draw.randint(1, 6)):
                await socket.send(draw.choice(["{", "[]", '{"type":"dance"}', '{"type":"text"}']))
            path = [[draw.randint(2, 300), draw.randint(0, 9)] for _ in range(draw.randint(0, 9))]
            names = ("position", "sentence", "read", "begun", "kept", "shown")
            resume = {"path": path, **{name: draw.randint(0, 9) for name in names}}
            await socket.send(json.dumps({"type": "start", "k": 1, "resume": resume}))
            for text in ("ba be bi. ", "bo bu da de di do du " * 3):
                await socket.send(json.dumps({"type": "text", "text": text}))
            await socket.send('{"type":"end"}')
            try:
                while True:
                    await socket.recv()
            except ConnectionClosed as closed:
                if closed.rcvd is not None and closed.rcvd.code == 1011 and not scene.poisonings:
                    raise Broken(f"a forged resume broke the stream: {resume}") from None


async def mumbler(scene: Scene) -> None:
    """Forges where its voice continues, sends halves of samples, and leaves in the middle."""
    ADDRESS.set("10.6.6.13")
    draw = scene.draw
    again = draw.choice([{}, {"resume": {"sample": draw.randint(0, 9**9), "words": []}}])
    with suppress(*LOST):
        async with await open_socket(scene, k=1, audio={"rate": 8_000, **again}) as socket:
            for _ in range(draw.randint(1, 20)):
                await socket.send(draw.randbytes(draw.choice([0, 1, 63, 64, 1_001])))
                if draw.random() < 0.2:
                    await socket.send('{"type":"flush"}')
                await asyncio.sleep(draw.random() * draw.choice([0, 1]))
            await rest(scene)


async def impatient(scene: Scene) -> None:
    """Asks for a long translation, and leaves."""
    body = json.dumps({"q": "ba be bi bo bu " * 40, "source": "de", "target": "en"}).encode()
    asked, left = asyncio.Event(), asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not asked.is_set():
            asked.set()
            return {"type": "http.request", "body": body, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        """Nobody reads it."""

    await rest(scene)
    answering = asyncio.ensure_future(scene.ask("/translate", receive, send))
    await asyncio.sleep(scene.draw.random())
    left.set()
    await asyncio.wait([answering], timeout=ROUNDS)
    if not answering.done():
        answering.cancel()
        raise Broken("a translation goes on for nobody")
    answering.result()


async def cutter(scene: Scene) -> None:
    """Breaks connections, for both sides or for one."""
    world = scene.world
    while not world.calm:
        await asyncio.sleep(world.draw.random() * 3)
        links = [link for link in world.links if not link.client.lost and not link.server.lost]
        if links:
            sides = world.draw.choice([(True, True), (True, False), (False, True)])
            world.draw.choice(links).cut(*sides)


async def poisoner(scene: Scene) -> None:
    """Makes the engine fail for a stream."""
    await asyncio.sleep(scene.draw.random() * 5)
    engine = scene.engine
    if engine.used:
        scene.poisonings += 1
        engine.poisoned.add(scene.draw.choice(sorted(engine.used)))


async def operator(scene: Scene) -> None:
    """Stops the server politely, or kills it, and starts another one."""
    await asyncio.sleep(scene.draw.random() * scene.draw.choice([1, 10, 60]))
    if not scene.kills:
        await scene.hub.drain()
        scene.check_drained()
    scene.kill()
    await asyncio.sleep(scene.draw.random() * 5)
    scene.serve()


async def engine_killer(scene: Scene) -> None:
    """Kills the process of the engine, and starts another one."""
    await asyncio.sleep(scene.draw.random() * scene.draw.choice([1, 10, 60]))
    assert scene.apart is not None
    scene.cuts = True  # for all who were connected
    scene.apart.end()
    await asyncio.sleep(scene.draw.random() * 5)
    scene.apart.begin(scene.begin_engine())

"""A stream on a server, for event loops. It connects again by itself and loses nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NoReturn

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from waitinfo.client.connecting import Address, Interrupted
from waitinfo.client.pending import Pending, PendingAudio, as_pcm, pieces
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.text.files import join_surrogates

LOG = logging.getLogger("waitinfo.client")

VERSION = 1  # of the protocol
FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0  # seconds before connecting again
AHEAD = 64  # messages of audio that wait to be sent
KNOWN = frozenset(Event._fields)


def _event(values: dict[str, Any]) -> Event:
    """An event of the trace; a newer server may say more about it."""
    return Event(**{name: value for name, value in values.items() if name in KNOWN})


def _encode(message: dict[str, Any]) -> str:
    try:
        return json.dumps(message, default=float, allow_nan=False)  # numbers of NumPy and torch
    except (TypeError, ValueError) as error:
        raise WaitinfoError(f"cannot be sent to a server: {error}") from None


class AsyncRemoteStream:
    """One running translation on a server; opened by `AsyncClient.stream`."""

    def __init__(
        self,
        address: Address,
        start: dict[str, Any],
        raw: bool,
        patience: float,
        history: int | None,
    ) -> None:
        self._address, self._start, self._raw, self._patience = address, start, raw, patience
        if start.get("room") is not None:  # to come back to it, even if no answer came
            start.setdefault("secret", secrets.token_urlsafe(16))
        self.ticket: str | None = None  # to watch the room where the stream speaks
        self._paused = str(start.get("segmenter")).startswith("pause")
        self._pending = Pending()
        self._audio = PendingAudio() if start.get("audio") is not None else None
        self._source: deque[str] = deque(maxlen=history)  # words that were recognised
        self._open = ""
        self._unsent: deque[str | bytes] = deque()
        self._more = asyncio.Event()  # there is something to send
        self._changed = asyncio.Event()  # something has arrived
        self._events: deque[Event] = deque()
        self._words: deque[str] = deque(maxlen=history)
        self._last = self._done = 0  # ids of the newest text, and of the newest one worked off
        self._finished = self._over = False
        self._resting = False  # the server closed an idle stream: connect when there is text
        self._error: str | None = None
        self._vocabulary: str | None = None
        self._connections = self._heard = 0
        self._task = asyncio.ensure_future(self._run())

    # What a user does

    async def push(self, text: str, wait: bool = True, at: float | None = None) -> list[Event]:
        """Source text that has arrived; returns the events it caused.

        With `wait=False` it returns at once; iterate over the stream to get the events.
        `at` is when it was spoken, in seconds; pauses are measured by it, or else in real time.
        """
        if not text.isprintable():
            text = join_surrogates(text)
        message = {"type": "text", "text": text if self._raw else f"{text} "}
        if at is None and self._paused:
            at = time.monotonic()  # a replay must find the same pauses
        self._hand_in(message if at is None else {**message, "at": at})
        return await self._caused() if wait else []

    async def hear(self, samples: Any) -> None:
        """Audio of a stream opened with `audio`: 16-bit PCM, or numbers between -1 and 1.

        Waits while too much of it has not been sent. Iterate over the stream to get the events.
        """
        self._check()
        if self._audio is None:
            raise WaitinfoError("this stream takes text; open it with audio={'rate': …}")
        for piece in pieces(as_pcm(samples)):
            self._audio.sent(piece)
            self._unsent.append(piece)
            self._more.set()
            await self._until(lambda: len(self._unsent) < AHEAD or self._over)

    @property
    def heard(self) -> str:
        """The words recognised so far; of a long stream the last ones (see `history`)."""
        return "".join(self._source).strip()

    @property
    def open(self) -> str:
        """What seems to follow, and may change."""
        return self._open

    async def flush(self, wait: bool = True) -> list[Event]:
        """End the present sentence, whatever its text; returns its remaining events."""
        self._hand_in({"type": "flush"})
        return await self._caused() if wait else []

    async def finish(self, wait: bool = True) -> list[Event]:
        """No more text will come; returns the remaining events."""
        self._check()
        self._finished = True
        self._send({"type": "end"})
        if not wait:
            return []
        await self._until(lambda: self._over)
        return self._collect()

    @property
    def k(self) -> float | None:
        """The latency dial. A new value counts from the next decision on."""
        return self._start.get("k")

    @k.setter
    def k(self, value: float) -> None:
        self._send({"type": "set", "k": value})
        self._start |= {"k": value, "lag": None}  # for the next connection

    @property
    def text(self) -> str:
        """The words shown so far; of a long stream the last ones (see `history`)."""
        return "".join(self._words).lstrip()

    @property
    def connections(self) -> int:
        """How often the stream has connected: more than once, if it was interrupted."""
        return self._connections

    @property
    def secret(self) -> str | None:
        """That of the room where the stream speaks: another stream needs it to speak there."""
        return self._start.get("secret")

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events as they happen, until the stream has been finished or closed."""
        while True:
            await self._until(lambda: bool(self._events) or self._over)
            if not self._events:
                return
            for event in self._collect():
                yield event

    async def close(self) -> None:
        """Give the stream up, finished or not."""
        self._over = self._finished = True
        self._task.cancel()
        self._changed.set()
        with suppress(asyncio.CancelledError):
            await self._task

    async def __aenter__(self) -> AsyncRemoteStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check(self) -> None:
        if self._error is not None:
            raise WaitinfoError(self._error)
        if self._finished:
            raise WaitinfoError("this stream has been finished; open another")

    def _hand_in(self, message: dict[str, Any]) -> None:
        self._check()
        if self._audio is not None and message["type"] == "text":
            raise WaitinfoError("this stream takes audio, not text")
        message["id"] = self._last + 1
        self._send(message)
        self._last += 1
        if self._audio is None:
            self._pending.sent(message)
        else:
            self._pending.owed(message)

    def _send(self, message: dict[str, Any]) -> None:
        self._unsent.append(_encode(message))
        self._more.set()

    @property
    def _answered(self) -> bool:
        """Whether nothing that was handed in is on its way, or being worked on."""
        return self._done >= self._last and not self._finished

    async def _caused(self) -> list[Event]:
        wanted = self._last
        await self._until(lambda: self._done >= wanted or self._over)
        return self._collect()

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise WaitinfoError(self._error)

    def _collect(self) -> list[Event]:
        found = list(self._events)
        self._events.clear()
        return found

    # Connections

    async def _run(self) -> None:
        """Connect, and connect again, until the stream is over."""
        wait, failing_since = FIRST_WAIT, None
        while not self._over:
            if self._resting and self._answered:  # text may have come since it began to rest
                await self._more.wait()
            before = self._heard
            try:
                await self._converse()
                failing_since, wait = None, FIRST_WAIT
            except Interrupted as interruption:
                now = time.monotonic()
                if failing_since is None and not self._heard:
                    wanted = f"{self._address.shown}: {interruption}"
                    LOG.warning("%s; trying for %g seconds", wanted, self._patience)
                if self._heard > before or failing_since is None:
                    failing_since, wait = now, FIRST_WAIT
                if now - failing_since > self._patience:
                    self._fail(f"{self._address.shown}: {interruption}")
                    return
                pause = max(wait * random.uniform(0.5, 1.0), min(interruption.wait or 0.0, 60.0))
                await asyncio.sleep(min(pause, max(0.05, failing_since + self._patience - now)))
                wait = min(2 * wait, LONGEST_WAIT)
            except WaitinfoError as error:
                self._fail(str(error))
                return
            except Exception as error:  # a task that dies in silence would leave callers waiting
                self._fail(f"{type(error).__name__}: {error}")
                return

    def _fail(self, why: str) -> None:
        self._error, self._over = why, True
        self._changed.set()

    async def _converse(self) -> None:
        """One connection, until it ends."""
        async with await self._address.connect() as socket:
            try:
                opening = self._opening()
                await socket.send(_encode(opening))
                while not self._accept(json.loads(await socket.recv())):
                    """The server has more to say before it starts."""
                self._queue_again(opening)
                await self._both(socket)
            except ConnectionClosed as closed:
                raise Interrupted(f"the connection was closed ({closed})") from None

    def _opening(self) -> dict[str, Any]:
        start = {"type": "start", "version": VERSION, "trace": True, **self._start}
        if self._vocabulary is not None:
            start["resume"] = self._pending.resume(self._vocabulary)
        if self._audio is not None and self._audio.replay is not None:
            start["audio"] = {**start["audio"], "resume": self._audio.replay}
        return start

    def _accept(self, answer: dict[str, Any]) -> bool:
        """Take an answer to the start; whether the stream has been started."""
        if answer["type"] == "error":
            self._refused(answer)
        if answer["type"] == "closing":
            return False
        if answer["type"] == "ended":
            raise Interrupted(f"the server ended the stream ({answer['reason']})")
        if answer["type"] != "started":
            raise WaitinfoError(f"{self._address.shown}: not a server of waitinfo")
        self._vocabulary = answer["vocabulary"]
        self._start |= {"model": answer["model"], "system": answer["system"]}
        self.ticket = answer.get("ticket")
        self._connections += 1
        self._resting = False
        return True

    def _refused(self, error: dict[str, Any]) -> NoReturn:
        """The server starts no stream, or ends it: for good, or until later."""
        if error.get("code") in ("full", "start", "voice"):
            raise Interrupted(error["message"], error.get("retry_after"))
        raise WaitinfoError(error["message"])

    def _queue_again(self, opening: dict[str, Any]) -> None:
        """Everything that is not done with, and a mark that is answered when it is."""
        self._unsent.clear()
        if self.k != opening.get("k"):  # it was turned meanwhile
            self._send({"type": "set", "k": self.k})
        for item in self._pending.again():
            self._send(item)
        self._send({"type": "text", "text": "", "id": self._last})
        if self._audio is not None:
            self._unsent.extend(pieces(self._audio.rest))
        if self._finished:
            self._send({"type": "end"})

    async def _both(self, socket: ClientConnection) -> None:
        receiving = asyncio.ensure_future(self._receiving(socket))
        sending = asyncio.ensure_future(self._sending(socket))
        try:
            await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            await receiving
        finally:
            for task in (receiving, sending):
                task.cancel()
            await asyncio.gather(receiving, sending, return_exceptions=True)

    async def _sending(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):  # what was received last says why
            while True:
                while self._unsent:
                    await socket.send(self._unsent[0])
                    self._unsent.popleft()
                    self._changed.set()
                self._more.clear()
                await self._more.wait()

    async def _receiving(self, socket: ClientConnection) -> None:
        while not self._over:
            self._handle(json.loads(await socket.recv()))
            self._changed.set()
            if self._resting:
                return

    def _handle(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "words":
                self._heard += 1
                self._pending.received(message)
                self._events.extend(map(_event, message.get("trace") or ()))
                self._words.extend(word["text"] for word in message["words"])
            case "heard" if self._audio is not None:
                self._heard += 1
                self._hear(message, self._audio)
            case "idle":
                self._heard += 1
                self._done = message["id"]
                self._pending.settled(self._done)
            case "error" if message["code"] != "rate":
                self._refused(message)
            case "ended":
                self._ended(message["reason"])

    def _hear(self, message: dict[str, Any], audio: PendingAudio) -> None:
        """Recognised words are as if they had been sent as text."""
        audio.received(message)
        self._open = " ".join(word["text"] for word in message["open"])
        if message["text"]:
            at = message["words"][-1]["end"]
            self._source.append(message["text"])
            self._pending.sent({"type": "text", "text": message["text"], "at": at})
        if message["pause"]:
            self._pending.sent({"type": "flush"})
        self._pending.settled(message.get("id"))

    def _ended(self, reason: str) -> None:
        if reason == "end":
            self._over = True
        elif reason == "replaced":
            raise WaitinfoError("another stream with the same secret speaks in the room")
        elif reason == "idle" and self._answered:
            self._resting = True
            self._more.clear()
        else:  # idle, too, if text or the end was on its way to the server when it closed
            raise Interrupted(f"the server ended the stream ({reason})")

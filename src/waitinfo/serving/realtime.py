"""WebSocket /v1/realtime/translations: the events of OpenAI's realtime translation.

Besides audio, it takes text: `session.input_text_buffer.append`.
"""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import suppress
from itertools import count
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, WebSocket
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
)

from waitinfo.errors import WaitinfoError
from waitinfo.serving.connection import Connection, Live
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import (
    AudioStart,
    Malformed,
    Name,
    Words,
    explain,
    parse_json,
)
from waitinfo.serving.wire import Gone, Stalled

router = APIRouter()

RATE = 24_000  # samples a second, as OpenAI has it


@router.websocket("/v1/realtime/translations")
async def translations(socket: WebSocket) -> None:
    await RealtimeConnection.serve(socket, socket.app.state.hub)


class ClientEvent(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    event_id: str | None = Field(None, max_length=512)


class OutputSettings(ClientEvent):
    language: Name | None = None


class InputSettings(ClientEvent):
    transcription: dict[str, Any] | None = None  # whose words are sent, too, if it is given


class AudioSettings(ClientEvent):
    input: InputSettings | None = None
    output: OutputSettings | None = None


class SessionSettings(ClientEvent):
    audio: AudioSettings | None = None
    k: FiniteFloat | None = None  # ours: the latency dial


class Update(ClientEvent):
    type: Literal["session.update"]
    session: SessionSettings


class Append(ClientEvent):
    type: Literal["session.input_text_buffer.append"]
    text: str


class AppendAudio(ClientEvent):
    type: Literal["session.input_audio_buffer.append"]
    audio: str  # PCM16, 24 kHz, mono, in base64


class Close(ClientEvent):
    type: Literal["session.close"]


_events: TypeAdapter[Any] = TypeAdapter(
    Annotated[Update | Append | AppendAudio | Close, Field(discriminator="type")]
)


def parse(value: Any) -> Update | Append | AppendAudio | Close:
    """An event of a client."""
    try:
        return _events.validate_python(value)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise Malformed(explain(error)) from None


class RealtimeConnection(Connection):
    subprotocols: ClassVar[tuple[str, ...]] = ("realtime",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ids = count(1)
        self._cause: str | None = None  # id of the event being handled
        self._transcribes = False
        self._audible = asyncio.Event()  # audio has come

    async def session(self) -> str:
        served = self.hub.models.find(self.socket.query_params.get("model"))
        self.hub.check_free(served)
        live = self.live = Live.open(self.hub, served, self.client)
        await self._send("session.created", session=self._describe(live))
        await self.both(live, self._write(live), self._hear(live))
        return "end"

    def _describe(self, live: Live) -> dict[str, Any]:
        languages = live.served.languages
        return {
            "id": self.name,
            "type": "translation",
            "model": live.served.name,
            "audio": {
                "input": {"transcription": {"model": self.name} if self._transcribes else None},
                "output": {"language": languages.target},
            },
            "expires_at": round(time.time() + self.hub.settings.idle),  # unless something comes
            "k": live.k,
        }

    async def message(self, live: Live, text: str) -> float:
        value = parse_json(text)
        self._cause = _event_id(value)
        match parse(value):
            case Append(text=words):
                if self.ear is not None:
                    raise WaitinfoError("this session takes audio; open another one for text")
                return await live.text(words)
            case AppendAudio(audio=data):
                return await self._append(live, data)
            case Update(session=session):
                self._update(live, session)
                await self._send("session.updated", session=self._describe(live))
            case Close():
                await self.end_input(live)
        return 0.0

    async def _append(self, live: Live, audio: str) -> float:
        try:
            data = base64.b64decode(audio, validate=True)
        except ValueError:
            raise Malformed("audio: must be base64") from None
        ear = self.ear
        if ear is None:
            start = AudioStart(rate=RATE, language=None, resume=None)
            ear = await self.open_ear(live, start)
            self._audible.set()
        live.stir()
        return await ear.take(data)

    async def _hear(self, live: Live) -> None:
        await self._audible.wait()
        assert self.ear is not None
        async for message in self.ear.messages(live):
            if message.text and self._transcribes:
                elapsed = round(1000 * message.position)
                fields = {"delta": message.text, "elapsed_ms": elapsed}
                await self._send("session.input_transcript.delta", **fields)

    def _update(self, live: Live, session: SessionSettings) -> None:
        language = session.audio and session.audio.output and session.audio.output.language
        if language and language != live.served.languages.target:
            raise WaitinfoError(_other_language(live.served))
        live.set(session.k, None)
        if session.audio and session.audio.input:
            self._transcribes = session.audio.input.transcription is not None

    async def _write(self, live: Live) -> None:
        async for found in live.updates():
            if isinstance(found, Words) and found.text:
                elapsed = round(1000 * found.time)
                fields = {"delta": found.text, "elapsed_ms": elapsed}
                await self._send("session.output_transcript.delta", **fields)

    async def _send(self, kind: str, **fields: Any) -> None:
        await self.wire.send({"type": kind, "event_id": f"event_{next(self._ids)}", **fields})

    async def error(self, code: str, message: str, retry: float | None, fatal: bool) -> None:
        wrong = code in ("malformed", "refused", "rate")
        details = {
            "type": "invalid_request_error" if wrong else "server_error",
            "code": code,
            "message": message,
            "param": None,
            "event_id": self._cause,
        }
        await self._send("error", error=details)

    async def farewell(self, reason: str) -> None:
        if reason == "full":
            await self.error("full", self.refused, None, fatal=True)
        await self._send("session.closed")

    async def announce(self, seconds: float) -> None:
        with suppress(Gone, Stalled):
            await self.error("closing", f"the server stops in {seconds:g} seconds", None, False)


def _event_id(value: Any) -> str | None:
    """What the client calls an event, if that can be sent back."""
    try:
        return ClientEvent.model_validate(value).event_id
    except ValidationError:
        return None


def _other_language(served: Served) -> str:
    return f"audio.output.language: {served.name} translates into {served.languages.target}"

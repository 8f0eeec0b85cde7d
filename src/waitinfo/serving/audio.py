"""POST /v1/audio/translations, as OpenAI's clients call it: a file in, text or subtitles out."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterable
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from waitinfo.listening.audio import RATE, Samples, read_audio
from waitinfo.listening.captions import Sentence, subtitles
from waitinfo.listening.spoken import SpokenText
from waitinfo.serving.bodies import read_body, sections, while_wanted
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.hearing import Ear, Flushed
from waitinfo.serving.hub import Hub
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import AudioStart, Malformed, Name, explain
from waitinfo.serving.rest import ERRORS, NAMES
from waitinfo.streaming.event import Event

router = APIRouter()

THEIRS = ("whisper-", "gpt-")  # models of OpenAI: the one into English takes their place
DECODED = 5.0  # seconds of audio that are decoded at a time


class AudioRequest(BaseModel):
    """As OpenAI has it; `k` and `lag` are ours. `prompt` and `temperature` have no effect."""

    model_config = ConfigDict(extra="ignore")

    file: bytes = Field(description="WAV, FLAC, MP3 or Ogg.")
    model: Name = Field(description="Name of a model; whisper-1 means the one into English.")
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    k: FiniteFloat | None = Field(None, description="The latency dial.")
    lag: FiniteFloat | None = Field(None, description="Hold this lag (words) instead of a dial.")


SCHEMA = {"schema": {"$ref": "#/components/schemas/AudioRequest"}}


@router.post(
    "/v1/audio/translations",
    responses=ERRORS,
    response_model=None,
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": SCHEMA}}},
)
async def translations(request: Request) -> Response:
    """Translate what is said in a file."""
    hub: Hub = request.app.state.hub
    client = hub.admit(request)
    hub.hearing.reserve(client)  # before the body, so that no more of them wait than are heard
    try:
        async with read_body(request, hub, hub.settings.audio_size) as body:
            kind = request.headers.get("content-type", "")
            asked = await asyncio.to_thread(_read, kind, body)  # of up to many megabytes
            return await while_wanted(request, _translation(hub, client, asked))
    finally:
        hub.hearing.release(client)


def _read(kind: str, body: bytes) -> AudioRequest:
    kind, _, parameters = kind.partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise Refusal(415, "type", "send multipart/form-data with a file")
    try:
        fields = {
            name: data if name == "file" else data.decode("utf-8")
            for name, data in sections(parameters, body)
        }
        return AudioRequest.model_validate(fields)
    except ValidationError as error:
        raise Malformed(explain(error)) from None
    except UnicodeDecodeError:
        raise Malformed("the fields of the form must be UTF-8") from None


def _choose(hub: Hub, name: str) -> Served:
    if name.startswith(THEIRS) and name not in {served.name for served in hub.models}:
        return hub.models.between("auto", "en") or hub.models.find()
    return hub.models.find(name)


async def _translation(hub: Hub, client: Caller, asked: AudioRequest) -> Response:
    served = _choose(hub, asked.model)
    hub.check_free(served)
    if (wait := client.spend(0)) > 0:
        raise Refusal(429, "rate", "this key has used up its words per minute", wait)
    start = AudioStart(rate=RATE, language=None, resume=None)
    async with client.streaming(1, hub.settings.retry):
        ear = await hub.hearing.open(served.languages, start, live=False)
        try:
            talk = AudioTranslation(served, client, asked)
            async with asyncio.TaskGroup() as group:
                group.create_task(talk.feed(ear, asked.file, hub.settings.audio_seconds))
                sentences = await talk.translate(ear)
        finally:
            ear.close()
    return answer(asked.response_format, sentences, talk.seconds, served.languages.target)


class AudioTranslation:
    """What is said in one file, and its translation."""

    def __init__(self, served: Served, client: Caller, asked: AudioRequest) -> None:
        self.served, self.client, self.asked = served, client, asked
        self.seconds = 0.0
        self._text = SpokenText()
        self._sentences: list[Sentence] = []

    async def feed(self, ear: Ear, data: bytes, most: float) -> None:
        """Decode the file as fast as it is heard."""
        blocks = read_audio(io.BytesIO(data), "file", DECODED)
        while (samples := await asyncio.to_thread(_next, blocks)) is not None:
            self.seconds += len(samples) / RATE
            if self.seconds > most:
                raise Refusal(413, "size", f"a file may have {most:,.0f} seconds of audio")
            await ear.push(samples)
        await ear.end()

    async def translate(self, ear: Ear) -> list[Sentence]:
        async with self.served.open(self.asked.k, self.asked.lag) as stream:
            async for batch in ear.batches():
                for heard in () if isinstance(batch, Flushed) else batch:
                    for word in heard.words:
                        if text := self._text.give(word):
                            self.client.spend(1)
                            self._take(await stream.push(text, at=word.end))
                    if heard.pause:
                        self._take(await stream.flush())
            self._take(await stream.finish())
        return self._sentences + [Sentence(*each[1:4]) for each in self._text.end()]

    def _take(self, events: Iterable[Event]) -> None:
        told = self._text.told(events)
        self._sentences += [Sentence(*each[1:4]) for each in told if each.kind == "END"]


def _next(blocks: Any) -> Samples | None:
    found: Samples | None = next(blocks, None)
    return found


def answer(kind: str, sentences: list[Sentence], seconds: float, language: str | None) -> Response:
    """The translation in one of OpenAI's formats."""
    sentences = [each for each in sentences if each.text]
    text = " ".join(each.text for each in sentences)
    if kind in ("srt", "vtt"):
        return PlainTextResponse(subtitles(sentences, kind))
    if kind == "text":
        return PlainTextResponse(f"{text}\n")
    if kind == "json":
        return JSONResponse({"text": text})
    segments = [
        {"id": number, "start": round(each.start, 3), "end": round(each.end, 3), "text": each.text}
        for number, each in enumerate(sentences)
    ]
    found = {"task": "translate", "language": NAMES.get(language or "", language or "").lower(),
             "duration": round(seconds, 3), "text": text, "segments": segments}  # fmt: skip
    return JSONResponse(found)

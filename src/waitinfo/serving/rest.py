"""POST /translate and GET /languages, as LibreTranslate has them; GET /v1/models is ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from waitinfo.errors import WaitinfoError
from waitinfo.serving.bodies import (
    KINDS,
    SMALL,
    on_thread,
    read_body,
    read_fields,
    turn,
    while_wanted,
)
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.html import UNIT, Anchor, Document
from waitinfo.serving.hub import Hub
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import Name
from waitinfo.streaming.event import Event
from waitinfo.text.identification import base_code, likely_languages
from waitinfo.text.scripts import PILE, UNSPACED, longest_word, piles_marks

router = APIRouter()

SLICE = 1 << 16  # characters counted at a time
PUSHED = 300  # characters of a line that a round takes in
GUESSED = 10_000  # characters that tell the language of a text
APART = re.compile(r"[\x00-\x1f\x7f-\x9f]+")  # control characters separate words
LINE = re.compile(r"[^\s\x00-\x1f\x7f-\x9f][^\n]*")  # from its first letter on

NAMES = {
    "ar": "Arabic", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek", "en": "English",
    "es": "Spanish", "et": "Estonian", "fi": "Finnish", "fr": "French", "he": "Hebrew",
    "hi": "Hindi", "hu": "Hungarian", "id": "Indonesian", "it": "Italian", "ja": "Japanese",
    "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "nl": "Dutch", "no": "Norwegian",
    "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak",
    "sl": "Slovenian", "sv": "Swedish", "th": "Thai", "tr": "Turkish", "uk": "Ukrainian",
    "vi": "Vietnamese", "zh": "Chinese",
}  # fmt: skip


class TranslateRequest(BaseModel):
    """As LibreTranslate has it; `model` and `k` are ours."""

    model_config = ConfigDict(extra="ignore")

    q: str | list[str] = Field(description="A text, or a list of texts.")
    source: Name = Field(description="Language code, or auto.")
    target: Name = Field(description="Language code.")
    format: Literal["text", "html"] = "text"
    api_key: str | None = None
    model: Name | None = Field(None, description="Name of a model, instead of its languages.")
    k: FiniteFloat | None = Field(None, description="The latency dial.")
    alternatives: int = Field(0, description="Other translations: there are none.")


class DetectRequest(BaseModel):
    """As LibreTranslate has it."""

    model_config = ConfigDict(extra="ignore")

    q: str | list[str] = Field(description="A text.")
    api_key: str | None = None


class Guess(BaseModel):
    confidence: float = Field(description="From 0 to 100.")
    language: str


class TranslateResponse(BaseModel):
    translatedText: str | list[str]
    detectedLanguage: Guess | list[Guess] | None = None
    alternatives: list[Any] | None = None


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class ErrorResponse(BaseModel):
    error: str


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "The request cannot be understood."},
    401: {"model": ErrorResponse, "description": "The key is missing or wrong."},
    403: {"model": ErrorResponse, "description": "A page of this origin may not ask."},
    413: {"model": ErrorResponse, "description": "The request is too large."},
    415: {"model": ErrorResponse, "description": "The body is neither JSON nor a form."},
    429: {"model": ErrorResponse, "description": "The key has used up its words or streams."},
    503: {"model": ErrorResponse, "description": "All streams are in use; see Retry-After."},
}


def _body_of(model: str) -> dict[str, Any]:
    """How a body is described that is read by hand."""
    schema = {"schema": {"$ref": f"#/components/schemas/{model}"}}
    return {"requestBody": {"required": True, "content": dict.fromkeys(KINDS, schema)}}


@router.post(
    "/translate",
    response_model=TranslateResponse,
    response_model_exclude_none=True,
    responses=ERRORS,
    openapi_extra=_body_of("TranslateRequest"),
)
async def translate(request: Request) -> TranslateResponse:
    """Translate a text or a list of texts."""
    hub: Hub = request.app.state.hub
    async with read_body(request, hub, hub.settings.request_size) as body:
        return await while_wanted(request, _translation(hub, request, body))


async def _translation(hub: Hub, request: Request, body: bytes) -> TranslateResponse:
    kind = request.headers.get("content-type", "")
    asked = await read_fields(hub, kind, body, TranslateRequest)
    client = hub.admit(request, asked.api_key)
    served = _choose(hub, asked)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    served.translator.check_dial(asked.k)
    found = await Work(hub, client, served, texts, asked).run()
    several = isinstance(asked.q, list)
    guesses: list[Guess] = []
    if asked.source == "auto":  # the model's own, with how likely that is
        async with turn(hub, len(body)):
            guesses = [await on_thread(_own, served, text) for text in texts]
    others: list[Any] = [[] for _ in texts]
    return TranslateResponse(
        translatedText=found if several else found[0],
        detectedLanguage=(guesses if several else guesses[0]) if guesses else None,
        alternatives=(others if several else []) if asked.alternatives else None,
    )


@router.get("/languages", responses={401: ERRORS[401]})
async def languages(request: Request) -> list[Language]:
    """The languages that are translated, and into which."""
    hub: Hub = request.app.state.hub
    found: dict[str, dict[str, None]] = {}  # several models may have one direction
    for served in hub.models.main:
        codes = served.languages
        if codes.source and codes.target:
            found.setdefault(codes.source, {})[codes.target] = None
            found.setdefault(codes.target, {})
    return [
        Language(code=code, name=NAMES.get(code.split("-")[0], code), targets=list(targets))
        for code, targets in found.items()
    ]


@router.post("/detect", responses=ERRORS, openapi_extra=_body_of("DetectRequest"))
async def detect(request: Request) -> list[Guess]:
    """The languages that a text may be in, the likeliest first."""
    hub: Hub = request.app.state.hub
    kind = request.headers.get("content-type", "")
    async with read_body(request, hub, hub.settings.request_size) as body:
        asked = await read_fields(hub, kind, body, DetectRequest)
    hub.admit(request, asked.api_key)
    text = asked.q if isinstance(asked.q, str) else "\n".join(asked.q)
    found = await on_thread(_guesses, hub, text)
    return found or [Guess(confidence=0, language=hub.models.find().languages.source or "en")]


def _guesses(hub: Hub, text: str) -> list[Guess]:
    """The languages of this server that a text may be in."""
    codes = {
        code for served in hub.models for code in (served.languages.source, served.languages.target)
    }
    return [
        Guess(confidence=_percent(share), language=code)
        for code, share in likely_languages(text[:GUESSED]).items()
        if code in codes
    ]


def _own(served: Served, text: str) -> Guess:
    """A model's source language as a guess."""
    code = served.languages.source or "en"
    share = likely_languages(text[:GUESSED]).get(base_code(code) or code, 0.0)
    return Guess(confidence=_percent(share), language=code)


def _percent(share: float) -> float:
    return round(100 * share, 1)


@router.get("/frontend/settings")
async def frontend(request: Request) -> dict[str, Any]:
    """What LibreTranslate's clients ask before they translate."""
    hub: Hub = request.app.state.hub
    codes = hub.models.find().languages
    names = {
        side: {"code": code, "name": NAMES.get((code or "").split("-")[0], code)}
        for side, code in (("source", codes.source), ("target", codes.target))
    }
    return {
        "apiKeys": len(hub.keys) > 0,
        "keyRequired": len(hub.keys) > 0,
        "charLimit": hub.settings.request_size,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "suggestions": False,
        "frontendTimeout": 500,
        "language": names,
    }


@router.post("/suggest", status_code=403)
@router.post("/translate_file", status_code=403)
async def not_offered() -> ErrorResponse:
    """LibreTranslate has files and suggestions; this server has not."""
    return ErrorResponse(error="this server translates text and HTML; files and suggestions: no")


@router.get("/v1/models")
async def models(request: Request) -> list[dict[str, Any]]:
    """Models, systems, languages and dials."""
    hub: Hub = request.app.state.hub
    hub.check_private(request)
    return [{**served.describe(), "voices": hub.hearing.limit} for served in hub.models]


def _choose(hub: Hub, asked: TranslateRequest) -> Served:
    if asked.model is not None:
        return hub.models.find(asked.model)
    served = hub.models.between(asked.source, asked.target)
    if served is None:
        raise WaitinfoError("no model translates between these languages; see /languages")
    return served


# Translating


class Work:
    """The texts of one request while they are translated."""

    def __init__(
        self, hub: Hub, client: Caller, served: Served, texts: list[str], asked: TranslateRequest
    ) -> None:
        self.hub, self.client, self.served, self.k = hub, client, served, asked.k
        self.texts, self.html = texts, asked.format == "html"
        self.size = sum(map(len, texts))
        self.words = 0

    async def run(self) -> list[str]:
        if self.html:
            return await self._documents()
        async with turn(self.hub, self.size):
            for text in self.texts:
                await self._count(text)
            lines = [line[0].rstrip() for text in self.texts for line in LINE.finditer(text)]
        self._spend()
        done = iter(await self._translate(lines))

        def replace(line: re.Match[str]) -> str:
            return next(done)[0] + line[0][len(line[0].rstrip()) :]

        return [LINE.sub(replace, text) for text in self.texts]

    async def _documents(self) -> list[str]:
        documents = [Document() for _ in self.texts]
        async with turn(self.hub, self.size):
            for document, text in zip(documents, self.texts, strict=True):
                for _ in document.read(text):
                    await asyncio.sleep(0)
            passages = [passage.text for found in documents for passage in found.passages]
            for passage in passages:
                await self._count(passage)
        self._spend()
        done = iter(await self._translate(passages))
        found: list[str] = []
        async with turn(self.hub, self.size):
            for document in documents:
                if self.size < SMALL:
                    found.append("".join(document.fill(done)))
                    await asyncio.sleep(0)
                else:  # a single passage may have thousands of elements
                    found.append(await on_thread("".join, document.fill(done)))
        return found

    async def _count(self, text: str) -> None:
        """Count the words of a text; raise if they are too many or too long."""
        settings = self.hub.settings
        for at in range(0, len(text), SLICE):
            part = APART.sub(" ", text[at : at + SLICE])
            cut = at > 0 and not part[0].isspace() and not text[at - 1].isspace()
            self.words += len(part.split()) - cut + len(UNSPACED.findall(part))
            if self.words > settings.words:
                raise Refusal(413, "size", f"a request may have {settings.words:,} words")
            if piles_marks(text[max(0, at - PILE) : at + SLICE]):
                raise Refusal(413, "size", f"a letter may have {PILE} marks")
            if at:
                await asyncio.sleep(0)
        if longest_word(text) > settings.word:
            raise Refusal(413, "size", f"a word may have {settings.word:,} characters")

    def _spend(self) -> None:
        if (wait := self.client.spend(0)) > 0:
            raise Refusal(429, "rate", "this key has used up its words per minute", wait)
        self.client.spend(self.words)

    async def _translate(self, lines: list[str]) -> list[tuple[str, list[Anchor]]]:
        """Translate lines on as many streams as are free, leaving some for live streams."""
        found: list[tuple[str, list[Anchor]]] = [("", [])] * len(lines)
        waiting = iter(range(len(lines)))
        count = min(len(lines), max(1, self.served.free // 2), max(1, self.client.left))

        async def work() -> None:
            for n in waiting:
                found[n] = await self._line(lines[n])

        taken = self.client.streaming(count, self.hub.settings.retry)
        async with taken, asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(work())
        return found

    async def _line(self, line: str) -> tuple[str, list[Anchor]]:
        """The translation of a line, and how far both were at the end of each sentence."""
        self.hub.check_free(self.served)
        heard = LineTranslation()
        async with self.served.open(self.k) as stream:
            for at in range(0, len(line), PUSHED):
                heard.add(await stream.push(line[at : at + PUSHED]))
            heard.add(await stream.finish())
        return heard.text.lstrip(), heard.anchors


class LineTranslation:
    """What came of a line; the events themselves would take much more memory."""

    def __init__(self) -> None:
        self.text = ""
        self.anchors: list[Anchor] = [(0, 0)]
        self._sentence = 0

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            read, written = self.anchors[-1]
            if event.sentence > self._sentence:
                self._sentence = event.sentence
                self.anchors.append((read, written))
            read += len(UNIT.findall(event.word or "")) if event.kind == "READ" else 0
            self.anchors[-1] = read, written + len(UNIT.findall(event.text))
            self.text += event.text

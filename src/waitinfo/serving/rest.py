"""POST /translate and GET /languages, as LibreTranslate has them; GET /v1/models is ours."""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Client, Refusal
from waitinfo.serving.html import Document
from waitinfo.serving.hub import Hub
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import Malformed, explain, parse_json
from waitinfo.streaming.event import shown_text
from waitinfo.text.files import normalise

router = APIRouter()

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
    source: str = Field(description="Language code, or auto.")
    target: str = Field(description="Language code.")
    format: Literal["text", "html"] = "text"
    api_key: str | None = None
    model: str | None = Field(None, description="Name of a model, instead of its languages.")
    k: FiniteFloat | None = Field(None, description="The latency dial.")


class TranslateResponse(BaseModel):
    translatedText: str | list[str]
    detectedLanguage: dict[str, Any] | list[dict[str, Any]] | None = None


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
REQUEST_SCHEMA = {"$ref": "#/components/schemas/TranslateRequest"}
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": REQUEST_SCHEMA},
            "application/x-www-form-urlencoded": {"schema": REQUEST_SCHEMA},
        },
    }
}


@router.post(
    "/translate",
    response_model=TranslateResponse,
    response_model_exclude_none=True,
    responses=ERRORS,
    openapi_extra=BODY,
)
async def translate(request: Request) -> TranslateResponse:
    """Translate a text or a list of texts."""
    hub: Hub = request.app.state.hub
    asked = await _read(request, hub.settings.request_size)
    client = hub.admit(request.headers, request.query_params, asked.api_key)
    served = _choose(hub, asked)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    if len(texts) > hub.settings.texts:
        raise Refusal(413, "size", f"q: a request may have {hub.settings.texts} texts")
    served.translator.check_dial(asked.k)
    client.enter(hub.settings.retry)
    try:
        found = await _translate(hub, client, served, texts, asked)
    finally:
        client.leave()
    assumed = {"confidence": 0, "language": served.languages.source}
    several = isinstance(asked.q, list)
    detected: Any = None
    if asked.source == "auto":
        detected = [assumed] * len(texts) if several else assumed
    return TranslateResponse(
        translatedText=found if several else found[0], detectedLanguage=detected
    )


@router.get("/languages", responses={401: ERRORS[401]})
async def languages(request: Request) -> list[Language]:
    """The languages that are translated, and into which."""
    hub: Hub = request.app.state.hub
    found: dict[str, list[str]] = {}
    for served in hub.models.main:
        codes = served.languages
        if codes.source and codes.target:
            found.setdefault(codes.source, []).append(codes.target)
            found.setdefault(codes.target, [])
    return [
        Language(code=code, name=NAMES.get(code.split("-")[0], code), targets=targets)
        for code, targets in found.items()
    ]


@router.get("/v1/models")
async def models(request: Request) -> list[dict[str, Any]]:
    """Models, systems, languages and dials."""
    hub: Hub = request.app.state.hub
    return [served.describe() for served in hub.models]


async def _read(request: Request, largest: int) -> TranslateRequest:
    """The body of a request: JSON or a form."""
    body = await _body(request, largest)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    try:
        text = body.decode("utf-8")
        if kind == "application/json":
            values = parse_json(text)
        elif kind in ("application/x-www-form-urlencoded", ""):
            form = parse_qs(text, keep_blank_values=True, max_num_fields=1000)
            values = {name: given[-1] for name, given in form.items()}
            values |= {"q": form["q"]} if len(form.get("q", ())) > 1 else {}
        else:
            raise Refusal(415, "type", "send JSON or a form")
        return TranslateRequest.model_validate(values)
    except ValidationError as error:
        raise Malformed(explain(error)) from None
    except ValueError:
        raise Malformed("the body cannot be read; send UTF-8") from None


async def _body(request: Request, largest: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > largest:
            raise Refusal(413, "size", f"a request may have {largest:,} bytes")
    return bytes(body)


def _choose(hub: Hub, asked: TranslateRequest) -> Served:
    if asked.model is not None:
        return hub.models.find(asked.model)
    served = hub.models.between(asked.source, asked.target)
    if served is None:
        raise WaitinfoError("no model translates between these languages; see /languages")
    return served


async def _translate(
    hub: Hub, client: Client, served: Served, texts: list[str], asked: TranslateRequest
) -> list[str]:
    """Translate texts, each by its lines."""
    documents: list[Document] | None = None
    if asked.format == "html":  # parsing may take long, and others wait for the event loop
        documents = await asyncio.to_thread(lambda: [Document(text) for text in texts])
    pieces = [piece for d in documents for piece in d.texts] if documents is not None else texts
    lines = [line for piece in pieces for line in piece.split("\n")]
    words = sum(len(line.split()) for line in lines)
    if words > hub.settings.words:
        raise Refusal(413, "size", f"a request may have {hub.settings.words:,} words")
    if (wait := client.spend(0)) > 0:
        raise Refusal(429, "rate", "this key has used up its words per minute", wait)
    client.spend(words)
    done = iter(await _lines(hub, served, lines, asked.k))
    filled = ["\n".join(next(done) for _ in piece.split("\n")) for piece in pieces]
    if documents is None:
        return filled
    rest = iter(filled)
    return [document.fill([next(rest) for _ in document.texts]) for document in documents]


async def _lines(hub: Hub, served: Served, lines: list[str], k: float | None) -> list[str]:
    """Translate lines on as many streams as are free, leaving some for live streams."""
    found = list(lines)
    waiting = iter([n for n, line in enumerate(lines) if normalise(line)])

    async def work() -> None:
        for n in waiting:
            found[n] = await _line(hub, served, lines[n], k)

    async with asyncio.TaskGroup() as group:
        for _ in range(max(1, served.free // 2)):
            group.create_task(work())
    return found


async def _line(hub: Hub, served: Served, line: str, k: float | None) -> str:
    """Translate a line, and keep the spaces around it."""
    if served.free <= 0:
        raise Refusal(503, "full", "all streams are in use", hub.settings.retry)
    before = line[: len(line) - len(line.lstrip())]
    async with served.open(k) as stream:
        events = [*await stream.push(line), *await stream.finish()]
    return before + shown_text(events) + line[len(line.rstrip()) :]

"""POST /translate and GET /languages, as LibreTranslate has them; GET /v1/models is ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.requests import ClientDisconnect

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Client, Refusal
from waitinfo.serving.html import UNIT, Anchor, Document
from waitinfo.serving.hub import Hub
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import Malformed, explain, parse_json
from waitinfo.serving.wire import Gone
from waitinfo.streaming.event import Event
from waitinfo.text.scripts import UNSPACED, longest_word

router = APIRouter()

FIELDS = 1_000  # of a form
SMALL = 1 << 15  # characters that are worked on at once
SLICE = 1 << 16  # characters counted at a time
STEP = 100  # pieces of a document
PUSHED = 1_000  # characters of a line that a round takes in
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
    asked = await _read(request, hub)
    client = hub.admit(request.headers, request.query_params, asked.api_key)
    served = _choose(hub, asked)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    if len(texts) > hub.settings.texts:
        raise Refusal(413, "size", f"q: a request may have {hub.settings.texts} texts")
    served.translator.check_dial(asked.k)
    found = await _while_wanted(request, Work(hub, client, served, texts, asked).run())
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


# Reading a request. Large ones are worked on one at a time and in small steps, so that the event
# loop has time for everybody else.


async def _read(request: Request, hub: Hub) -> TranslateRequest:
    """The body of a request: JSON or a form."""
    settings = hub.settings
    body = await _body(request, settings.request_size)
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    async with _turn(hub, len(body)):
        try:
            values = _values(kind.strip().lower(), parameters, body)
            if isinstance(given := values.get("q"), list) and len(given) > settings.texts:
                raise Refusal(413, "size", f"q: a request may have {settings.texts} texts")
            return TranslateRequest.model_validate(values)
        except ValidationError as error:
            raise Malformed(explain(error)) from None
        except ValueError:
            raise Malformed("the body cannot be read; send UTF-8") from None


async def _body(request: Request, largest: int) -> bytes:
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > largest:
                raise Refusal(413, "size", f"a request may have {largest:,} bytes")
    except ClientDisconnect:
        raise Gone from None
    return bytes(body)


def _values(kind: str, parameters: str, body: bytes) -> dict[str, Any]:
    """The fields of a body."""
    if kind == "application/json":
        values = parse_json(body.decode("utf-8"))
        return values if isinstance(values, dict) else {}
    if kind == "multipart/form-data":
        form = _parts(parameters, body)
    elif kind in ("application/x-www-form-urlencoded", ""):
        form = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=FIELDS)
    else:
        raise Refusal(415, "type", "send JSON or a form")
    values = {name: given[-1] for name, given in form.items()}
    return values | ({"q": form["q"]} if len(form.get("q", ())) > 1 else {})


def _parts(parameters: str, body: bytes) -> dict[str, list[str]]:
    """The fields of multipart/form-data."""
    found = re.search(r'boundary="?([^";\s]{1,70})', parameters)
    if found is None:
        raise Malformed("multipart/form-data needs a boundary")
    line = b"\r\n--" + found[1].encode("latin-1", "replace")
    form: dict[str, list[str]] = {}
    for part in (b"\r\n" + body).split(line, FIELDS + 1)[1:]:
        head, _, text = part.partition(b"\r\n\r\n")
        if name := re.search(rb'name="([^"]{1,64})"', head[:1_000]):
            form.setdefault(name[1].decode("utf-8"), []).append(text.decode("utf-8"))
    return form


@asynccontextmanager
async def _turn(hub: Hub, size: int) -> AsyncIterator[None]:
    """Whoever has a large request waits until the one before has been read."""
    if size < SMALL:
        yield
        return
    async with hub.reading:
        yield
        await asyncio.sleep(0)


def _choose(hub: Hub, asked: TranslateRequest) -> Served:
    if asked.model is not None:
        return hub.models.find(asked.model)
    served = hub.models.between(asked.source, asked.target)
    if served is None:
        raise WaitinfoError("no model translates between these languages; see /languages")
    return served


# Translating


async def _while_wanted(request: Request, work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """The result of some work, which ends if the client leaves."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Gone
        return working.result()
    finally:
        working.cancel(), leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


class Work:
    """The texts of one request on their way."""

    def __init__(
        self, hub: Hub, client: Client, served: Served, texts: list[str], asked: TranslateRequest
    ) -> None:
        self.hub, self.client, self.served, self.k = hub, client, served, asked.k
        self.texts, self.html = texts, asked.format == "html"
        self.size = sum(map(len, texts))
        self.words = 0

    async def run(self) -> list[str]:
        if self.html:
            return await self._documents()
        async with _turn(self.hub, self.size):
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
        async with _turn(self.hub, self.size):
            for document, text in zip(documents, self.texts, strict=True):
                for _ in document.read(text):
                    await asyncio.sleep(0)
            passages = [passage.text for found in documents for passage in found.passages]
            for passage in passages:
                await self._count(passage)
        self._spend()
        done = iter(await self._translate(passages))
        found: list[str] = []
        async with _turn(self.hub, self.size):
            for document in documents:
                pieces: list[str] = []
                for piece in document.fill(done):
                    pieces.append(piece)
                    if len(pieces) % STEP == 0:
                        await asyncio.sleep(0)
                found.append("".join(pieces))
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

        with self.client.streaming(count, self.hub.settings.retry):
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(work())
        return found

    async def _line(self, line: str) -> tuple[str, list[Anchor]]:
        """The translation of a line, and how far both were at the end of each sentence."""
        if self.served.free <= 0:
            raise Refusal(503, "full", "all streams are in use", self.hub.settings.retry)
        heard = Heard()
        async with self.served.open(self.k) as stream:
            for at in range(0, len(line), PUSHED):
                heard.add(await stream.push(line[at : at + PUSHED]))
            heard.add(await stream.finish())
        return heard.text.lstrip(), heard.anchors


class Heard:
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

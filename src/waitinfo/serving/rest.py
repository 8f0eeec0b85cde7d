"""POST /translate and GET /languages, as LibreTranslate has them; GET /v1/models is ours."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError
from starlette.requests import ClientDisconnect

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.html import UNIT, Anchor, Document
from waitinfo.serving.http import LINGER
from waitinfo.serving.hub import Hub
from waitinfo.serving.models import Served
from waitinfo.serving.protocol import Malformed, Name, explain, parse_json
from waitinfo.serving.wire import Gone
from waitinfo.streaming.event import Event
from waitinfo.text.identification import base_code, likely_languages
from waitinfo.text.scripts import PILE, UNSPACED, longest_word, piles_marks

router = APIRouter()

RATE = 4e6  # bytes of large bodies that are taken in a second, all together
REST = 6.0  # times as long as a large request took, no other one is worked on
LONGEST_REST = 2.0  # seconds
FIELDS = 1_000  # of a form
SMALL = 1 << 15  # characters that are worked on at once
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
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")


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
    asked = await _read(hub, kind, body, TranslateRequest)
    client = hub.admit(request, asked.api_key)
    served = _choose(hub, asked)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    served.translator.check_dial(asked.k)
    found = await Work(hub, client, served, texts, asked).run()
    several = isinstance(asked.q, list)
    guesses: list[Guess] = []
    if asked.source == "auto":  # the model's own, with how likely that is
        async with _turn(hub, len(body)):
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
        asked = await _read(hub, kind, body, DetectRequest)
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


# Reading a request. Large ones are worked on one at a time and in small steps, so that the event
# loop has time for everybody else.


Asked = TypeVar("Asked", bound=BaseModel)
Answer = TypeVar("Answer")


async def _read(hub: Hub, kind: str, body: bytes, kind_of: type[Asked]) -> Asked:
    """The fields of a body, read on a thread if they are many."""
    texts = hub.settings.texts
    async with _turn(hub, len(body)):
        if len(body) < SMALL:
            return parse_fields(kind, body, kind_of, texts)
        return await on_thread(parse_fields, kind, body, kind_of, texts)


def parse_fields(kind: str, body: bytes, kind_of: type[Asked], texts: int) -> Asked:
    """The fields of a body: JSON or a form."""
    kind, _, parameters = kind.partition(";")
    try:
        values = _values(kind.strip().lower(), parameters, body)
        if isinstance(given := values.get("q"), list) and len(given) > texts:
            raise Refusal(413, "size", f"q: a request may have {texts} texts")
        return kind_of.model_validate(values)
    except ValidationError as error:
        raise Malformed(explain(error)) from None
    except ValueError:
        raise Malformed("the body cannot be read; send UTF-8") from None


async def _take_the_rest(request: Request, most: int) -> None:
    """Read what a refused client still sends, within bounds, so that it reads the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            async for part in request.stream():
                most -= len(part)
                if most < 0:
                    return


@asynccontextmanager
async def read_body(request: Request, hub: Hub, largest: int) -> AsyncIterator[bytes]:
    """The body of a request. Of all that is beyond a small one, only so much comes in a second."""
    body = bytearray()
    with ExitStack() as stack:
        try:
            if int(request.headers.get("content-length", "0")) > largest:
                await _take_the_rest(request, 4 * largest)
                raise Refusal(413, "size", f"a request may have {largest:,} bytes")
            async for part in request.stream():
                if len(body) <= SMALL < len(body) + len(part):
                    stack.enter_context(hub.large(request))
                body += part
                if len(body) > largest:
                    raise Refusal(413, "size", f"a request may have {largest:,} bytes")
                if len(body) > SMALL:
                    async with hub.receiving:
                        await asyncio.sleep(len(part) / RATE)
        except ClientDisconnect:
            raise Gone from None
        yield bytes(body)


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
    """The fields of multipart/form-data as text."""
    form: dict[str, list[str]] = {}
    for name, data in sections(parameters, body):
        form.setdefault(name, []).append(data.decode("utf-8"))
    return form


def sections(parameters: str, body: bytes) -> Iterator[tuple[str, bytes]]:
    """The fields of multipart/form-data."""
    found = re.search(r'boundary="?([^";\s]{1,70})', parameters)
    if found is None:
        raise Malformed("multipart/form-data needs a boundary")
    line = b"\r\n--" + found[1].encode("latin-1", "replace")
    for part in (b"\r\n" + body).split(line, FIELDS + 1)[1:]:
        head, _, data = part.partition(b"\r\n\r\n")
        if name := re.search(rb'name="([^"]{1,64})"', head[:1_000]):
            yield name[1].decode("utf-8"), data


@asynccontextmanager
async def _turn(hub: Hub, size: int) -> AsyncIterator[None]:
    """Large requests are worked on one at a time, and most of the time none is."""
    if size < SMALL:
        yield
        return
    loop = asyncio.get_running_loop()
    await hub.reading.acquire()
    began = loop.time()
    try:
        yield
    finally:
        loop.call_later(min(REST * (loop.time() - began), LONGEST_REST), hub.reading.release)


async def on_thread(call: Callable[..., Answer], *arguments: Any) -> Answer:
    """As `asyncio.to_thread`; who is cancelled waits, so that a turn lasts as long as its work."""
    working = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(working)
    finally:
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})


def _choose(hub: Hub, asked: TranslateRequest) -> Served:
    if asked.model is not None:
        return hub.models.find(asked.model)
    served = hub.models.between(asked.source, asked.target)
    if served is None:
        raise WaitinfoError("no model translates between these languages; see /languages")
    return served


# Translating


async def while_wanted(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
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

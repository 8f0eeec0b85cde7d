"""Bodies of requests, read within bounds.

Large ones are worked on one at a time and in small steps, so that the event loop has time for
everybody else.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import parse_qs

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from waitinfo.serving.guards import Refusal
from waitinfo.serving.http import LINGER
from waitinfo.serving.hub import Hub
from waitinfo.serving.pace import CURRENT
from waitinfo.serving.protocol import Malformed, explain, parse_json
from waitinfo.serving.wire import Gone

RATE = 4e6  # bytes of large bodies that are taken in a second, all together
REST = 6.0  # times as long as a large request took, no other one is worked on
LONGEST_REST = 2.0  # seconds
FIELDS = 1_000  # of a form
SMALL = 1 << 15  # characters that are worked on at once
KINDS = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")

Asked = TypeVar("Asked", bound=BaseModel)
Answer = TypeVar("Answer")


async def read_fields(hub: Hub, kind: str, body: bytes, kind_of: type[Asked]) -> Asked:
    """The fields of a body, read on a thread if they are many."""
    texts = hub.settings.texts
    async with turn(hub, len(body)):
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
async def turn(hub: Hub, size: int) -> AsyncIterator[None]:
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
    taken: list[float] = []

    def work() -> Answer:
        began = time.thread_time()
        try:
            return call(*arguments)
        finally:
            taken.append(time.thread_time() - began)

    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    finally:
        if (pace := CURRENT.get()) is not None:
            working.add_done_callback(lambda _: pace.charge(sum(taken), working.get_loop().time()))
        while not working.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({working})


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

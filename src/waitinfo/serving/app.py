"""The application: all endpoints, with health and figures, and how errors are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib.resources import files
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.cors import CORSMiddleware

import waitinfo
from waitinfo.errors import WaitinfoError
from waitinfo.serving import audio, realtime, rest, stream, watching
from waitinfo.serving.guards import Refusal
from waitinfo.serving.http import Front
from waitinfo.serving.hub import Hub
from waitinfo.serving.wire import Gone, retry_header
from waitinfo.streaming.remote import EngineGone

# For who speaks, who listens, who wants to know how it works, and captions on a stage.
PAGES = {"/": "speaker", "/r/{room}": "audience", "/lab": "lab", "/overlay": "overlay"}


def page_folder() -> Path:
    return Path(str(files("waitinfo"))) / "serving" / "page"


def read_page(path: Path) -> str:
    """A page with the part of its head that all pages share."""
    head = (path.parent / "head.html").read_text("utf-8")
    return path.read_text("utf-8").replace("<!-- head.html -->\n", head)


def build_app(hub: Hub) -> FastAPI:
    """The ASGI application of a hub."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await hub.models.start()
        yield
        await hub.stop()

    app = FastAPI(
        title="waitinfo",
        version=waitinfo.__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.hub = hub
    for part in (stream, realtime, watching, rest, audio):
        app.include_router(part.router)
    app.include_router(router)
    _add_schemas(app)
    _add_errors(app, hub)
    _add_page(app)
    if origins := hub.settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(Front)
    return app


def _add_schemas(app: FastAPI) -> None:
    """Bodies are read by hand, for they may be JSON or a form."""
    generate = app.openapi

    def openapi() -> dict[str, object]:
        found = generate()
        schemas = found["components"]["schemas"]
        for model in (rest.TranslateRequest, rest.DetectRequest, audio.AudioRequest):
            schemas.setdefault(model.__name__, model.model_json_schema())
        return found

    app.openapi = openapi  # type: ignore[method-assign]
    made: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    async def description(request: Request) -> Response:
        hub: Hub = request.app.state.hub
        hub.check_private(request)
        if not made:  # by a thread: it takes a third of a second
            made.append(json.dumps(await asyncio.to_thread(app.openapi)).encode())
        return Response(made[0], media_type="application/json")


def _add_errors(app: FastAPI, hub: Hub) -> None:
    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> JSONResponse:
        hub.refuse(refusal)
        headers = retry_header(refusal)
        if refusal.reason in ("size", "large"):  # what is left of the body is not read
            headers["Connection"] = "close"
        answer = {"error": refusal.message, "reason": refusal.reason}
        return JSONResponse(answer, refusal.status, headers=headers)

    @app.exception_handler(Gone)
    async def gone(_: Request, __: Gone) -> Response:
        """Nobody waits for an answer."""
        return Response(status_code=499)

    @app.exception_handler(WaitinfoError)
    async def wrong(request: Request, error: WaitinfoError) -> JSONResponse:
        if isinstance(error, EngineGone):
            return await refused(request, Refusal(503, "engine", str(error), hub.settings.retry))
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(ExceptionGroup)
    async def several(request: Request, errors: ExceptionGroup) -> JSONResponse:
        """Of texts that are translated together, the first error is told."""
        first = errors.exceptions[0]
        if isinstance(first, Refusal):
            return await refused(request, first)
        if isinstance(first, WaitinfoError):
            return await wrong(request, first)
        raise first


def _add_page(app: FastAPI) -> None:
    """All files of the pages, in memory."""
    folder = page_folder()
    for path, name in PAGES.items():
        page = read_page(folder / f"{name}.html").encode()
        app.add_api_route(path, _show(page, "text/html"), include_in_schema=False)
    for file in folder.iterdir():
        kind = guess_type(file.name)[0]
        show = _show(file.read_bytes(), kind)
        app.add_api_route(f"/page/{file.name}", show, include_in_schema=False)


def _show(page: bytes, kind: str | None) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Answer with a page, unless the browser has it. It asks again each time."""
    headers = {"ETag": f'"{sha256(page).hexdigest()[:16]}"', "Cache-Control": "no-cache"}

    async def show(request: Request) -> Response:
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(page, headers=headers, media_type=kind)

    return show


router = APIRouter()


@router.get("/healthz")
async def health() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(request: Request) -> JSONResponse:
    """Whether every model, or the one that is named, would take a new stream."""
    hub: Hub = request.app.state.hub
    if hub.draining:
        return JSONResponse({"status": "draining"}, 503)
    if not hub.models.alive:
        return JSONResponse({"status": "starting"}, 503)
    asked = request.query_params.get("model")
    models = hub.models.main if asked is None else [hub.models.find(asked)]
    free = {served.name: served.free for served in models}
    ready = all(free.values())
    status = {
        "status": "ready" if ready else "full",
        "free": sum(free.values()),
        "models": free,
        "voices": hub.hearing.free,
    }
    return JSONResponse(status, 200 if ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    hub: Hub = request.app.state.hub
    hub.check_private(request)
    return Response(hub.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

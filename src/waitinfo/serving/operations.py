"""Health, readiness and figures."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from waitinfo.serving.hub import Hub

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

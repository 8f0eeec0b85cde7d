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
    """Whether a new stream would be taken."""
    hub: Hub = request.app.state.hub
    if hub.draining:
        return JSONResponse({"status": "draining"}, 503)
    free = sum(served.free for served in hub.models.main)
    return JSONResponse({"status": "ready" if free else "full", "free": free}, 200 if free else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    hub: Hub = request.app.state.hub
    return Response(hub.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

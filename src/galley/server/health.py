"""Liveness, readiness and metrics."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from galley.server.registry import Registry
from galley.server.responses import Status


def router(models: Registry) -> APIRouter:
    """``GET /health``, ``/ready`` and ``/metrics``."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/health", responses={200: {"model": Status}, 503: {"model": Status}})
    async def health() -> Response:
        """Whether the process works: 503 only if it must be restarted."""
        failed = models.lifecycle.state == "failed"
        return JSONResponse({"status": "failed" if failed else "ok"}, 503 if failed else 200)

    @routes.get("/ready", responses={200: {"model": Status}, 503: {"model": Status}})
    async def ready() -> Response:
        """Whether requests should be sent here now: every model is ready."""
        state = models.lifecycle.state
        return JSONResponse({"status": state}, 200 if state == "ready" else 503)

    @routes.get("/metrics", responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(models.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return routes

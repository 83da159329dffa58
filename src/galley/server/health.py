"""Liveness, readiness and metrics."""

from typing import TypedDict

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation


class Status(TypedDict):
    """Answer of `GET /health` and `GET /ready`."""

    status: str


def routes(models: Registry) -> list[Operation]:
    """Return ``GET /health``, ``/ready`` and ``/metrics``."""

    async def health(_: Request) -> Response:
        """Report whether the process works: 503 only if it must be restarted."""
        failed = models.lifecycle.state == "failed"
        return Json({"status": "failed" if failed else "ok"}, 503 if failed else 200)

    async def ready(_: Request) -> Response:
        """Report whether requests should be sent here now: every model is ready."""
        state = models.lifecycle.state
        return Json({"status": state}, 200 if state == "ready" else 503)

    async def prometheus(_: Request) -> Response:
        """Return metrics in Prometheus' text format."""
        return Response(models.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    states = {200: Status, 503: Status}
    return [
        Operation("GET", "/health", health, tag="operation", answers=states),
        Operation("GET", "/ready", ready, tag="operation", answers=states),
        Operation(
            "GET", "/metrics", prometheus, tag="operation", answers={200: {"text/plain": {}}}
        ),
    ]

"""Extensions of Triton that are not served: their routes answer with an error that names them."""

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from galley.protocols.common.errors import ApiError
from galley.protocols.oip.routes import PREFIX

_INSTEAD: Final = {
    "config": "A model's configuration is not reported; GET /v2/models/{model} has its inputs and outputs",
    "stats": "The statistics extension is not supported; GET /metrics has counters and histograms",
    "trace": "The trace extension is not supported; the settings of tracing are those of the server",
    "logging": "The logging extension is not supported; the settings of the log are those of the server",
    "sharedmemory": "Shared memory is not supported; send tensors as binary data",
}
"""Extension -> the error."""

_PATHS: Final = {
    "/models/{model:path}/config": "config",
    "/models/stats": "stats",
    "/models/{model:path}/stats": "stats",
    "/trace/setting": "trace",
    "/models/{model:path}/trace/setting": "trace",
    "/logging": "logging",
    **{
        f"/{kind}sharedmemory{region}/{action}": "sharedmemory"
        for kind in ("system", "cuda")
        for region in ("", "/region/{region}")
        for action in ("status", "register", "unregister")
    },
}


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [_refusing(f"{PREFIX}{path}", _INSTEAD[kind]) for path, kind in _PATHS.items()]


def _refusing(path: str, message: str) -> BaseRoute:
    async def refuse(request: Request) -> Response:
        named = message.replace("{model}", str(request.path_params.get("model", "")))
        raise ApiError(501, named, code="not_supported")

    return Route(path, refuse, methods=["GET", "POST"])

"""Routes of Triton and OpenVINO Model Server that are not served: an error names what to use."""

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
    "list": "A configuration file of models is not supported; POST /v2/repository/index lists the models",
    "reload": "A configuration file of models is not supported; "
    "POST /v2/repository/models/MODEL/load loads one again",
}
"""Extension -> the error."""

_PATHS: Final = {
    "/v1/config": "list",
    "/v1/config/reload": "reload",
    f"{PREFIX}/models/{{model:path}}/config": "config",
    f"{PREFIX}/models/stats": "stats",
    f"{PREFIX}/models/{{model:path}}/stats": "stats",
    f"{PREFIX}/trace/setting": "trace",
    f"{PREFIX}/models/{{model:path}}/trace/setting": "trace",
    f"{PREFIX}/logging": "logging",
    **{
        f"{PREFIX}/{kind}sharedmemory{region}/{action}": "sharedmemory"
        for kind in ("system", "cuda")
        for region in ("", "/region/{region}")
        for action in ("status", "register", "unregister")
    },
}


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [_refusing(path, _INSTEAD[kind]) for path, kind in _PATHS.items()]


def _refusing(path: str, message: str) -> BaseRoute:
    async def refuse(request: Request) -> Response:
        named = message.replace("{model}", str(request.path_params.get("model", "")))
        raise ApiError(501, named, code="not_supported")

    return Route(path, refuse, methods=["GET", "POST"])

"""The routes of the model repository extension: list, load and unload models."""

from typing import TypedDict, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from galley.errors import ModelError, SettingsError
from galley.gateway import repository
from galley.gateway.registry import Registry
from galley.protocols.common.errors import ApiError
from galley.protocols.common.json_body import parse_json
from galley.protocols.common.validate import validate
from galley.protocols.http import body
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Handler, Operation
from galley.protocols.oip.routes import PREFIX, OipOperation
from galley.protocols.oip.schemas import IndexRequest, LoadRequest, UnloadRequest

Schema = TypeVar("Schema")


class ModelIndex(TypedDict):
    """A version of a model, in the answer of `POST /v2/repository/index`."""

    name: str
    version: str
    state: str
    reason: str


class Changed(TypedDict):
    """Answer of a request to load or to unload a model."""


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``. Those that load and unload need an admin key."""

    async def index(request: Request) -> Response:
        """List the models and their versions."""
        parsed = await _optional(request, IndexRequest, models.settings.max_body_bytes)
        every = repository.entries(models)
        return Json([one._asdict() for one in every if one.state == "READY" or not parsed.ready])

    async def load(request: Request) -> Response:
        """Load a model; one that is loaded and has changed on disk is loaded again while it serves."""
        await _optional(request, LoadRequest, models.settings.max_body_bytes)
        try:
            await repository.load(models, request.path_params["model"])
        except (ModelError, SettingsError) as error:
            raise ApiError(400, str(error), param="model", code="model_unusable") from error
        return Json(Changed())

    async def unload(request: Request) -> Response:
        """Refuse new requests to a model, and unload it when the running ones have ended."""
        await _optional(request, UnloadRequest, models.settings.max_body_bytes)
        await repository.unload(models, request.path_params["model"])
        return Json(Changed())

    def changes(action: str, handler: Handler, schema: type) -> Operation:
        path = f"{PREFIX}/repository/models/{{model:path}}/{action}"
        return OipOperation(
            "POST",
            path,
            handler,
            tag="tensors",
            body=schema,
            answers={200: Changed},
            errors={404, 409},
        )

    return [
        OipOperation(
            "POST",
            f"{PREFIX}/repository/index",
            index,
            tag="tensors",
            body=IndexRequest,
            answers={200: list[ModelIndex]},
        ),
        changes("load", load, LoadRequest),
        changes("unload", unload, UnloadRequest),
    ]


async def _optional(request: Request, schema: type[Schema], max_bytes: int) -> Schema:
    """Read a body that may be empty, as Triton's clients send it."""
    data = await body.read_bytes(request, max_bytes=max_bytes)
    return validate(schema, parse_json(data or b"{}"))

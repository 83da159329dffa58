"""``/v1/adapters``: list, load and unload LoRA adapters while the models serve; admins only."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from galley.errors import ModelError, SettingsError
from galley.gateway.adapters import ServedAdapter
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.common.errors import ApiError
from galley.protocols.common.messages import Strict
from galley.protocols.http import body
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.settings.checks import ADAPTER_NAME

PATH = "/v1/adapters"


class AdapterRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/adapters`: a LoRA adapter in a folder of the server, in PEFT's layout.

    `model` is what it is added to, where there are several.
    """

    name: Annotated[str, Meta(pattern=ADAPTER_NAME, max_length=100)]
    path: str
    model: str | None = None


class AdapterCard(TypedDict):
    """A LoRA adapter of `model`. Requests name its `id` or `name` as their model."""

    id: str
    object: Literal["adapter"]
    created: int
    name: str
    model: str
    path: str


class AdapterList(TypedDict):
    """Response of `GET /v1/adapters`."""

    object: Literal["list"]
    data: list[AdapterCard]


class AdapterUnloaded(TypedDict):
    """The LoRA adapter that was unloaded."""

    id: str
    object: Literal["adapter"]
    deleted: Literal[True]


def routes(models: Registry) -> list[Operation]:
    """Return ``GET`` and ``POST /v1/adapters``, and ``DELETE /v1/adapters/{name}``."""

    async def list_adapters(_: Request) -> Response:
        """List all LoRA adapters."""
        cards = [_card(model, one) for model in models for one in model.adapters]
        answer: AdapterList = {"object": "list", "data": cards}
        return Json(answer)

    async def load_adapter(request: Request) -> Response:
        """Load a LoRA adapter from a folder of the server; respond when requests may name it."""
        parsed = await body.read(request, AdapterRequest, max_bytes=models.settings.max_body_bytes)
        model = await models.find(parsed.model)
        try:
            loaded = await models.load_adapter(model, parsed.name, parsed.path)
        except (ModelError, SettingsError) as error:
            raise ApiError(400, str(error), param="path", code="adapter_unusable") from error
        return Json(_card(model, loaded))

    async def unload_adapter(request: Request) -> Response:
        """Unload a LoRA adapter; running requests that use it are completed."""
        name = request.path_params["name"]
        await models.unload_adapter(name)
        answer: AdapterUnloaded = {"id": name, "object": "adapter", "deleted": True}
        return Json(answer)

    return [
        Operation("GET", PATH, list_adapters, tag="operation", answers={200: AdapterList}),
        Operation(
            "POST",
            PATH,
            load_adapter,
            tag="operation",
            body=AdapterRequest,
            answers={200: AdapterCard},
            errors={404, 409},
        ),
        Operation(
            "DELETE",
            f"{PATH}/{{name:path}}",
            unload_adapter,
            tag="operation",
            answers={200: AdapterUnloaded},
            errors={404},
        ),
    ]


def _card(model: ServedModel, one: ServedAdapter) -> AdapterCard:
    return {
        "id": model.name_with(one.adapter),
        "object": "adapter",
        "created": one.created,
        "name": one.adapter.name,
        "model": model.name,
        "path": one.adapter.path,
    }

"""``/v1/adapters``: LoRA adapters are listed, loaded and unloaded while the models serve; admins only."""

from starlette.requests import Request
from starlette.responses import Response

from galley.api.errors import ApiError
from galley.api.responses import AdapterCard, AdapterList, AdapterUnloaded
from galley.api.schemas import AdapterRequest
from galley.errors import ModelError, SettingsError
from galley.gateway.adapters import ServedAdapter
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.server import body
from galley.server.answers import Json
from galley.server.openapi import Operation

PATH = "/v1/adapters"


def routes(models: Registry) -> list[Operation]:
    """``GET`` and ``POST /v1/adapters``, and ``DELETE /v1/adapters/{name}``."""

    async def list_adapters(_: Request) -> Response:
        """All LoRA adapters."""
        cards = [_card(model, one) for model in models for one in model.adapters]
        answer: AdapterList = {"object": "list", "data": cards}
        return Json(answer)

    async def load_adapter(request: Request) -> Response:
        """Load a LoRA adapter from a folder of the server; answers when requests may name it."""
        asked = await body.read(request, AdapterRequest, max_bytes=models.settings.max_body_bytes)
        model = await models.find(asked.model)
        try:
            loaded = await models.load_adapter(model, asked.name, asked.path)
        except (ModelError, SettingsError) as error:
            raise ApiError(400, str(error), param="path", code="adapter_unusable") from error
        return Json(_card(model, loaded))

    async def unload_adapter(request: Request) -> Response:
        """Unload a LoRA adapter; requests that have it go on to their end."""
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

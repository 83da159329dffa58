"""The routes that list the served models."""

from starlette.requests import Request
from starlette.responses import Response

from galley.api.responses import ModelCard, ModelList
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.server.answers import Json
from galley.server.openapi import Operation


def routes(models: Registry) -> list[Operation]:
    """``GET /v1/models`` and ``GET /v1/models/{model}``."""

    async def list_models(_: Request) -> Response:
        """All served models."""
        answer: ModelList = {"object": "list", "data": [_card(model) for model in models]}
        return Json(answer)

    async def get_model(request: Request) -> Response:
        """One served model; its name may hold slashes."""
        return Json(_card(models.find(request.path_params["model"])))

    return [
        Operation("GET", "/v1/models", list_models, tag="models", answers={200: ModelList}),
        Operation(
            "GET", "/v1/models/{model:path}", get_model, tag="models", answers={200: ModelCard}
        ),
    ]


def _card(served: ServedModel) -> ModelCard:
    backend = served.backend()
    return {
        "id": served.name,
        "object": "model",
        "created": backend.created,
        "owned_by": "galley",
        "max_model_len": backend.engine.info.max_request_tokens,
        "tasks": list(backend.engine.info.tasks),
        "weights": backend.engine.info.weights,
    }

"""The routes that list the served models."""

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from galley.api.responses import ModelCard, ModelList, ModelState
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.server.answers import Json
from galley.server.openapi import Operation

_STARTED: Final = int(time.time())
"""``created`` of models that are not loaded."""


def routes(models: Registry) -> list[Operation]:
    """``GET /v1/models`` and ``GET /v1/models/{model}``."""

    async def list_models(_: Request) -> Response:
        """All served models."""
        answer: ModelList = {"object": "list", "data": [card(models, model) for model in models]}
        return Json(answer)

    async def get_model(request: Request) -> Response:
        """One served model; its name may hold slashes."""
        return Json(card(models, models.named(request.path_params["model"])))

    return [
        Operation("GET", "/v1/models", list_models, tag="models", answers={200: ModelList}),
        Operation(
            "GET", "/v1/models/{model:path}", get_model, tag="models", answers={200: ModelCard}
        ),
    ]


def card(models: Registry, served: ServedModel) -> ModelCard:
    """What clients are told of a model.

    Raises:
        EngineNotReady: the server starts, and the model is not loaded yet.
        EngineFailed: its engine is gone for good, and it is not one that is loaded on request.
    """
    if served.on_request and (not served.is_loaded or served.state == "failed"):
        state: ModelState = "loading" if models.is_loading(served) else "unloaded"
        return {
            "id": served.name,
            "object": "model",
            "created": _STARTED,
            "owned_by": "galley",
            "max_model_len": None,
            "tasks": list(served.tasks or ()),
            "weights": None,
            "state": state,
            "memory": None,
            "expires_at": None,
        }
    backend = served.backend()
    info, ledger = backend.engine.info, served.ledger
    return {
        "id": served.name,
        "object": "model",
        "created": backend.created,
        "owned_by": "galley",
        "max_model_len": info.max_request_tokens,
        "tasks": list(info.tasks),
        "weights": info.weights,
        "state": "loaded",
        "memory": None if ledger is None else ledger.weights + ledger.kv + ledger.buffers,
        "expires_at": served.expires_at,
    }

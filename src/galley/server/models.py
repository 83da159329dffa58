"""The routes that list the served models."""

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from galley.api.responses import ModelCard, ModelList, ModelState
from galley.gateway.adapters import ServedAdapter
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
        cards = [card(models, model) for model in models]
        cards += [_adapter_card(model, one) for model in models for one in model.adapters]
        answer: ModelList = {"object": "list", "data": cards}
        return Json(answer)

    async def get_model(request: Request) -> Response:
        """One served model or adapter; its name may hold slashes."""
        name = request.path_params["model"]
        for model in models:
            for one in model.adapters:
                if name == model.name_with(one.adapter):
                    return Json(_adapter_card(model, one))
        return Json(card(models, models.named(name)))

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
            "parent": None,
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
        "memory": None if ledger is None else ledger.total - ledger.reserve,
        "expires_at": served.expires_at,
        "parent": None,
    }


def _adapter_card(served: ServedModel, one: ServedAdapter) -> ModelCard:
    """What clients are told of an adapter that they may name."""
    info = served.info
    return {
        "id": served.name_with(one.adapter),
        "object": "model",
        "created": one.created,
        "owned_by": "galley",
        "max_model_len": None if info is None else info.max_request_tokens,
        "tasks": list(served.tasks or ()),
        "weights": None,
        "state": "loaded" if served.is_loaded else "unloaded",
        "memory": None,
        "expires_at": served.expires_at,
        "parent": served.name,
    }

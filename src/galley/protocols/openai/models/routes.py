"""The routes that list the served models."""

import time
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.adapters import ServedAdapter
from galley.gateway.derived import Derived
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.protocols.anthropic.models import (
    VERSION,
    AnthropicModel,
    AnthropicModels,
    ModelsQuery,
    model_of,
    page_of,
)
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.http.query import read_query
from galley.protocols.openai.models.answers import ModelCard, ModelList, ModelState
from galley.types.model_info import ModelInfo

_STARTED: Final = int(time.time())
"""``created`` of models that are not loaded."""


def routes(models: Registry) -> list[Operation]:
    """Return the routes ``GET /v1/models`` and ``GET /v1/models/{model}``."""

    async def list_models(request: Request) -> Response:
        """List all served models; for Anthropic's clients, page by page in Anthropic's form."""
        cards = [card(models, model) for model in models]
        cards += [_adapter_card(model, one) for model in models for one in model.adapters]
        cards += [_derived_card(models, one) for one in models.derived.values()]
        if VERSION in request.headers:
            return Json(page_of(cards, read_query(request, ModelsQuery)))
        answer: ModelList = {"object": "list", "data": cards}
        return Json(answer)

    async def get_model(request: Request) -> Response:
        """Describe one served model, adapter or further name; it may contain slashes."""
        name = request.path_params["model"]
        derived = models.derived.get(name)
        found = _card_of(models, name) if derived is None else _derived_card(models, derived)
        return Json(model_of(found) if VERSION in request.headers else found)

    return [
        _Listed(
            "GET",
            "/v1/models",
            list_models,
            tag="models",
            answers={200: (ModelList, AnthropicModels)},
        ),
        Operation(
            "GET",
            "/v1/models/{model:path}",
            get_model,
            tag="models",
            answers={200: (ModelCard, AnthropicModel)},
        ),
    ]


class _Listed(Operation):
    query = ModelsQuery


def card(models: Registry, served: ServedModel) -> ModelCard:
    """Return the description of a model for clients.

    Raises:
        EngineNotReady: the server is starting, and the model is not loaded yet.
        EngineFailed: the model's engine failed permanently, and it is not loaded on request.
    """
    on_request = served.on_request and (not served.is_loaded or served.state == "failed")
    if on_request or served.withdrawn is not None:
        loading = served.withdrawn is None and models.is_loading(served)
        state: ModelState = "loading" if loading else "unloaded"
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
            "engine": None,
            "unsupported_parameters": [],
            "parent": None,
        }
    backend = served.backend()
    info, ledger = backend.engine.info, served.ledger
    loaded: ModelCard = {
        "id": served.name,
        "object": "model",
        "created": backend.created,
        "owned_by": "galley",
        "max_model_len": None if info.text is None else info.max_request_tokens,
        "tasks": list(info.tasks),
        "weights": info.weights,
        "state": "loaded",
        "memory": None if ledger is None else ledger.total - ledger.reserve,
        "expires_at": served.expires_at,
        "engine": info.executor,
        "unsupported_parameters": _unsupported(info),
        "parent": None,
    }
    if info.voice is not None:
        loaded["voices"] = [*info.voice.voices, *info.voice.aliases]
    return loaded


def _card_of(models: Registry, name: str) -> ModelCard:
    """Return the description of the model or adapter of that name. Raises UnknownModel."""
    adapters = (
        _adapter_card(model, one)
        for model in models
        for one in model.adapters
        if name in (one.adapter.name, model.name_with(one.adapter))
    )
    return next(adapters, None) or card(models, models.named(name))


def _derived_card(models: Registry, derived: Derived) -> ModelCard:
    """Return the description of a further name of a model or adapter."""
    base = _card_of(models, derived.base)
    return {**base, "id": derived.name, "parent": derived.base}


def _adapter_card(served: ServedModel, one: ServedAdapter) -> ModelCard:
    """Return the description of a loadable adapter for clients."""
    info = served.info
    return {
        "id": served.name_with(one.adapter),
        "object": "model",
        "created": one.created,
        "owned_by": "galley",
        "max_model_len": None if info is None or info.text is None else info.max_request_tokens,
        "tasks": list(served.tasks or ()),
        "weights": None,
        "state": "loaded" if served.is_loaded else "unloaded",
        "memory": None,
        "expires_at": served.expires_at,
        "engine": None if info is None else info.executor,
        "unsupported_parameters": [] if info is None else _unsupported(info),
        "parent": served.name,
    }


def _unsupported(info: ModelInfo) -> list[str]:
    return [] if info.text is None else list(info.text.unsupported)

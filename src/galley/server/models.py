"""The routes that list the served models."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from galley.server.registry import Registry
from galley.server.responses import ModelCard, ModelList
from galley.server.served import ServedModel


def router(models: Registry) -> APIRouter:
    """``GET /v1/models`` and ``GET /v1/models/{model}``."""
    routes = APIRouter(tags=["models"])

    @routes.get("/v1/models", responses={200: {"model": ModelList}})
    async def list_models() -> Response:
        """All served models."""
        answer: ModelList = {"object": "list", "data": [_card(model) for model in models]}
        return JSONResponse(answer)

    @routes.get("/v1/models/{model:path}", responses={200: {"model": ModelCard}})
    async def get_model(model: str) -> Response:
        """One of them; names may hold slashes."""
        return JSONResponse(_card(models.find(model)))

    return routes


def _card(served: ServedModel) -> ModelCard:
    backend = served.backend()
    return {
        "id": served.name,
        "object": "model",
        "created": backend.created,
        "owned_by": "galley",
        "max_model_len": backend.engine.info.max_request_tokens,
    }

"""The routes that list the served model."""

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from galley.server.responses import ModelCard, ModelList
from galley.server.served import ServedModel


def router(served: ServedModel) -> APIRouter:
    """``GET /v1/models`` and ``GET /v1/models/{model}``."""
    routes = APIRouter(tags=["models"])

    @routes.get("/v1/models", responses={200: {"model": ModelList}})
    async def list_models() -> Response:
        """The served model, in a list of one."""
        models: ModelList = {"object": "list", "data": [_card(served)]}
        return JSONResponse(models)

    @routes.get("/v1/models/{model:path}", responses={200: {"model": ModelCard}})
    async def get_model(model: str) -> Response:
        """The served model; names may hold slashes."""
        served.check_model(model)
        return JSONResponse(_card(served))

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

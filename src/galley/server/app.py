"""The HTTP application: routes, middlewares and the OpenAPI page."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from galley import __version__
from galley.config import LOOPBACK_HOSTS
from galley.server import (
    audio,
    chat,
    completions,
    errors,
    health,
    models,
    realtime,
    schemas,
    tokenize,
)
from galley.server.access import AccessLog
from galley.server.auth import OPEN_PATHS, KeyRing, RequireHost, RequireKey
from galley.server.lifecycle import DrainGate
from galley.server.registry import Registry
from galley.server.responses import ErrorBody

_BODIES: Final[dict[str, type[BaseModel]]] = {
    "/v1/chat/completions": schemas.ChatRequest,
    "/v1/completions": schemas.CompletionRequest,
    "/tokenize": schemas.TokenizeRequest,
    "/detokenize": schemas.DetokenizeRequest,
}
"""Route -> what its handler reads with ``body.read``, for the OpenAPI page."""

_FORMS: Final[dict[str, type[BaseModel]]] = {
    audio.TRANSCRIPTIONS: schemas.TranscriptionRequest,
    audio.TRANSLATIONS: schemas.TranslationRequest,
}
"""The same for ``forms.read_form``, which reads a file, too."""


def create_app(registry: Registry, *, keys: KeyRing) -> FastAPI:
    """The application that serves models, before, while and after they are ready.

    Args:
        registry: the models, with the settings that say whose Host headers are answered.
        keys: who may use them; empty lets everyone.
    """
    settings = registry.settings
    app = FastAPI(
        title="Galley",
        version=__version__,
        description="OpenAI-compatible inference. Errors have OpenAI's envelope.",
        responses={"default": {"model": ErrorBody, "description": "Any error"}},
        redirect_slashes=False,
        redoc_url=None,
        docs_url="/docs",
        swagger_ui_oauth2_redirect_url=None,
    )
    for protocol in (chat, completions, audio, realtime, models, tokenize, health):
        app.include_router(protocol.router(registry))
    errors.install(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    # The last one added is the first to see a request.
    app.add_middleware(DrainGate, lifecycle=registry.lifecycle)
    open_paths = OPEN_PATHS | ({"/metrics"} if settings.metrics_without_key else frozenset())
    app.add_middleware(RequireKey, keys=keys, open_paths=open_paths)
    if settings.host in LOOPBACK_HOSTS:
        app.add_middleware(RequireHost, allowed=settings.allowed_host)
    app.add_middleware(AccessLog, metrics=registry.metrics)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's page, with the request bodies that handlers parse by themselves."""
    if app.openapi_schema is None:
        page = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
        )
        bodies: list[tuple[type[Any], JsonSchemaMode]] = [
            (model, "validation") for model in (*_BODIES.values(), *_FORMS.values())
        ]
        refs, definitions = models_json_schema(
            bodies,
            ref_template="#/components/schemas/{model}",
        )
        page["components"]["schemas"] |= definitions["$defs"]
        for form in _FORMS.values():
            schema = page["components"]["schemas"][form.__name__]
            schema["properties"]["file"] = {"type": "string", "format": "binary"}
            schema["required"] = ["file"]
        for path, model in (_BODIES | _FORMS).items():
            kind = "multipart/form-data" if path in _FORMS else "application/json"
            content = {kind: {"schema": refs[(model, "validation")]}}
            page["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        app.openapi_schema = page
    return app.openapi_schema

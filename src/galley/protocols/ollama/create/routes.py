"""Ollama's ``/api/create`` and ``/api/copy``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.http import body
from galley.protocols.http.json_answers import Json
from galley.protocols.http.openapi import Operation
from galley.protocols.ollama.create.answers import (
    OllamaCopyRequest,
    OllamaCreated,
    OllamaCreateRequest,
    copy,
    create,
)
from galley.protocols.ollama.routes import OllamaOperation, respond_at_once


def routes(models: Registry) -> list[Operation]:
    """Return the routes that add names to ``models``."""
    max_bytes = models.settings.max_body_bytes

    async def create_model(request: Request) -> Response:
        """Serve a model under another name, with its own system prompt and sampling."""
        parsed = await body.read(request, OllamaCreateRequest, max_bytes=max_bytes)
        return respond_at_once(create(models, parsed), streamed=parsed.streamed)

    async def copy_model(request: Request) -> Response:
        """Serve a model under another name."""
        parsed = await body.read(request, OllamaCopyRequest, max_bytes=max_bytes)
        return Json(copy(models, parsed))

    lines = {"application/x-ndjson": {"description": "The same, as a line."}}
    return [
        OllamaOperation(
            "POST",
            "/api/create",
            create_model,
            tag="Ollama",
            body=OllamaCreateRequest,
            answers={200: {"application/json": OllamaCreated, **lines}},
            errors={409},
        ),
        OllamaOperation(
            "POST",
            "/api/copy",
            copy_model,
            tag="Ollama",
            body=OllamaCopyRequest,
            answers={200: OllamaCreated},
            errors={409},
        ),
    ]

"""Ollama's ``/api/embed`` and ``/api/embeddings``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.caller import Caller
from galley.gateway.registry import Registry
from galley.protocols.http.admit import read
from galley.protocols.http.json_answers import LargeJson
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import while_connected
from galley.protocols.ollama.embed import answers as ollama_embed
from galley.protocols.ollama.embed.answers import (
    OllamaEmbedding,
    OllamaEmbeddingRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
)
from galley.protocols.ollama.routes import OllamaOperation, name_of


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def embed(request: Request) -> Response:
        """Embed texts, as Ollama does."""
        parsed, caller = await read(
            models, request, OllamaEmbedRequest, "embed", prompt=lambda parsed: parsed.input
        )
        return LargeJson(await answered(request, parsed, caller, ollama_embed.EMBED))

    async def embeddings(request: Request) -> Response:
        """Embed one text, as Ollama did before it accepted several."""
        parsed, caller = await read(
            models,
            request,
            OllamaEmbeddingRequest,
            "embed",
            prompt=lambda parsed: parsed.prompt or "",
        )
        answer = await answered(request, parsed.newer(), caller, ollama_embed.EMBEDDINGS)
        return LargeJson(ollama_embed.older(answer))

    async def answered(
        request: Request, parsed: OllamaEmbedRequest, caller: Caller, endpoint: str
    ) -> OllamaEmbeddings:
        name = name_of(models, parsed.model)
        if not parsed.input and parsed.kept_seconds == 0:
            models.unload_soon(name, "embed", caller)
            return ollama_embed.empty(parsed)
        served = await while_connected(request.receive, models.find(name, "embed", caller))
        served.kept.keep_for(parsed.kept_seconds)
        work = ollama_embed.embed(served, parsed, caller, endpoint=endpoint)
        return await while_connected(request.receive, work)

    return [
        OllamaOperation(
            "POST",
            ollama_embed.EMBED,
            embed,
            tag="Ollama",
            body=OllamaEmbedRequest,
            answers={200: OllamaEmbeddings},
        ),
        OllamaOperation(
            "POST",
            ollama_embed.EMBEDDINGS,
            embeddings,
            tag="Ollama",
            body=OllamaEmbeddingRequest,
            answers={200: OllamaEmbedding},
        ),
    ]

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
        asked, caller = await read(
            models, request, OllamaEmbedRequest, "embed", prompt=lambda asked: asked.input
        )
        return LargeJson(await answered(request, asked, caller, ollama_embed.EMBED))

    async def embeddings(request: Request) -> Response:
        """Embed one text, as Ollama did before it accepted several."""
        asked, caller = await read(
            models,
            request,
            OllamaEmbeddingRequest,
            "embed",
            prompt=lambda asked: asked.prompt or "",
        )
        answer = await answered(request, asked.newer(), caller, ollama_embed.EMBEDDINGS)
        return LargeJson(ollama_embed.older(answer))

    async def answered(
        request: Request, asked: OllamaEmbedRequest, caller: Caller, endpoint: str
    ) -> OllamaEmbeddings:
        name = name_of(models, asked.model)
        if not asked.input and asked.kept_seconds == 0:
            models.unload_soon(name, "embed", caller)
            return ollama_embed.empty(asked)
        served = await while_connected(request.receive, models.find(name, "embed", caller))
        served.keep_for(asked.kept_seconds)
        work = ollama_embed.embed(served, asked, caller, endpoint=endpoint)
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

"""Ollama's ``/api/embed`` and ``/api/embeddings``."""

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.caller import Caller
from galley.gateway.registry import Registry
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of, note_prompt
from galley.protocols.http.json_answers import LargeJson
from galley.protocols.http.openapi import Operation
from galley.protocols.http.sse import while_connected
from galley.protocols.ollama import embed as ollama_embed
from galley.protocols.ollama.embed import (
    OllamaEmbedding,
    OllamaEmbeddingRequest,
    OllamaEmbeddings,
    OllamaEmbedRequest,
)
from galley.protocols.ollama.routes import OllamaOperation, name_of


def routes(models: Registry) -> list[Operation]:
    """The route, answered by ``models``."""
    max_bytes = models.settings.max_body_bytes
    timeout = models.settings.request_timeout

    async def embed(request: Request) -> Response:
        """The vectors of texts, as Ollama gives them."""
        caller = begin(request)
        asked = await body.read(request, OllamaEmbedRequest, max_bytes=max_bytes)
        return LargeJson(await answered(request, asked, caller, ollama_embed.EMBED))

    async def embeddings(request: Request) -> Response:
        """The vector of a text, as Ollama gave it before it took several."""
        caller = begin(request)
        asked = await body.read(request, OllamaEmbeddingRequest, max_bytes=max_bytes)
        answer = await answered(request, asked.newer(), caller, ollama_embed.EMBEDDINGS)
        return LargeJson(ollama_embed.older(answer))

    def begin(request: Request) -> Caller:
        caller = caller_of(request, timeout=timeout)
        models.expect("embed", caller)
        return caller

    async def answered(
        request: Request, asked: OllamaEmbedRequest, caller: Caller, endpoint: str
    ) -> OllamaEmbeddings:
        note_prompt(caller, asked.input, models.settings)
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

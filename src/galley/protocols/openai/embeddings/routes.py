"""``POST /v1/embeddings``, ``/v1/rerank`` and ``/v1/score``."""

from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.common.messages import Strict
from galley.protocols.http.admit import admit, find, read
from galley.protocols.http.json_answers import LargeJson
from galley.protocols.http.openapi import Handler, Operation
from galley.protocols.http.sse import while_connected
from galley.protocols.openai.embeddings import answers as embeddings
from galley.protocols.openai.embeddings.answers import (
    Embeddings,
    Ranking,
    Scores,
    check_task_of_score,
)
from galley.protocols.openai.embeddings.schemas import (
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
)

RERANK_2: Final = "/v2/rerank"


def routes(models: Registry) -> list[Operation]:
    """Return the routes, served by ``models``."""

    async def embed(request: Request) -> Response:
        """Embed texts."""
        parsed, caller, served = await admit(
            models, request, EmbeddingsRequest, "embed", prompt=lambda parsed: parsed.input
        )
        work = embeddings.embeddings(served, parsed, caller)
        return LargeJson(await while_connected(request.receive, work))

    async def rerank(request: Request) -> Response:
        """Rank documents by how well they answer a query."""
        parsed, caller, served = await admit(
            models, request, RerankRequest, "rerank", prompt=lambda parsed: parsed.query
        )
        version: Literal["1", "2"] = "2" if request.url.path.endswith(RERANK_2) else "1"
        work = embeddings.rerank(served, parsed, caller, version)
        return LargeJson(await while_connected(request.receive, work))

    async def score(request: Request) -> Response:
        """Score pairs of texts: by a reranker, or by the cosine of their vectors."""
        parsed, caller = await read(
            models, request, ScoreRequest, None, prompt=lambda parsed: parsed.text_1
        )
        task = models.task_of_pairs(parsed.model)
        served = await find(models, request, parsed, task, caller)
        check_task_of_score(served)
        work = embeddings.score(served, parsed, caller)
        return LargeJson(await while_connected(request.receive, work))

    def operation(path: str, handler: Handler, parsed: type[Strict], answer: type) -> Operation:
        return Operation("POST", path, handler, tag="vectors", body=parsed, answers={200: answer})

    return [
        operation(embeddings.EMBEDDINGS, embed, EmbeddingsRequest, Embeddings),
        *(
            operation(path, rerank, RerankRequest, Ranking)
            for path in (embeddings.RERANK, RERANK_2, "/rerank")
        ),
        *(operation(path, score, ScoreRequest, Scores) for path in (embeddings.SCORE, "/score")),
    ]

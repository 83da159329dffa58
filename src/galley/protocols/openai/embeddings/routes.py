"""``POST /v1/embeddings``, ``/v1/rerank`` and ``/v1/score``."""

from typing import Final, Literal

from starlette.requests import Request
from starlette.responses import Response

from galley.gateway.registry import Registry
from galley.protocols.common.messages import Strict
from galley.protocols.http import body
from galley.protocols.http.caller import caller_of, note_prompt
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
    """The routes, answered by ``models``."""
    max_bytes = models.settings.max_body_bytes
    timeout = models.settings.request_timeout

    async def embed(request: Request) -> Response:
        """The vectors of texts."""
        caller = caller_of(request, timeout=timeout)
        models.expect("embed", caller)
        asked = await body.read(request, EmbeddingsRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.input, models.settings)
        find = models.find(asked.model, "embed", caller, priority=asked.priority or 0)
        served = await while_connected(request.receive, find)
        work = embeddings.embeddings(served, asked, caller)
        return LargeJson(await while_connected(request.receive, work))

    async def rerank(request: Request) -> Response:
        """Documents by how well they answer a query."""
        caller = caller_of(request, timeout=timeout)
        models.expect("rerank", caller)
        asked = await body.read(request, RerankRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.query, models.settings)
        find = models.find(asked.model, "rerank", caller, priority=asked.priority or 0)
        served = await while_connected(request.receive, find)
        version: Literal["1", "2"] = "2" if request.url.path.endswith(RERANK_2) else "1"
        work = embeddings.rerank(served, asked, caller, version)
        return LargeJson(await while_connected(request.receive, work))

    async def score(request: Request) -> Response:
        """How well texts go together: a reranker's score of each pair, or the cosine of their vectors."""
        caller = caller_of(request, timeout=timeout)
        models.expect(None, caller)
        asked = await body.read(request, ScoreRequest, max_bytes=max_bytes)
        note_prompt(caller, asked.text_1, models.settings)
        task, priority = models.task_of_pairs(asked.model), asked.priority or 0
        find = models.find(asked.model, task, caller, priority=priority)
        served = await while_connected(request.receive, find)
        check_task_of_score(served)
        work = embeddings.score(served, asked, caller)
        return LargeJson(await while_connected(request.receive, work))

    def operation(path: str, handler: Handler, asked: type[Strict], answer: type) -> Operation:
        return Operation("POST", path, handler, tag="vectors", body=asked, answers={200: answer})

    return [
        operation(embeddings.EMBEDDINGS, embed, EmbeddingsRequest, Embeddings),
        *(
            operation(path, rerank, RerankRequest, Ranking)
            for path in (embeddings.RERANK, RERANK_2, "/rerank")
        ),
        *(operation(path, score, ScoreRequest, Scores) for path in (embeddings.SCORE, "/score")),
    ]

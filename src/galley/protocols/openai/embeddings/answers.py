"""Embeddings, rerank and score: vectors and scores of texts."""

import base64
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Final, Literal, NotRequired, TypedDict

from galley.errors import RequestError
from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.receipt import Receipt
from galley.gateway.served import ServedModel
from galley.gateway.vectors import REMEDY, Prepared, Vectors, cut_to
from galley.protocols.openai.embeddings.schemas import (
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
)
from galley.protocols.openai.usage import ReceiptFields, receipt_fields
from galley.service.vector_requests import check_dimensions, prompt_of

EMBEDDINGS: Final = "/v1/embeddings"
RERANK: Final = "/v1/rerank"
SCORE: Final = "/v1/score"


class VectorUsage(ReceiptFields):
    """Token counts of one request, including special tokens, and its receipt."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(TypedDict):
    """The vectors of all texts, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: VectorUsage


class Ranked(TypedDict):
    """A document, by its index, with its relevance to the query."""

    index: int
    relevance_score: float
    document: NotRequired[dict[str, Any]]


class ApiVersion(TypedDict):
    """The version of Cohere's API."""

    version: Literal["1", "2"]


class RankingTokens(TypedDict):
    """Token counts of a query with its documents, including special tokens."""

    input_tokens: int
    output_tokens: int


class RankingMeta(TypedDict):
    """Metadata of Cohere's answers. ``billed_units`` are tokens, not Cohere's search units."""

    api_version: ApiVersion
    billed_units: RankingTokens
    tokens: RankingTokens


class Ranking(TypedDict):
    """The documents, best first. ``usage`` is as in Jina's and vLLM's API, ``meta`` in Cohere's."""

    id: str
    model: str
    results: list[Ranked]
    usage: VectorUsage
    meta: RankingMeta


class Score(TypedDict):
    """The score of one pair."""

    object: Literal["score"]
    index: int
    score: float


class Scores(TypedDict):
    """The scores of all pairs, in the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage


@dataclass(frozen=True, kw_only=True)
class EmbedTexts:
    """An embedding request, independent of the protocol.

    Attributes:
        texts: the texts, or token ids, which are used as they are.
        params: names of the fields that hold the texts, for errors.
        endpoint: path of the route.
        truncate: see :func:`galley.gateway.vectors.cut_to`.
        dimensions: number of dimensions of the vectors; None: all.
        input_type: name of one of the model's prompts.
        priority: lower is sooner.
        remedy: advice in the error for a text that is too long.
    """

    texts: Sequence[str | list[int]]
    params: Sequence[str]
    endpoint: str
    truncate: int | None = None
    dimensions: int | None = None
    input_type: str | None = None
    priority: int = 0
    remedy: str = REMEDY


def names_of(field: str, count: int) -> list[str]:
    """Return the names that errors use for each of a field's ``count`` texts."""
    return [field] if count == 1 else [f"{field}[{index}]" for index in range(count)]


async def embeddings(served: ServedModel, parsed: EmbeddingsRequest, caller: Caller) -> Embeddings:
    """Return the answer to one request.

    Raises:
        GalleyError: the request is refused or fails; ``errors.to_api_error`` maps it for clients.
    """
    given = parsed.inputs()
    wanted = EmbedTexts(
        texts=given,
        params=names_of("input", len(given)),
        endpoint=EMBEDDINGS,
        truncate=parsed.truncate_prompt_tokens,
        dimensions=parsed.dimensions,
        input_type=parsed.input_type,
        priority=parsed.priority or 0,
    )
    found, tokens, receipt = await vectors_of(served, wanted, caller)
    encode = _base64 if parsed.encoding_format == "base64" else floats
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(found)
        ],
        "model": served.name,
        "usage": _usage(tokens, receipt),
    }


async def vectors_of(
    served: ServedModel, parsed: EmbedTexts, caller: Caller
) -> tuple[list[bytes], int, Receipt]:
    """Return the vectors of texts (float32), their number of tokens and the receipt.

    Raises:
        GalleyError: the request is refused or fails; ``errors.to_api_error`` maps it for clients.
    """
    with opened(Call(served, parsed.endpoint, caller)) as call:
        call.check_early(parsed.priority)
        width = check_dimensions(parsed.dimensions, call.info)
        prompt = prompt_of(parsed.input_type, call.info, param="input_type")
        texts = [prompt + text for text in parsed.texts if isinstance(text, str)]
        most = cut_to(call, parsed.truncate)
        work = call.text
        encoded = await (work.encode(texts) if most is None else work.encode_cut(texts, most))
        ids = iter(encoded)
        prepared = [
            Prepared(next(ids) if isinstance(text, str) else text[:most], param)
            for text, param in zip(parsed.texts, parsed.params, strict=True)
        ]
        vectors = Vectors(
            call, prepared, dimensions=width, priority=parsed.priority, remedy=parsed.remedy
        )
    try:
        return await vectors.all(), vectors.tokens, call.receipt
    finally:
        vectors.close()


async def rerank(
    served: ServedModel, parsed: RerankRequest, caller: Caller, version: Literal["1", "2"]
) -> Ranking:
    """Return the answer to one request, in the form of a version of Cohere's API.

    Raises:
        GalleyError: the request is refused or fails; ``errors.to_api_error`` maps it for clients.
    """
    texts = parsed.texts()
    pairs = [(parsed.query, text) for text in texts]
    params = [f"documents[{index}] with the query" for index in range(len(texts))]
    call = Call(served, RERANK, caller)
    scores, usage = await _pair_scores(
        call, pairs, params, parsed.cut, parsed.priority, parsed.max_tokens_per_doc
    )
    documents = parsed.objects() if parsed.return_documents else []
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results: list[Ranked] = []
    for index in order[: parsed.top_n]:
        result: Ranked = {"index": index, "relevance_score": scores[index]}
        if parsed.return_documents:
            result["document"] = documents[index]
        results.append(result)
    name = f"rerank-{caller.request_id}"
    tokens: RankingTokens = {"input_tokens": usage["prompt_tokens"], "output_tokens": 0}
    return {
        "id": name,
        "model": served.name,
        "results": results,
        "usage": usage,
        "meta": {"api_version": {"version": version}, "billed_units": tokens, "tokens": tokens},
    }


async def score(served: ServedModel, parsed: ScoreRequest, caller: Caller) -> Scores:
    """Return the scores of a reranker, or for other models the cosines of vectors.

    Raises:
        GalleyError: the request is refused or fails; ``errors.to_api_error`` maps it for clients.
    """
    pairs = parsed.pairs()
    if "rerank" in (served.tasks or ()):
        params = [f"pair {index}" for index in range(len(pairs))]
        scores, usage = await _pair_scores(
            Call(served, SCORE, caller),
            pairs,
            params,
            parsed.truncate_prompt_tokens,
            parsed.priority,
        )
    else:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        wanted = EmbedTexts(
            texts=texts,
            params=["text_1 and text_2"] * len(texts),
            endpoint=SCORE,
            truncate=parsed.truncate_prompt_tokens,
            priority=parsed.priority or 0,
        )
        found, tokens, receipt = await vectors_of(served, wanted, caller)
        usage = _usage(tokens, receipt)
        vectors = dict(zip(texts, map(floats, found), strict=True))
        scores = [_cosine(vectors[first], vectors[second]) for first, second in pairs]
    return {
        "id": f"score-{caller.request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": served.name,
        "data": [
            {"object": "score", "index": index, "score": value}
            for index, value in enumerate(scores)
        ],
        "usage": usage,
    }


async def _pair_scores(
    call: Call,
    pairs: Sequence[tuple[str, str]],
    params: Sequence[str],
    cut: int | None,
    priority: int | None,
    most_second: int | None = None,
) -> tuple[list[float], VectorUsage]:
    """Return scores of pairs and usage.

    Args:
        call: the call to run the pairs in.
        pairs: first and second texts.
        params: names of the pairs, for errors.
        cut: limit on a pair's tokens, in the form of ``truncate_prompt_tokens``.
        priority: lower is sooner; None: 0.
        most_second: limit on the tokens of the second text, applied before ``cut``; None: no limit.
    """
    priority = priority or 0
    with opened(call):
        call.check_early(priority)
        most = cut_to(call, cut)
        encoded = await _encoded(call, pairs, most, most_second)
        prepared = []
        for (ids, second), param in zip(encoded, params, strict=True):
            types = call.info.vectors is not None and call.info.vectors.pair_types
            prepared.append(Prepared(ids, param, second if types else 0))
        vectors = Vectors(call, prepared, priority=priority)
    try:
        scores = [floats(vector)[0] for vector in await vectors.all()]
        return scores, _usage(vectors.tokens, call.receipt)
    finally:
        vectors.close()


async def _encoded(
    call: Call, pairs: Sequence[tuple[str, str]], most: int | None, most_second: int | None
) -> list[tuple[list[int], int]]:
    """Encode pairs; consecutive pairs with the same first text are tokenized together."""
    encoded: list[tuple[list[int], int]] = []
    while len(encoded) < len(pairs):
        first = pairs[len(encoded)][0]
        seconds = []
        for pair in pairs[len(encoded) :]:
            if pair[0] != first:
                break
            seconds.append(pair[1])
        encoded += await call.text.encode_pairs(first, seconds, most, most_second)
    return encoded


def check_task_of_score(served: ServedModel) -> None:
    """Raise RequestError if a model neither reranks nor embeds."""
    tasks = served.tasks or ()
    if not {"embed", "rerank"} & set(tasks):
        raise RequestError(
            f"The model {served.name!r} cannot rerank or embed; it can {', '.join(tasks)}",
            param="model",
        )


def floats(vector: bytes) -> list[float]:
    """Return the numbers of a float32 vector."""
    return array("f", vector).tolist()


def _base64(vector: bytes) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers).decode()


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    products = (sum(x * y for x, y in zip(p, q, strict=True)) for p, q in ((a, b), (a, a), (b, b)))
    ab, aa, bb = products
    return ab / max(1e-12, sqrt(aa * bb))


def _usage(tokens: int, receipt: Receipt) -> VectorUsage:
    usage: VectorUsage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {**usage, **receipt_fields(receipt)}

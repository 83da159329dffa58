"""Embedding of texts and scoring of pairs with an engine in the caller's process."""

import uuid
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from galley.errors import EngineError, RequestError
from galley.llm.local import LocalEngine
from galley.service.requests import check_task
from galley.service.vector_requests import check_dimensions, prompt_of, vector_request
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest, Vector

Vectors = npt.NDArray[np.float32]

_REMEDY: Final = "; pass truncate=True to cut it"


def embed(
    engine: LocalEngine,
    tokenizer: Callable[[], Tokenizer],
    texts: Sequence[str | list[int]],
    *,
    dimensions: int | None,
    prompt_name: str | None,
    truncate: bool,
    advance: Callable[[int], object],
) -> Vectors:
    """Embed texts; see :meth:`galley.llm.LLM.embed`.

    ``advance`` is called with the number of texts that have been finished since its last call.
    """
    info = engine.info
    check_task(info, "embed")
    prompt, width = (
        prompt_of(prompt_name, info, param="prompt_name"),
        check_dimensions(dimensions, info),
    )
    most = info.max_request_tokens if truncate else None

    def ids_of(text: str | list[int]) -> list[int]:
        if not isinstance(text, str):
            return text[:most]
        if most is None:
            return tokenizer().encode(prompt + text)
        return tokenizer().encode_cut([prompt + text], most)[0]

    requests = [
        vector_request(
            ids_of(text),
            info,
            request_id=uuid.uuid4().hex,
            dimensions=width,
            param=f"texts[{index}]",
            remedy=_REMEDY,
        )
        for index, text in enumerate(texts)
    ]
    return _vectors(engine, requests, advance)


def rerank(
    engine: LocalEngine,
    tokenizer: Tokenizer,
    query: str,
    documents: Sequence[str],
    *,
    truncate: bool,
) -> list[float]:
    """Score documents for a query; see :meth:`galley.llm.LLM.rerank`."""
    info = engine.info
    check_task(info, "rerank")
    assert info.vectors is not None
    most = info.max_request_tokens if truncate else None
    requests = [
        vector_request(
            ids,
            info,
            request_id=uuid.uuid4().hex,
            second=second if info.vectors.pair_types else 0,
            param=f"documents[{index}]",
            remedy=_REMEDY,
        )
        for index, (ids, second) in enumerate(tokenizer.encode_pairs(query, documents, most))
    ]
    scores: list[float] = _vectors(engine, requests, lambda _: None)[:, 0].tolist()
    return scores


def _vectors(
    engine: LocalEngine, requests: Sequence[EngineRequest], advance: Callable[[int], object]
) -> Vectors:
    """Run the requests and return their vectors in order, [requests, width]."""
    if not requests:
        raise RequestError("there are no texts", param="texts")
    places = {request.id: place for place, request in enumerate(requests)}
    found: list[Vectors | None] = [None] * len(requests)
    run = engine.run(requests)
    try:
        for output in run:
            if not isinstance(output.result, Vector):
                raise EngineError(output.error or "the engine returned no vector for a text")
            found[places[output.request_id]] = np.frombuffer(output.result.data, np.float32)
            advance(1)
    finally:
        run.close()
    return np.stack([vector for vector in found if vector is not None])

"""Converts token ids of texts and pairs to engine requests for vectors and scores."""

from galley.errors import ContextExceeded, RequestError
from galley.service.requests import check_ids
from galley.types import Embed, EngineRequest
from galley.types.model_info import ModelInfo


def vector_request(
    ids: list[int],
    info: ModelInfo,
    *,
    request_id: str,
    second: int = 0,
    dimensions: int = 0,
    priority: int = 0,
    param: str = "input",
    context: int | None = None,
    remedy: str = "",
) -> EngineRequest:
    """Return a request for the vector of a text, or the score of a pair.

    Args:
        ids: token ids of the text, with its special tokens; for a pair, of both texts.
        info: description of a model that embeds or reranks.
        request_id: unique.
        second: index of the second text's first token, if its tokens have another type; 0: none have.
        dimensions: length of the vector; 0: as in the checkpoint. See :func:`check_dimensions`.
        priority: a lower value is scheduled sooner.
        param: the field to name if the text is at fault.
        context: the most tokens of a text, if less than the model's context.
        remedy: advice for a text that is too long, appended to the error.

    Raises:
        RequestError: there is no token, or an id is outside the model's vocabulary.
        ContextExceeded: the text is longer than the model accepts.
    """
    if not ids:
        raise RequestError(f"{param} is empty; a text needs at least one token", param=param)
    check_ids(param, ids, info)
    most = info.max_request_tokens if context is None else min(info.max_request_tokens, context)
    if len(ids) > most:
        raise ContextExceeded(
            f"{param} has {len(ids)} tokens; {info.name} accepts at most {most}{remedy}",
            param=param,
        )
    return EngineRequest(
        id=request_id,
        payload=Embed(prompt=ids, second=second, dimensions=dimensions),
        priority=priority,
    )


def check_dimensions(dimensions: int | None, info: ModelInfo) -> int:
    """Return the number of ``dimensions`` for the engine; 0: as in the checkpoint, often all.

    Raises:
        RequestError: a vector cannot be cut to this length.
    """
    vectors = info.vectors
    assert vectors is not None
    if dimensions is None:
        return 0
    known = (*vectors.dimensions, vectors.width) if vectors.dimensions else ()
    if not 1 <= dimensions <= vectors.width or (known and dimensions not in known):
        which = ", ".join(map(str, vectors.dimensions)) or f"1 to {vectors.width}"
        raise RequestError(
            f"dimensions is {dimensions}; {info.name} supports {which}", param="dimensions"
        )
    return dimensions


def prompt_of(name: str | None, info: ModelInfo, *, param: str) -> str:
    """Return the prefix of a text: the model's prompt of that name, or its default, which is often empty.

    Raises:
        RequestError: the model has no such prompt; the error names ``param``.
    """
    vectors = info.vectors
    assert vectors is not None
    name = vectors.default_prompt if name is None else name
    if name is None:
        return ""
    if name not in vectors.prompts:
        known = ", ".join(map(repr, vectors.prompts)) or "none"
        raise RequestError(
            f"{param} is {name[:100]!r}; {info.name} has these prompts: {known}", param=param
        )
    return vectors.prompts[name]

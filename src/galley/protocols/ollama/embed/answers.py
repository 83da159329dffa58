"""Ollama's ``/api/embed`` and ``/api/embeddings``: requests and answers."""

from typing import Annotated, Final, NotRequired, TypedDict

from msgspec import Meta

from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel
from galley.protocols.common.messages import Strict
from galley.protocols.ollama.options import (
    KeepAlive,
    Options,
    kept_seconds,
    known_options,
    option_warnings,
)
from galley.protocols.openai.embeddings.answers import EmbedTexts, floats, names_of, vectors_of
from galley.protocols.openai.inputs import Texts

EMBED: Final = "/api/embed"
EMBEDDINGS: Final = "/api/embeddings"

_BILLION: Final = 10**9


class OllamaEmbedRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/embed`."""

    model: str
    input: str | Texts = ""
    truncate: Annotated[
        bool | None,
        Meta(description="Whether longer texts are cut to the model's context. Default: true."),
    ] = None
    dimensions: Annotated[int | None, Meta(description="Default: all.")] = None
    options: Annotated[
        Options,
        Meta(description="Accepted and ignored; the answer has a warning for unknown ones."),
    ] = None
    keep_alive: KeepAlive = None

    def __post_init__(self) -> None:
        known_options(self.options)

    @property
    def kept_seconds(self) -> float | None:
        """``keep_alive`` in seconds; see :func:`galley.protocols.ollama.options.kept_seconds`."""
        return kept_seconds(self.keep_alive)

    def texts(self) -> list[str]:
        """Return the texts; a request without any only has the model loaded.

        Raises:
            RequestError: a text is empty.
        """
        if not self.input:
            return []
        texts = [self.input] if isinstance(self.input, str) else self.input
        for index, text in enumerate(texts):
            if not text:
                raise RequestError(f"input[{index}] is empty", param="input")
        return texts


class OllamaEmbeddingRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/embeddings`, which is older than `/api/embed` and accepts one text."""

    model: str
    prompt: Annotated[str | None, Meta(description="Cut to the model's context.")] = None
    options: Annotated[
        Options,
        Meta(description="Accepted and ignored; the answer has a warning for unknown ones."),
    ] = None
    keep_alive: KeepAlive = None

    def newer(self) -> OllamaEmbedRequest:
        """Return the equivalent request for `/api/embed`.

        Raises:
            RequestError: an option has an invalid value.
        """
        return OllamaEmbedRequest(
            model=self.model,
            input=self.prompt or "",
            options=self.options,
            keep_alive=self.keep_alive,
        )


class OllamaEmbedding(TypedDict):
    """The vector of a text."""

    embedding: list[float]
    warnings: NotRequired[list[str]]


class OllamaEmbeddings(TypedDict):
    """The vectors, in the order of the texts; durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    warnings: NotRequired[list[str]]


def empty(parsed: OllamaEmbedRequest) -> OllamaEmbeddings:
    """Return the answer to a request without texts."""
    answer: OllamaEmbeddings = {
        "model": parsed.model,
        "embeddings": [],
        "total_duration": 0,
        "load_duration": 0,
        "prompt_eval_count": 0,
    }
    if warnings := option_warnings(parsed.options):
        answer["warnings"] = warnings
    return answer


def older(answer: OllamaEmbeddings) -> OllamaEmbedding:
    """Convert an answer to the form of ``/api/embeddings``."""
    embedding: OllamaEmbedding = {"embedding": next(iter(answer["embeddings"]), [])}
    if "warnings" in answer:
        embedding["warnings"] = answer["warnings"]
    return embedding


async def embed(
    served: ServedModel, parsed: OllamaEmbedRequest, caller: Caller, *, endpoint: str = EMBED
) -> OllamaEmbeddings:
    """Return the answer to one request.

    Raises:
        GalleyError: the request is refused or fails; ``errors.to_api_error`` maps it for clients.
    """
    texts, answer = parsed.texts(), empty(parsed)
    if not texts:
        return answer
    wanted = EmbedTexts(
        texts=texts,
        params=names_of("input", len(texts)),
        endpoint=endpoint,
        truncate=None if parsed.truncate is False else -1,
        dimensions=parsed.dimensions,
        remedy="; leave out truncate: false to cut it",
    )
    found, tokens, receipt = await vectors_of(served, wanted, caller)
    seconds = receipt.queue_seconds + receipt.prefill_seconds + receipt.decode_seconds
    answer["embeddings"] = [floats(vector) for vector in found]
    answer["total_duration"] = int(_BILLION * seconds)
    answer["prompt_eval_count"] = tokens
    return answer

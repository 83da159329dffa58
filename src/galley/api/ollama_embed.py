"""Ollama's ``/api/embed``: what is asked, and the answer."""

from typing import Annotated, Final, TypedDict

from msgspec import Meta

from galley.api.embeddings import Asked, floats, names_of, vectors_of
from galley.api.messages import Strict
from galley.api.ollama_request import KeepAlive, kept_seconds
from galley.api.schemas import Texts
from galley.errors import RequestError
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel

EMBED: Final = "/api/embed"

_BILLION: Final = 10**9
_UNUSED: Final = Meta(description="Taken and not used.")


class OllamaEmbedOptions(Strict, frozen=True, kw_only=True):
    """How Ollama's server would load the model: settings say that here."""

    num_ctx: Annotated[int | None, _UNUSED] = None
    num_batch: Annotated[int | None, _UNUSED] = None
    num_gpu: Annotated[int | None, _UNUSED] = None
    main_gpu: Annotated[int | None, _UNUSED] = None
    num_thread: Annotated[int | None, _UNUSED] = None
    numa: Annotated[bool | None, _UNUSED] = None
    low_vram: Annotated[bool | None, _UNUSED] = None
    use_mmap: Annotated[bool | None, _UNUSED] = None
    use_mlock: Annotated[bool | None, _UNUSED] = None


class OllamaEmbedRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /api/embed`."""

    model: str
    input: str | Texts = ""
    truncate: Annotated[
        bool | None,
        Meta(description="Whether longer texts are cut to what the model takes. Default: true."),
    ] = None
    dimensions: Annotated[int | None, Meta(description="Default: all.")] = None
    options: OllamaEmbedOptions | None = None
    keep_alive: KeepAlive = None

    @property
    def kept_seconds(self) -> float | None:
        """See :func:`galley.api.ollama_request.kept_seconds`."""
        return kept_seconds(self.keep_alive)

    def texts(self) -> list[str]:
        """None asks for nothing but that the model be loaded. Raises RequestError if one is empty."""
        if not self.input:
            return []
        texts = [self.input] if isinstance(self.input, str) else self.input
        for index, text in enumerate(texts):
            if not text:
                raise RequestError(f"input[{index}] is empty", param="input")
        return texts


class OllamaEmbeddings(TypedDict):
    """The vectors, in the order of the texts; durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


async def embed(served: ServedModel, asked: OllamaEmbedRequest, caller: Caller) -> OllamaEmbeddings:
    """The answer to one request. Raises GalleyError as ``errors.to_api_error`` tells clients."""
    texts = asked.texts()
    answer: OllamaEmbeddings = {
        "model": asked.model,
        "embeddings": [],
        "total_duration": 0,
        "load_duration": 0,
        "prompt_eval_count": 0,
    }
    if not texts:
        return answer
    wanted = Asked(
        texts=texts,
        params=names_of("input", len(texts)),
        endpoint=EMBED,
        truncate=None if asked.truncate is False else -1,
        dimensions=asked.dimensions,
        remedy="; leave truncate false out to have it cut",
    )
    found, tokens, receipt = await vectors_of(served, wanted, caller)
    seconds = receipt.queue_seconds + receipt.prefill_seconds + receipt.decode_seconds
    answer["embeddings"] = [floats(vector) for vector in found]
    answer["total_duration"] = int(_BILLION * seconds)
    answer["prompt_eval_count"] = tokens
    return answer

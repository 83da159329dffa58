"""What is asked of models that embed and rerank, as by OpenAI, Cohere, Jina and vLLM."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from galley.api.messages import Strict
from galley.api.schemas import MAX_PROMPTS, Prompt, Texts, check_items
from galley.errors import RequestError

MAX_DOCUMENTS: Final = MAX_PROMPTS

Truncate: TypeAlias = Annotated[
    int | None,
    Meta(
        description="Cut texts to so many tokens, special tokens included; -1: to what the model takes. "
        "Without it longer texts are refused."
    ),
]
Priority: TypeAlias = Annotated[
    Annotated[int, Meta(ge=-100, le=100)] | None, Meta(description="Lower is sooner.")
]
User: TypeAlias = Annotated[str | None, Meta(description="Taken and not used.")]
ModelName: TypeAlias = Annotated[
    str | None,
    Meta(
        description="The served model's name, as in `GET /v1/models`. Default: the only one that does this."
    ),
]


class EmbeddingsRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`."""

    input: Prompt
    model: ModelName = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="`base64`: of float32, little-endian. Default: float."),
    ] = None
    dimensions: Annotated[
        int | None, Meta(description="The first so many of a vector. Default: all.")
    ] = None
    input_type: Annotated[
        str | None,
        Meta(description="Name of the model's prompt that is put before texts, such as `query`."),
    ] = None
    truncate_prompt_tokens: Truncate = None
    priority: Priority = None
    user: User = None

    def __post_init__(self) -> None:
        if not isinstance(self.input, str):
            check_items(self.input, "input")

    def inputs(self) -> list[str] | list[list[int]]:
        """The texts, or token ids of each, as a list in every case.

        Raises:
            RequestError: there is none, or one is empty.
        """
        given: Any = self.input
        if isinstance(given, str) or isinstance(next(iter(given), None), int):
            given = [given]
        for index, item in enumerate(given):
            if not item:
                raise RequestError(f"input[{index}] is empty", param="input")
        if not given:
            raise RequestError("input is empty; give at least one text", param="input")
        return given  # type: ignore[no-any-return]


class RerankDocument(Strict, frozen=True, kw_only=True):
    """A document as an object."""

    text: str


class RerankRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/rerank`."""

    query: str
    documents: Annotated[list[str | RerankDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    model: ModelName = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="The best so many. Default: all.")
    ] = None
    return_documents: Annotated[
        bool | None, Meta(description="Whether results have the documents. Default: false.")
    ] = None
    truncate_prompt_tokens: Truncate = None
    priority: Priority = None
    user: User = None

    def texts(self) -> list[str]:
        """Of the documents."""
        return [doc if isinstance(doc, str) else doc.text for doc in self.documents]


class ScoreRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/score`."""

    text_1: str | Texts
    text_2: str | Texts
    model: ModelName = None
    truncate_prompt_tokens: Truncate = None
    priority: Priority = None
    user: User = None

    def pairs(self) -> list[tuple[str, str]]:
        """One text with each of others, or as many with as many. Raises RequestError for other numbers."""
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) == 1:
            first = first * len(second)
        if not first or len(first) != len(second):
            raise RequestError(
                f"text_1 has {len(first)} texts and text_2 {len(second)}: give one text and any number, or "
                "as many of both",
                param="text_2",
            )
        return list(zip(first, second, strict=True))

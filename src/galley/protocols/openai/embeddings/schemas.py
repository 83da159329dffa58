"""Requests to models that embed and rerank, as in OpenAI's, Cohere's, Jina's and vLLM's APIs."""

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.protocols.openai.inputs import MAX_PROMPTS, Prompt, Texts, check_items

MAX_DOCUMENTS: Final = MAX_PROMPTS
MAX_RANK_FIELDS: Final = 64

Truncate: TypeAlias = Annotated[
    int | None,
    Meta(
        description="Cut texts to this many tokens, special tokens included; -1: to the model's context. "
        "By default, longer texts are rejected."
    ),
]
Priority: TypeAlias = Annotated[
    Annotated[int, Meta(ge=-100, le=100)] | None, Meta(description="Lower values are served first.")
]
User: TypeAlias = Annotated[str | None, Meta(description="Accepted and ignored.")]
ModelName: TypeAlias = Annotated[
    str | None,
    Meta(
        description="The served model's name, as in `GET /v1/models`. Default: the only suitable model."
    ),
]


class EmbeddingsRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/embeddings`."""

    input: Prompt
    model: ModelName = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="`base64`: float32, little-endian. Default: float."),
    ] = None
    dimensions: Annotated[
        int | None, Meta(description="Number of leading dimensions to return. Default: all.")
    ] = None
    input_type: Annotated[
        str | None,
        Meta(
            description="Name of one of the model's prompts to prepend to each text, such as `query`."
        ),
    ] = None
    truncate_prompt_tokens: Truncate = None
    priority: Priority = None
    user: User = None

    def __post_init__(self) -> None:
        if not isinstance(self.input, str):
            check_items(self.input, "input")

    def inputs(self) -> list[str] | list[list[int]]:
        """Return the texts, or the token ids of each, always as a list.

        Raises:
            RequestError: there are no inputs, or one is empty.
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


class RerankRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/rerank`: the fields of Cohere's APIs 1 and 2, Jina's and vLLM's."""

    query: str
    documents: Annotated[
        list[str | dict[str, Any]],
        Meta(
            min_length=1,
            max_length=MAX_DOCUMENTS,
            description="Texts, or objects with a text in `text` or in the fields of `rank_fields`.",
        ),
    ]
    model: ModelName = None
    top_n: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Number of best results to return. Default: all."),
    ] = None
    rank_fields: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=MAX_RANK_FIELDS)] | None,
        Meta(
            description="Fields of the documents to rank, in this order; several become a line "
            "`name: value` each. Default: `text`, the only field of a document that is a string."
        ),
    ] = None
    return_documents: Annotated[
        bool | None, Meta(description="Whether to return the documents. Default: false.")
    ] = None
    max_tokens_per_doc: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Cut each document to this many tokens, not counting the query's and special ones."
        ),
    ] = None
    max_chunks_per_doc: Annotated[
        int | None,
        Meta(description="1, the same as `truncation`: documents are not split into chunks."),
    ] = None
    truncation: Annotated[
        bool | None,
        Meta(
            description="Cut query and document to the model's context, the longer first. Default: false, "
            "which rejects longer ones."
        ),
    ] = None
    truncate_prompt_tokens: Truncate = None
    priority: Priority = None
    user: User = None

    def __post_init__(self) -> None:
        if self.max_chunks_per_doc not in (None, 1):
            raise RequestError(
                f"max_chunks_per_doc is {self.max_chunks_per_doc}, but documents are not split into "
                "chunks; send 1, which cuts documents that are too long, or leave it out",
                param="max_chunks_per_doc",
            )
        cut = self.max_chunks_per_doc is not None or self.truncate_prompt_tokens is not None
        if cut and self.truncation is False:
            raise RequestError(
                "truncation is false, but max_chunks_per_doc or truncate_prompt_tokens cuts texts; leave "
                "it out",
                param="truncation",
            )
        fields = self.rank_fields or ()
        if len(set(fields)) < len(fields):
            raise RequestError("rank_fields has a duplicate name", param="rank_fields")

    @property
    def cut(self) -> int | None:
        """Tokens that pairs are cut to, in the form of ``truncate_prompt_tokens``."""
        if self.truncate_prompt_tokens is None and (self.truncation or self.max_chunks_per_doc):
            return -1
        return self.truncate_prompt_tokens

    def objects(self) -> list[dict[str, Any]]:
        """Return the documents as objects; a text becomes the field ``text`` of one."""
        return [{"text": doc} if isinstance(doc, str) else doc for doc in self.documents]

    def texts(self) -> list[str]:
        """Return the text of each document that is ranked.

        Raises:
            RequestError: a document has none of the fields, or one is not text, number or boolean.
        """
        fields = self.rank_fields or ["text"]
        return [_ranked(index, doc, fields) for index, doc in enumerate(self.objects())]


def _ranked(index: int, document: dict[str, Any], fields: list[str]) -> str:
    """Return the text of a document to rank.

    It is the value of the only field, or the document's own among several fields as lines of YAML.
    """
    values: dict[str, str] = {}
    for name in fields:
        if name not in document:
            continue
        value = document[name]
        if not isinstance(value, str | int | float):
            param = f"documents[{index}].{name[:100]}"
            raise RequestError(
                f"{param} is ranked, so it must be a string, a number or a boolean", param=param
            )
        values[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if not values:
        named = " or ".join(repr(name[:100]) for name in fields)
        raise RequestError(
            f"documents[{index}] has no field {named} to rank; set rank_fields to its fields",
            param=f"documents[{index}]",
        )
    if len(fields) == 1:
        return values[fields[0]]
    return "\n".join(f"{name}: {value}" for name, value in values.items())


class ScoreRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /v1/score`."""

    text_1: str | Texts
    text_2: str | Texts
    model: ModelName = None
    truncate_prompt_tokens: Truncate = None
    priority: Priority = None
    user: User = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs: one text with each of the others, or texts at the same index.

        Raises:
            RequestError: the numbers of texts do not match.
        """
        first = [self.text_1] if isinstance(self.text_1, str) else self.text_1
        second = [self.text_2] if isinstance(self.text_2, str) else self.text_2
        if len(first) == 1:
            first = first * len(second)
        if not first or len(first) != len(second):
            raise RequestError(
                f"text_1 has {len(first)} texts and text_2 {len(second)}; give one text and any number, or "
                "the same number of both",
                param="text_2",
            )
        return list(zip(first, second, strict=True))

"""Structured output fields: OpenAI's ``response_format``, and vLLM's names for the others."""

from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from galley.errors import RequestError
from galley.types import Grammar

ANY_OBJECT: Final = Grammar("json_schema", '{"type":"object"}')
MAX_CHOICES: Final = 10_000

Schema: TypeAlias = dict[str, Any]
Choices: TypeAlias = Annotated[
    list[Annotated[str, Meta(min_length=1)]], Meta(min_length=1, max_length=MAX_CHOICES)
]

JsonField: TypeAlias = Annotated[
    Schema | str | None, Meta(description="A JSON schema, or its text, that the answer must match.")
]
RegexField: TypeAlias = Annotated[
    str | None, Meta(description="A regular expression that the whole answer must match.")
]
ChoiceField: TypeAlias = Annotated[
    Choices | None, Meta(description="Texts, one of which must be the answer.")
]
GrammarField: TypeAlias = Annotated[
    str | None,
    Meta(description="A grammar in Lark's notation or in GBNF that the answer must match."),
]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of request structs: no type conversions, no unknown fields."""


class JsonSchemaFormat(_Strict, frozen=True, kw_only=True):
    """``response_format.json_schema``."""

    name: Annotated[
        str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z", description="Accepted and ignored.")
    ]
    schema: Schema
    description: Annotated[str | None, Meta(description="Accepted and ignored.")] = None
    strict: Annotated[
        bool | None,
        Meta(description="Accepted and ignored: the schema is always enforced exactly."),
    ] = None


class ResponseFormat(_Strict, frozen=True, kw_only=True):
    """``response_format``: any text, any JSON object, or JSON that a schema describes."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def __post_init__(self) -> None:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise RequestError(
                'json_schema is required with type "json_schema", and only allowed with it',
                param="json_schema",
            )


class StructuredOutputs(_Strict, frozen=True, kw_only=True):
    """``structured_outputs``: exactly one of its fields, with vLLM's names."""

    json: JsonField = None
    json_object: Annotated[bool | None, Meta(description="Any JSON object.")] = None
    regex: RegexField = None
    choice: ChoiceField = None
    grammar: GrammarField = None


class Constraint(NamedTuple):
    """A grammar, and the request field that specifies it."""

    field: str
    grammar: Grammar


def constraint_of(request: msgspec.Struct) -> Constraint | None:
    """Return the constraint on the answer's form; None for any text.

    Args:
        request: has the fields ``structured_outputs`` and ``guided_*``, maybe ``response_format``.

    Raises:
        RequestError: the request specifies two forms; ``param`` names the field of the second.
    """
    found = _of_format(getattr(request, "response_format", None))
    outputs: StructuredOutputs | None = getattr(request, "structured_outputs", None)
    if outputs is not None:
        inner = _of_fields(outputs, "structured_outputs.", ("json", "regex", "choice", "grammar"))
        if outputs.json_object:
            inner.append(Constraint("structured_outputs.json_object", ANY_OBJECT))
        if not inner:
            raise RequestError(
                "structured_outputs needs exactly one of json, json_object, regex, choice and grammar",
                param="structured_outputs",
            )
        found += inner
    found += _of_fields(request, "guided_", ("json", "regex", "choice", "grammar"))
    if len(found) > 1:
        first, second, *_ = found
        raise RequestError(
            f"{second.field} and {first.field} exclude each other; give only one",
            param=second.field,
        )
    return found[0] if found else None


def _of_format(parsed: ResponseFormat | None) -> list[Constraint]:
    if parsed is None or parsed.type == "text":
        return []
    if parsed.json_schema is None:
        return [Constraint("response_format", ANY_OBJECT)]
    grammar = schema_grammar(parsed.json_schema.schema)
    return [Constraint("response_format.json_schema.schema", grammar)]


def schema_grammar(schema: Any) -> Grammar:
    """Return the grammar of JSON texts that satisfy ``schema``."""
    return Grammar("json_schema", _json(schema))


def _of_fields(fields: msgspec.Struct, prefix: str, names: tuple[str, ...]) -> list[Constraint]:
    """Return constraints of those ``names`` that have a value.

    A request's own fields include the prefix in their names.
    """
    start = "" if prefix.endswith(".") else prefix
    found = []
    for name in names:
        value = getattr(fields, start + name)
        if value is None:
            continue
        field = prefix + name
        match name:
            case "json":
                grammar = Grammar("json_schema", value if isinstance(value, str) else _json(value))
            case "regex":
                grammar = Grammar("regex", value)
            case "choice":
                grammar = Grammar("choice", _json(value))
            case _:
                grammar = Grammar("grammar", value)
        found.append(Constraint(field, grammar))
    return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

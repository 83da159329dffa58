"""Texts and token ids of requests, one or several, within limits."""

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from galley.errors import RequestError

# Limits far above practical use, to bound the work that a hostile body can cause.
MAX_PROMPTS: Final = 2048
MAX_PROMPT_IDS: Final = 2**20

Texts: TypeAlias = Annotated[list[str], Meta(max_length=MAX_PROMPTS)]

TokenIds: TypeAlias = Annotated[list[int], Meta(max_length=MAX_PROMPT_IDS)]

_ID_LISTS: Final = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "maxItems": MAX_PROMPT_IDS},
    "maxItems": MAX_PROMPTS,
}

Prompt: TypeAlias = Annotated[
    str | Annotated[list[str | int | TokenIds], Meta(max_length=MAX_PROMPT_IDS)],
    # All items of a list have one type, which msgspec's types cannot express.
    Meta(
        description="A text, token ids, or a list of either.",
        extra_json_schema={
            "allOf": [
                {
                    "anyOf": [
                        {"type": "string"},
                        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PROMPTS},
                        {"type": "array", "items": {"type": "integer"}},
                        _ID_LISTS,
                    ]
                }
            ]
        },
    ),
]


def check_items(items: list[Any], param: str) -> None:
    """Raise RequestError if items are of mixed types, or too many for their type."""
    kinds = {type(item) for item in items}
    if len(kinds) > 1:
        raise RequestError(
            f"{param}: expected texts, token ids or lists of token ids, not a mixture", param=param
        )
    if kinds != {int} and len(items) > MAX_PROMPTS:
        raise RequestError(f"{param} must have at most {MAX_PROMPTS} items", param=param)

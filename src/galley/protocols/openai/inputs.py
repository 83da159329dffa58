"""Texts and token ids as requests give them, one or several, within bounds."""

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta

from galley.errors import RequestError

# Bounds far beyond use, which keep the work that a hostile body can ask for small.
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
    # One kind of items in a list, which msgspec has no type for.
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
    """Raise RequestError unless the items are of one kind, and no more than of that kind are taken."""
    kinds = {type(item) for item in items}
    if len(kinds) > 1:
        raise RequestError(
            f"{param}: expected texts, token ids or lists of token ids, not a mixture", param=param
        )
    if kinds != {int} and len(items) > MAX_PROMPTS:
        raise RequestError(f"{param}: at most {MAX_PROMPTS} items are taken", param=param)

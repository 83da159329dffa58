"""The served models, as Anthropic's API lists them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypedDict

from msgspec import Meta

from galley.errors import RequestError
from galley.protocols.common.messages import Strict
from galley.protocols.openai.models.answers import ModelCard

VERSION: Final = "anthropic-version"
"""Header that Anthropic's clients send, and no others."""


class ModelsQuery(Strict, frozen=True, kw_only=True):
    """Query for a page of models, in requests with the header `anthropic-version`."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    after_id: Annotated[str, Meta(description="A model's id: the page begins after it.")] = ""
    before_id: Annotated[str, Meta(description="A model's id: the page ends before it.")] = ""
    beta: Annotated[bool | None, Meta(description="Accepted and ignored.")] = None


class AnthropicModel(TypedDict):
    """One model."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModels(TypedDict):
    """A page of models."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def model_of(card: ModelCard) -> AnthropicModel:
    """Return a card as Anthropic's model.

    ``created_at`` is the time at which the model became ready, to the second, in UTC.
    """
    created = datetime.fromtimestamp(card["created"], UTC)
    return {
        "type": "model",
        "id": card["id"],
        "display_name": card["id"],
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
    }


def page_of(cards: Sequence[ModelCard], query: ModelsQuery) -> AnthropicModels:
    """Return the requested page.

    Raises:
        RequestError: no model has the id ``after_id`` or ``before_id``.
    """
    ids = [card["id"] for card in cards]
    first = _place(ids, query.after_id, "after_id") + 1 if query.after_id else 0
    last = _place(ids, query.before_id, "before_id") if query.before_id else len(ids)
    if query.before_id and not query.after_id:
        first = max(first, last - query.limit)
    end = min(last, first + query.limit)
    data = [model_of(card) for card in cards[first:end]]
    return {
        "data": data,
        "has_more": first > 0 if query.before_id and not query.after_id else end < last,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _place(ids: Sequence[str], name: str, param: str) -> int:
    if name not in ids:
        raise RequestError(f"{param}: model {name[:100]!r} does not exist", param=param)
    return ids.index(name)

"""Requests of ``/tokenize`` and ``/detokenize``, field by field."""

from typing import Annotated

from msgspec import Meta

from galley.protocols.common.messages import Messages, Strict
from galley.protocols.openai.inputs import TokenIds


class TokenizeRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: Annotated[
        bool | None,
        Meta(description="Only with `prompt`: whether to add BOS and the like. Default: true."),
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        Meta(description="Only with `messages`: whether to open the answer. Default: true."),
    ] = None


class DetokenizeRequest(Strict, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: TokenIds

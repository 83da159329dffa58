"""Every field of the SDKs is honored or deliberately refused; a newer SDK shows what is new."""

from typing import Any

import msgspec
import pytest
from anthropic.types import (
    CacheControlEphemeralParam,
    TextBlockParam,
    ThinkingConfigAdaptiveParam,
    ToolParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
    message_create_params,
)
from anthropic.types import beta as beta_types
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import (
    input_token_count_params,
    response_compact_params,
    response_create_params,
)

from galley.errors import RequestError
from galley.protocols.anthropic import blocks
from galley.protocols.anthropic import schemas as anthropic_request
from galley.protocols.common.validate import validate
from galley.protocols.openai.chat.schemas import ChatRequest
from galley.protocols.openai.completions.schemas import CompletionRequest
from galley.protocols.openai.responses.schemas import (
    ResponseCompactRequest,
    ResponseCountRequest,
    ResponseRequest,
)

HEADERS = ("betas", "user_profile_id", "workspace_id")
"""Parameters that the SDK sends as headers."""

SAID: Any = [{"role": "user", "content": "x"}]
MESSAGES: dict[str, Any] = {"messages": SAID, "max_tokens": 1}
REQUESTS: list[tuple[Any, type[msgspec.Struct], dict[str, Any], set[str]]] = [
    (
        message_create_params.MessageCreateParamsBase,
        anthropic_request.MessagesRequest,
        MESSAGES,
        set(),
    ),
    (
        beta_types.message_create_params.MessageCreateParamsBase,
        anthropic_request.MessagesRequest,
        MESSAGES,
        {"billing_policy", "compaction", "fallback_credit_token", "thread"},
    ),
    (
        chat_create_params.CompletionCreateParamsBase,
        ChatRequest,
        {"messages": SAID},
        {"moderation"},
    ),
    (
        completion_create_params.CompletionCreateParamsBase,
        CompletionRequest,
        {"prompt": "x"},
        set(),
    ),
    (
        response_compact_params.ResponseCompactParams,
        ResponseCompactRequest,
        {"model": "x", "input": "x"},
        {"image"},
    ),
    (
        response_create_params.ResponseCreateParamsBase,
        ResponseRequest,
        {"input": "x"},
        {"access_programs", "context_management", "image", "moderation"},
    ),
    (
        input_token_count_params.InputTokenCountParams,
        ResponseCountRequest,
        {"input": "x"},
        {"personality"},
    ),
]
PARTS: list[tuple[Any, type[msgspec.Struct]]] = [
    (ToolParam, anthropic_request.AnthropicTool),
    (ToolUseBlockParam, blocks.ToolUseBlock),
    (ToolResultBlockParam, blocks.ToolResultBlock),
    (TextBlockParam, blocks.TextBlock),
    (CacheControlEphemeralParam, blocks.CacheControl),
    (ThinkingConfigAdaptiveParam, anthropic_request.Thinking),
]


def fields(params: Any) -> set[str]:
    return set(params.__required_keys__ | params.__optional_keys__)


@pytest.mark.parametrize(("params", "model", "least", "refused"), REQUESTS)
def test_every_field_of_a_request_is_known(
    params: Any, model: type[msgspec.Struct], least: dict[str, Any], refused: set[str]
) -> None:
    assert fields(params) - set(model.__struct_fields__) - set(HEADERS) == refused
    validate(model, least)
    for name in refused:
        with pytest.raises(RequestError) as error:
            validate(model, least | {name: "x"})
        assert error.value.param == name


@pytest.mark.parametrize(("params", "model"), PARTS)
def test_every_field_of_a_part_is_known(params: Any, model: type[msgspec.Struct]) -> None:
    assert fields(params) - set(model.__struct_fields__) <= {"type"}


def test_each_allowed_value_is_named_once() -> None:
    mark = {"type": "ephemeral", "ttl": "2h"}
    block = {"type": "text", "text": "x", "cache_control": mark}
    body: dict[str, Any] = {"model": "m", "max_tokens": 4}
    body |= {"messages": [{"role": "user", "content": [block]}]}
    with pytest.raises(RequestError, match=r"ttl: '2h' is not one of '1h', '5m'$"):
        validate(anthropic_request.MessagesRequest, body)

"""Every route's answers and events, validated strictly by the vendors' SDKs."""

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from tests.embedding.checkpoints import make_model
from tests.server.serving import Server
from tests.speech import tiny
from tests.speech.recordings import CALL
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_strict")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION: dict[str, Any] = {"name": "get_weather", "description": "x", "parameters": SCHEMA}
MESSAGES: Any = [{"role": "user", "content": "Who sat on the mat?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    make_calling(folder / "chat", max_position_embeddings=2048)
    (folder / "embed").mkdir()
    make_model(folder / "embed")
    (folder / "hearing").mkdir()
    tiny.make_whisper(folder / "hearing")
    models = [f"{name}={folder / name}" for name in ("chat", "embed", "hearing")]
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(models, log, kv_cache_tokens=4096, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def openai(server: Server) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{server.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic(server: Server) -> Iterator[Anthropic]:
    with Anthropic(
        base_url=server.url, api_key="x", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


CHATS: list[dict[str, Any]] = [
    {},
    {"logprobs": True, "top_logprobs": 2, "n": 2},
    {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"},
    {"reasoning_effort": "high"},
    {"prompt_cache_key": "x", "safety_identifier": "y", "store": True},
]


@pytest.mark.parametrize("fields", CHATS)
def test_chat(openai: OpenAI, fields: dict[str, Any]) -> None:
    params: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "max_tokens": 60, **fields}
    answer = openai.chat.completions.create(**params)
    assert answer.usage
    assert answer.usage.prompt_tokens_details
    options: Any = {"include_usage": True}
    chunks = list(openai.chat.completions.create(stream=True, stream_options=options, **params))
    assert chunks[-1].usage
    assert len(chunks) > 2


def test_completions(openai: OpenAI) -> None:
    params: dict[str, Any] = {"model": "chat", "prompt": "the cat", "max_tokens": 4, "logprobs": 2}
    # Only the last chunk has a finish_reason, as with OpenAI's server, though its document says otherwise.
    assert openai.completions.create(**params).usage


RESPONSES: list[dict[str, Any]] = [
    {"max_output_tokens": 6},
    {"max_output_tokens": 6, "instructions": "x", "metadata": {"a": "b"}, "store": False},
    {"tools": [{"type": "function", **FUNCTION, "strict": True}], "tool_choice": "required"},
    {"max_output_tokens": 6, "tools": [{"type": "web_search"}], "truncation": "auto"},
    {"max_output_tokens": 9, "reasoning": {"effort": "high", "summary": "auto"}},
    {"max_output_tokens": 20, "text": {"format": {"type": "json_object"}, "verbosity": "low"}},
    {"max_output_tokens": 6, "prompt_cache_key": "x", "safety_identifier": "y", "user": "z"},
]
REQUIRED = (
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage"),
    *("max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata"),
    *("safety_identifier", "prompt_cache_key"),
)
"""Fields that the Open Responses document requires of each response."""


def check_response(response: Any, *, ended: bool) -> None:
    fields = response.to_dict(mode="json")
    assert set(REQUIRED) <= fields.keys()
    numbers = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs")
    assert all(isinstance(fields[name], int | float) for name in numbers)
    assert (fields["completed_at"] is not None) == (fields["status"] == "completed")
    if ended:
        details = fields["usage"]["input_tokens_details"]
        assert {"cached_tokens", "cache_write_tokens"} <= details.keys()
        assert "reasoning_tokens" in fields["usage"]["output_tokens_details"]


@pytest.mark.parametrize("fields", RESPONSES)
def test_responses(openai: OpenAI, fields: dict[str, Any]) -> None:
    params: dict[str, Any] = {"model": "chat", "input": "Who?", "temperature": 0, **fields}
    answer = openai.responses.create(**params)
    check_response(answer, ended=True)
    events: list[Any] = list(openai.responses.create(stream=True, **params))
    check_response(events[0].response, ended=False)
    check_response(events[-1].response, ended=True)
    if fields.get("store") is False:
        return
    check_response(openai.responses.retrieve(answer.id), ended=True)
    assert list(openai.responses.retrieve(answer.id, stream=True))
    assert openai.responses.input_items.list(answer.id).data
    openai.responses.delete(answer.id)


def test_counts_and_models(openai: OpenAI) -> None:
    assert openai.responses.input_tokens.count(model="chat", input="x").input_tokens
    names = {model.id for model in openai.models.list()}
    assert names == {"chat", "embed", "hearing"}
    assert openai.models.retrieve("chat").id == "chat"


def test_embeddings(openai: OpenAI) -> None:
    made = openai.embeddings.create(model="embed", input=["a", "b"], encoding_format="float")
    assert [one.index for one in made.data] == [0, 1]


def test_recordings(openai: OpenAI) -> None:
    params: dict[str, Any] = {"model": "hearing", "file": CALL}
    assert openai.audio.transcriptions.create(**params).text is not None
    spoken = openai.audio.transcriptions.create(response_format="verbose_json", **params)
    assert spoken.duration


MESSAGE_FIELDS: list[dict[str, Any]] = [
    {},
    {"thinking": {"type": "adaptive"}},
    {
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
        "tool_choice": {"type": "any"},
    },
    {"stop_sequences": ["a", "e"]},
]


@pytest.mark.parametrize("fields", MESSAGE_FIELDS)
def test_messages(anthropic: Anthropic, fields: dict[str, Any]) -> None:
    params: dict[str, Any] = {"model": "chat", "max_tokens": 60, "messages": MESSAGES, **fields}
    answer = anthropic.messages.create(**params)
    assert answer.usage.output_tokens_details
    kinds = [event.type for event in anthropic.messages.create(stream=True, **params)]
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_betas(anthropic: Anthropic) -> None:
    edits: Any = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    answer = anthropic.beta.messages.create(
        model="chat",
        max_tokens=4,
        messages=MESSAGES,
        context_management=edits,
        betas=["context-management-2025-06-27"],
    )
    assert answer.context_management
    assert answer.context_management.applied_edits == []


def test_models_in_anthropics_form(anthropic: Anthropic) -> None:
    counted = anthropic.messages.count_tokens(model="chat", messages=MESSAGES)
    assert counted.input_tokens
    pages = [list(anthropic.models.list(limit=limit)) for limit in (1, 2, 20)]
    assert [[model.id for model in page] for page in pages] == [["chat", "embed", "hearing"]] * 3
    back = anthropic.models.list(before_id="hearing", limit=1)
    assert ([model.id for model in back.data], back.has_more) == (["embed"], True)
    assert anthropic.models.retrieve("chat").max_input_tokens == 2048

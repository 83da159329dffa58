"""Calls of tools through the server, as the openai SDK asks for them and reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from tests.server.raw import CHAT
from tests.server.refusals import error_of
from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_tools")

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
MESSAGES: Any = [{"role": "user", "content": "Who sat on the mat?"}]
CALLED: Any = [
    *MESSAGES,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"},
]


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(folder, log, kv_cache_tokens=16384, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def http(calling: Server) -> Iterator[httpx.Client]:
    with calling.client() as client:
        yield client


@pytest.fixture(scope="module")
def client(calling: Server) -> Iterator[OpenAI]:
    with calling.openai() as sdk:
        yield sdk


def post(http: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"messages": MESSAGES, "max_tokens": 4, "seed": 1, **fields}
    return http.post(CHAT, json=body)


CALL = r'Hm\. <tool_call>\n\{"name": "get_weather", "arguments": \{"city": "(Paris|Rome)"\}\}\n</tool_call>'


def test_a_call_in_the_answer_is_no_part_of_its_text(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "calling",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "seed": 3,
        "extra_body": {"guided_regex": CALL},
    }
    [choice] = client.chat.completions.create(**options).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Hm."
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    deltas = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **options)]
    assert deltas[-1].finish_reason == "tool_calls"
    assert "".join(delta.delta.content or "" for delta in deltas) == "Hm."
    pieces = [piece for delta in deltas for piece in delta.delta.tool_calls or []]
    assert {piece.index for piece in pieces} == {0}
    assert pieces[0].function is not None
    assert (pieces[0].type, pieces[0].function.name) == ("function", "get_weather")
    streamed = "".join(piece.function.arguments or "" for piece in pieces if piece.function)
    assert streamed == call.function.arguments
    assert len(pieces) > 3


def test_a_call_that_cannot_be_read_is_text_with_a_warning(http: httpx.Client) -> None:
    wrong = r'<tool_call>\{"name": "get_time", "arguments": \{x\}\}</tool_call>'
    fields = {"tools": [CLOCK], "guided_regex": wrong, "max_tokens": 100}
    [choice] = post(http, **fields).json()["choices"]
    assert (
        choice["message"]["content"]
        == '<tool_call>{"name": "get_time", "arguments": {x}}</tool_call>'
    )
    assert "JSON" in choice["message"]["warning"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
        {"tool_choice": "none"},
        {"tool_choice": "auto", "parallel_tool_calls": False},
        {"best_of": 1},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {}},
    ],
)
def test_first_day_9_fields_that_ask_for_nothing_change_nothing(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    if fields == {"reasoning_effort": "none"}:  # the template has a switch for it
        fields, plain = fields, {"chat_template_kwargs": {"enable_thinking": False}}
    else:
        plain = {}
    answer, same = (post(http, max_tokens=8, **f).json() for f in (fields, plain))
    assert answer["choices"] == same["choices"]


def tokens(http: httpx.Client, **fields: Any) -> int:
    answer = post(http, **fields)
    assert answer.status_code == 200, answer.text
    count: int = answer.json()["usage"]["prompt_tokens"]
    return count


def test_the_template_is_told_of_tools_and_calls(http: httpx.Client) -> None:
    bare = tokens(http)
    assert tokens(http, tools=[WEATHER]) > bare + 100
    assert tokens(http, tools=[WEATHER], tool_choice="none") == bare
    assert tokens(http, messages=CALLED) > bare + 20


def test_first_day_8_variables_of_the_template(http: httpx.Client) -> None:
    counts = [
        tokens(http, **fields)
        for fields in (
            {},
            {"chat_template_kwargs": {"enable_thinking": True}},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"reasoning_effort": "high"},
            {"reasoning_effort": "none"},
        )
    ]
    assert counts[0] < counts[1] < counts[2]
    assert counts[3:] == counts[1:3]


DEEP: dict[str, Any] = {"type": "object", "properties": {"x": {"description": "x" * 70_000}}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [CLOCK, CLOCK]}, "tools"),
        ({"tools": [CLOCK] * 513}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": DEEP}}]},
            "tools[0].function",
        ),
        ({"tools": [{"type": "function", "function": {"name": "a\nb"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a\x00"}}]},
            "tools[0].function.name",
        ),
        ({"tool_choice": "required"}, "tools"),
        (
            {
                "tools": [CLOCK],
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            },
            "tool_choice",
        ),
        ({"tools": [CLOCK], "tool_choice": "any"}, "tool_choice"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"think": True}}, "chat_template_kwargs.think"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"reasoning_effort": "max"}, "reasoning_effort"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{**CALLED[1], "role": "user", "content": "x"}]},
            "messages[0].tool_calls",
        ),
        (
            {
                "messages": [
                    *MESSAGES,
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "{x}"}}],
                    },
                ]
            },
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_cannot_be_honoured_is_named(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    assert error_of(post(http, **fields))["param"] == param


def test_a_model_whose_template_cannot_write_tools_says_so(model: Path, tmp_path: Path) -> None:
    with (
        Server(model, tmp_path / "log", kv_cache_tokens=4096, threads=1) as server,
        server.client() as http,
    ):
        error = error_of(post(http, tools=[CLOCK]))
        assert error["param"] == "tools"
        assert "template" in error["message"]
        assert error_of(post(http, reasoning_effort="low"))["param"] == "reasoning_effort"

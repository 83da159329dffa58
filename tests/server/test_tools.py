"""Tool calls through the server, as the openai SDK sends and reads them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema_rs
import pytest
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, Field

from galley.errors import RequestError
from galley.protocols.common.validate import validate
from galley.protocols.openai.audio.schemas import TranscriptionRequest
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
    """With tools, constrained output may be a call instead, so there are several choices."""
    options: dict[str, Any] = {
        "model": "calling",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "seed": 3,
        "n": 8,
        "max_tokens": 100,
        "logit_bias": {"42": 4},  # the letter H
        "extra_body": {"guided_regex": CALL},
    }
    whole = answers(client, stream=False, **options)
    [*said] = [calls for finish, text, calls, _ in whole if text == "Hm."]
    assert said
    for [(name, arguments)] in said:
        assert name == "get_weather"
        assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert {finish for finish, text, *_ in whole if text == "Hm."} == {"tool_calls"}
    streamed = answers(client, stream=True, **options)
    pairs = [(x, y) for x, y in zip(whole, streamed, strict=True) if x[0] != "length"]
    assert pairs
    assert all(x == y for x, y in pairs)
    chunks = client.chat.completions.create(stream=True, **options)
    pieces = [c for chunk in chunks for x in chunk.choices for c in x.delta.tool_calls or []]
    assert all(piece.id.startswith("call_") for piece in pieces if piece.id)
    assert len(pieces) > 3 * 8


def test_a_call_that_cannot_be_read_is_text_with_a_warning(http: httpx.Client) -> None:
    wrong = r'Hm\. <tool_call>\{"name": "get_time", "arguments": \{x\}\}</tool_call>'
    fields = {"tools": [CLOCK], "guided_regex": wrong, "max_tokens": 100, "n": 8}
    choices = post(http, **fields, logit_bias={"42": 4}).json()["choices"]
    [choice, *_] = [x for x in choices if (x["message"]["content"] or "").startswith("H")]
    expected = 'Hm. <tool_call>{"name": "get_time", "arguments": {x}}</tool_call>'
    assert choice["message"]["content"] == expected
    assert "JSON" in choice["message"]["warning"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("limit", [30, 40, 50])
def test_a_truncated_call_is_reported_once(client: OpenAI, limit: int) -> None:
    """A stream that breaks off has already sent the call; a whole answer has its text instead."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    params: dict[str, Any] = {
        "model": "calling",
        "messages": MESSAGES,
        "tools": [WEATHER],
        "tool_choice": named,
        "max_tokens": limit,
        "seed": 4,
    }
    [(finish, text, calls, _)] = answers(client, stream=False, **params)
    [(streamed_finish, streamed_text, streamed_calls, _)] = answers(client, stream=True, **params)
    assert finish == streamed_finish == "length"
    assert (text[:11], calls) == ("<tool_call>", [])
    assert streamed_text == ""
    [(name, arguments)] = streamed_calls
    assert name == "get_weather"
    assert text.endswith(arguments)
    # And what was streamed may be sent back.
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    said = {"role": "assistant", "content": streamed_text, "tool_calls": [call]}
    answered = {"role": "tool", "tool_call_id": "1", "content": "21"}
    more: Any = [*MESSAGES, said, answered]
    client.chat.completions.create(model="calling", messages=more, max_tokens=1)


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
def test_fields_that_ask_for_nothing_change_nothing(
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


def test_the_template_gets_tools_and_calls(http: httpx.Client) -> None:
    bare = tokens(http)
    assert tokens(http, tools=[WEATHER]) > bare + 100
    assert tokens(http, tools=[WEATHER], tool_choice="none") == bare
    assert tokens(http, messages=CALLED) > bare + 20


def test_variables_of_the_template_are_passed(http: httpx.Client) -> None:
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
        ({"max_thinking_tokens": -1}, "max_thinking_tokens"),
        (
            {
                "tools": [
                    CLOCK,
                    {
                        "type": "function",
                        "function": {"name": "x", "parameters": {"properties": {"a": {"if": {}}}}},
                    },
                ],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{**CALLED[1], "role": "user", "content": "x"}]},
            "messages[0].tool_calls",
        ),
    ],
)
def test_what_cannot_be_honored_is_named(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    assert error_of(post(http, **fields))["param"] == param


@pytest.mark.parametrize(
    "text", ['{"city": "Par', "{x}", "[1, 2]", "77777", "not JSON", '{"a": ' * 99]
)
def test_arguments_that_are_no_json_object_go_to_the_template(
    http: httpx.Client, text: str
) -> None:
    def called(arguments: str) -> Any:
        call = {"id": "1", "function": {"name": "get_weather", "arguments": arguments}}
        answered = {"role": "tool", "tool_call_id": "1", "content": "21"}
        return [*MESSAGES, {"role": "assistant", "tool_calls": [call]}, answered]

    assert tokens(http, messages=called(text)) > tokens(http, messages=called(""))
    items = [
        {"role": "user", "content": "Hello"},
        {"type": "function_call", "call_id": "1", "name": "get_weather", "arguments": text},
        {"type": "function_call_output", "call_id": "1", "output": "21"},
    ]
    answer = http.post("/v1/responses", json={"input": items, "max_output_tokens": 4})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("choice", ["required", "get_weather"])
def test_a_required_call_comes_from_any_model(client: OpenAI, choice: str) -> None:
    """The weights are random: only the grammar turns their output into calls."""
    named = {"type": "function", "function": {"name": choice}}
    options: dict[str, Any] = {
        "model": "calling",
        "messages": MESSAGES,
        "tools": [WEATHER, CLOCK],
        "tool_choice": choice if choice == "required" else named,
        "parallel_tool_calls": False,
        "max_tokens": 400,
        "n": 4,
    }
    names = set()
    for stream in (False, True):
        for choice_ in answers(client, stream=stream, seed=4, **options):
            finish, content, calls, _ = choice_
            assert finish == "tool_calls"
            assert not content
            [(name, arguments)] = calls
            names.add(name)
            schema = {tool["function"]["name"]: tool["function"] for tool in (WEATHER, CLOCK)}
            assert jsonschema_rs.is_valid(
                schema[name].get("parameters", {"type": "object"}), json.loads(arguments)
            )
    if choice != "required":
        assert names == {choice}
    whole, streamed = (answers(client, stream=x, seed=4, **options) for x in (False, True))
    assert whole == streamed


Parts = tuple[str | None, str, list[tuple[str, str]], str]
"""The answer's finish reason, text, calls and thinking."""


def answers(client: OpenAI, *, stream: bool, **options: Any) -> list[Parts]:
    """Return the choices of an answer, whole or assembled from a stream's chunks."""
    made: Any = client.chat.completions.create(stream=stream, **options)
    if not stream:
        return [
            (
                choice.finish_reason,
                choice.message.content or "",
                [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []],
                getattr(choice.message, "reasoning_content", ""),
            )
            for choice in made.choices
        ]
    parts: dict[int, Any] = {}
    for chunk in made:
        for choice in chunk.choices:
            part = parts.setdefault(choice.index, [None, "", [], ""])
            part[0] = choice.finish_reason or part[0]
            part[1] += choice.delta.content or ""
            part[3] += getattr(choice.delta, "reasoning_content", "")
            for call in choice.delta.tool_calls or []:
                if call.id:
                    part[2].append((call.function.name, ""))
                name, arguments = part[2][call.index]
                part[2][call.index] = (name, arguments + (call.function.arguments or ""))
    return [tuple(part) for _, part in sorted(parts.items())]


class Trip(BaseModel):
    """Books a trip."""

    to: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def test_parse_with_a_pydantic_tool(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="calling",
        messages=MESSAGES,
        tools=[pydantic_function_tool(Trip)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
        seed=2,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Trip)


def test_strict_tools_may_be_left_alone(http: httpx.Client) -> None:
    strict = {**CLOCK, "function": {**CLOCK["function"], "strict": True}}
    answer = post(http, tools=[strict], max_tokens=16).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert answer["message"]["content"]


THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("budget", [0, 5, 40])
def test_thinking_ends_with_its_budget_and_a_grammar_begins(
    client: OpenAI, budget: int, stream: bool
) -> None:
    options: dict[str, Any] = {
        "model": "calling",
        "messages": MESSAGES,
        "max_tokens": 100,
        "seed": 6,
        "n": 2,
        "extra_body": {**THINKING, "max_thinking_tokens": budget, "guided_regex": "[0-9]{4}"},
    }
    for finish, text, calls, reasoning in answers(client, stream=stream, **options):
        assert finish == "stop"
        assert text.isdecimal()
        assert len(text) == 4
        assert not calls
        assert bool(reasoning.strip()) == (budget > 0)


def test_thinking_is_counted(http: httpx.Client) -> None:
    fields = {**THINKING, "max_thinking_tokens": 7, "max_tokens": 20, "ignore_eos": True}
    usage = post(http, **fields).json()["usage"]
    assert usage["completion_tokens"] == 20
    # The end token is part of the reasoning, too.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 8}
    none = {"chat_template_kwargs": {"enable_thinking": False}}
    usage = post(http, **none).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_a_call_follows_thinking(http: httpx.Client) -> None:
    fields = {**THINKING, "max_thinking_tokens": 6, "tools": [CLOCK], "tool_choice": "required"}
    answer = post(http, **fields, parallel_tool_calls=False, max_tokens=300, seed=5).json()
    message = answer["choices"][0]["message"]
    assert message["reasoning_content"]
    assert message["content"] is None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get_time"]


def test_an_answer_is_taken_back_as_it_was_received(client: OpenAI) -> None:
    params: dict[str, Any] = {
        "model": "calling",
        "tools": [CLOCK],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "extra_body": {**THINKING, "max_thinking_tokens": 6},
        "max_tokens": 300,
        "seed": 5,
    }
    message = client.chat.completions.create(messages=MESSAGES, **params).choices[0].message
    [call] = message.tool_calls or []
    answered = {"role": "tool", "tool_call_id": call.id, "content": "noon"}
    for sent in (message, message.model_dump(), {**message.model_dump(), "warning": "w"}):
        again: Any = [*MESSAGES, sent, answered]
        assert client.chat.completions.create(messages=again, **params).choices[0].message


def test_only_automatic_chunking_is_accepted() -> None:
    params = validate(TranscriptionRequest, {"chunking_strategy": "auto"}, text=True)
    assert params.options() == TranscriptionRequest().options()
    with pytest.raises(RequestError) as refused:
        validate(TranscriptionRequest, {"chunking_strategy": "server_vad"}, text=True)
    assert refused.value.param == "chunking_strategy"


def test_a_stream_of_thinking_outlives_the_engine(calling: Server, http: httpx.Client) -> None:
    fields: dict[str, Any] = {
        "messages": MESSAGES,
        **THINKING,
        "max_thinking_tokens": 300,
        "max_tokens": 600,
        "guided_regex": "([a-z]{3} ){60}end",
        "seed": 8,
    }
    whole = http.post(CHAT, json=fields).json()["choices"][0]["message"]
    with http.stream("POST", CHAT, json={**fields, "stream": True}) as stream:
        lines = (line[6:] for line in stream.iter_lines() if line.startswith("data: "))
        deltas = [json.loads(next(lines))["choices"][0]["delta"] for _ in range(3)]
        [engine] = calling.children()
        engine.kill()
        deltas += [json.loads(x)["choices"][0]["delta"] for x in lines if x != "[DONE]"]
    for field in ("content", "reasoning_content"):
        assert "".join(delta.get(field, "") for delta in deltas) == whole[field]


def test_a_model_whose_template_cannot_write_tools_says_so(model: Path, tmp_path: Path) -> None:
    with (
        Server(model, tmp_path / "log", kv_cache_tokens=4096, threads=1) as server,
        server.client() as http,
    ):
        error = error_of(post(http, tools=[CLOCK]))
        assert error["param"] == "tools"
        assert "template" in error["message"]
        assert error_of(post(http, reasoning_effort="low"))["param"] == "reasoning_effort"
        assert error_of(post(http, max_thinking_tokens=4))["param"] == "max_thinking_tokens"

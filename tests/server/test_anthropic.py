"""Anthropic's Messages API, through its own SDK."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import Anthropic

from galley.protocols.anthropic.answers import _Blocks
from galley.tools.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text
from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_protocols")

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
ASKED: Any = [{"role": "user", "content": "Who sat on the mat?"}]
CALL: Any = {
    "role": "assistant",
    "content": [
        {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    ],
}
PATH = "/v1/messages"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(folder, log, kv_cache_tokens=16384, threads=1, api_key="sk-1") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="sk-1", max_retries=0) as sdk:
        yield sdk


def post(server: Server, path: str = PATH, **fields: Any) -> httpx.Response:
    body = {"model": "calling", "messages": ASKED, "max_tokens": 4} | fields
    return httpx.post(server.url + path, json=body, headers={"x-api-key": "sk-1"})


PLAIN: dict[str, Any] = {"messages": ASKED, "tools": [TOOL]}
ADDED: list[dict[str, Any]] = [
    {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    {"cache_control": {"type": "ephemeral"}},
    {"tools": [{**TOOL, "cache_control": {"type": "ephemeral", "ttl": "1h", "scope": "global"}}]},
    {"tools": [{**TOOL, "eager_input_streaming": True, "defer_loading": False}]},
    {"tools": [{**TOOL, "allowed_callers": ["direct"], "type": "custom"}]},
    {"speed": "standard", "mcp_servers": []},
    {
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": ASKED[0]["content"], "citations": []}],
            }
        ]
    },
]


@pytest.mark.parametrize("added", ADDED)
def test_what_newer_clients_add_changes_nothing_in_the_prompt(
    server: Server, added: dict[str, Any]
) -> None:
    def counted(**fields: Any) -> int:
        body = {"model": "calling", **PLAIN, **fields}
        key = {"x-api-key": "sk-1"}
        answer = httpx.post(f"{server.url}{PATH}/count_tokens", json=body, headers=key)
        assert answer.status_code == 200, answer.text
        number: int = answer.json()["input_tokens"]
        return number

    assert counted(**added) == counted()
    answer = post(server, **{**PLAIN, **added})
    assert answer.status_code == 200, answer.text
    answered = answer.json().get("context_management")
    assert answered == ({"applied_edits": []} if "context_management" in added else None)


@pytest.mark.parametrize("where", [0, 1, 2, 3])
def test_a_system_message_may_stand_anywhere(server: Server, where: int) -> None:
    turns: Any = [*ASKED, {"role": "assistant", "content": "The cat."}, *ASKED]
    key = {"x-api-key": "sk-1"}
    counts = []
    for content in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        late = {"role": "system", "content": content}
        messages = [*turns[:where], late, *turns[where:]]
        body = {"model": "calling", "messages": messages}
        counts.append(httpx.post(f"{server.url}{PATH}/count_tokens", json=body, headers=key).json())
        assert post(server, messages=messages).status_code == 200
    plain = httpx.post(
        f"{server.url}{PATH}/count_tokens", json={"messages": turns}, headers=key
    ).json()
    assert counts[0] == counts[1]
    assert counts[0]["input_tokens"] > plain["input_tokens"]


def changed(kind: str) -> Any:
    tool = {"type": "tool_reference", "name": "get_weather"}
    return {"role": "system", "content": [{"type": kind, "tool": tool}]}


NAMED: Any = {"messages": ASKED}
WITHOUT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tools": [TOOL], "messages": [*ASKED, changed("tool_removal")]}, NAMED),
    ({"tools": [TOOL], "messages": [*ASKED, changed("tool_addition")]}, {"tools": [TOOL], **NAMED}),
    (
        {"tools": [TOOL], "messages": [changed("tool_removal"), *ASKED, changed("tool_addition")]},
        {"tools": [TOOL], **NAMED},
    ),
    (
        {
            "messages": [
                *ASKED,
                {"role": "system", "content": "x", "clear_at": "next_user_message"},
                *ASKED,
            ]
        },
        {"messages": [*ASKED, *ASKED]},
    ),
    (
        {
            "messages": [
                *ASKED,
                {"role": "system", "content": "x", "clear_at": "next_user_message"},
            ]
        },
        {"messages": [*ASKED, {"role": "system", "content": "x"}]},
    ),
]


@pytest.mark.parametrize(("params", "same"), WITHOUT)
def test_system_messages_are_part_of_the_prompt(
    server: Server, params: dict[str, Any], same: dict[str, Any]
) -> None:
    counts = [
        httpx.post(
            f"{server.url}{PATH}/count_tokens", json=body, headers={"x-api-key": "sk-1"}
        ).json()
        for body in (params, same)
    ]
    assert counts[0] == counts[1]
    assert counts[0]["input_tokens"]


def test_a_tool_reference_counts_as_its_name(server: Server) -> None:
    found = {"type": "tool_reference", "tool_name": "get_weather"}
    answered = {"type": "text", "text": "get_weather"}
    counts = []
    for block in (found, answered):
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
        messages = [*ASKED, CALL, {"role": "user", "content": [result]}]
        answer = post(server, messages=messages, tools=[{**TOOL, "defer_loading": True}])
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        counts.append(usage["input_tokens"] + usage["cache_read_input_tokens"])
    assert counts[0] == counts[1]


@pytest.mark.parametrize("display", [None, "summarized", "omitted"])
def test_adaptive_thinking_is_reported_as_requested(client: Anthropic, display: str | None) -> None:
    thinking: Any = {"type": "adaptive"} | ({"display": display} if display else {})
    params: dict[str, Any] = {
        "model": "calling",
        "max_tokens": 12,
        "messages": ASKED,
        "thinking": thinking,
        "output_config": {"effort": "high"},
        "extra_body": {"temperature": 0.0},
    }
    [block, *_] = client.messages.create(**params).content
    with client.messages.stream(**params) as stream:
        [streamed, *_] = stream.get_final_message().content
    assert block.type == streamed.type == "thinking"
    assert block.thinking == streamed.thinking
    assert bool(block.thinking) == (display != "omitted")


def test_an_assistants_last_turn_is_continued(server: Server) -> None:
    """The answer continues the turn: the same text requested in two parts is the same."""
    plain = post(server, max_tokens=30, temperature=0).json()
    whole = plain["content"][0]["text"]
    begun = whole[:-8]
    messages = [*ASKED, {"role": "assistant", "content": begun}]
    key = {"x-api-key": "sk-1"}
    counted = httpx.post(
        f"{server.url}{PATH}/count_tokens", json={"messages": messages}, headers=key
    ).json()
    answer = post(server, messages=messages, max_tokens=30, temperature=0).json()
    usage = answer["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    bare = httpx.post(f"{server.url}{PATH}/count_tokens", json={"messages": ASKED}, headers=key)
    assert counted["input_tokens"] > bare.json()["input_tokens"]
    # The tokens may differ although they spell the same text, so a random model may continue differently.
    assert answer["content"][0]["text"]


def test_the_context_may_end_an_answer_before_max_tokens(server: Server) -> None:
    answer = post(server, max_tokens=10**9, temperature=0).json()
    assert answer["stop_reason"] in ("model_context_window_exceeded", "end_turn")
    usage = answer["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["output_tokens"]
    assert (answer["stop_reason"] == "end_turn") == (tokens < 4096)


@pytest.mark.parametrize("text", ['{"city": "Par', "{x}", "", "[1]"])
def test_input_of_a_call_that_is_no_json_is_taken_back(server: Server, text: str) -> None:
    call = {**CALL, "content": [{**CALL["content"][0], "input": text}]}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": None}
    messages = [*ASKED, call, {"role": "user", "content": [result]}]
    assert post(server, messages=messages, tools=[TOOL]).status_code == 200


def test_an_answer_and_its_stream_say_the_same(client: Anthropic) -> None:
    params: dict[str, Any] = {
        "model": "calling",
        "max_tokens": 20,
        "extra_body": {"temperature": 0.0},
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            *ASKED,
            {"role": "assistant", "content": [{"type": "text", "text": "The cat."}]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "then?"}],
            },
        ],
    }
    answer = client.messages.create(**params)
    assert answer.id.startswith("msg_")
    assert (answer.role, answer.type, answer.model) == ("assistant", "message", "calling")
    [block] = answer.content
    assert block.type == "text"
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert answer.usage.output_tokens <= 20
    with client.messages.stream(**params) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text
    assert [one.to_dict(exclude_none=True) for one in final.content] == [
        one.to_dict(exclude_none=True) for one in answer.content
    ]
    assert final.stop_reason == answer.stop_reason
    read = final.usage.cache_read_input_tokens
    assert read
    both = (answer.usage.input_tokens, answer.usage.cache_read_input_tokens or 0)
    assert final.usage.input_tokens + read == sum(both)
    assert final.usage.output_tokens == answer.usage.output_tokens


def test_events_come_in_the_documented_order(client: Anthropic) -> None:
    events = list(
        client.messages.create(model="calling", max_tokens=6, messages=ASKED, stream=True)
    )
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_stop_sequence_is_reported(server: Server) -> None:
    plain = post(server, max_tokens=60, temperature=0).json()
    text = plain["content"][0]["text"]
    stop = text[10:13]
    answer = post(server, max_tokens=60, temperature=0, stop_sequences=[stop]).json()
    assert answer["content"][0]["text"] == text[: text.index(stop)]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)


def test_the_form_of_the_answer(client: Anthropic) -> None:
    answer = client.messages.create(
        model="calling",
        max_tokens=100,
        messages=ASKED,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        thinking={"type": "disabled"},
    )
    [block] = answer.content
    assert block.type == "text"
    assert json.loads(block.text)["city"] in ("Paris", "Rome")
    assert answer.stop_reason == "end_turn"


def test_tokens_are_counted_as_they_are_used(client: Anthropic) -> None:
    def both(**fields: Any) -> tuple[int, int]:
        counted = client.messages.count_tokens(model="calling", **fields).input_tokens
        usage = client.messages.create(model="calling", max_tokens=1, **fields).usage
        return counted, usage.input_tokens + (usage.cache_read_input_tokens or 0)

    bare, same = both(messages=ASKED)
    assert bare == same
    answered, same = both(messages=ASKED, tools=[TOOL])
    assert answered == same > bare + 50
    thinking, same = both(messages=ASKED, thinking={"type": "enabled", "budget_tokens": 1024})
    assert thinking == same > bare
    called: Any = [
        *ASKED,
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": "toolu_1",
                    "name": "get_weather",
                    "input": {"city": "Rome"},
                }
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "21 degrees"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    longer, same = both(messages=called, tools=[TOOL])
    assert longer == same > answered + 20


def test_blocks_begin_grow_and_stop_one_after_another() -> None:
    blocks = _Blocks()
    events: list[Event] = [
        Reasoning("Hm"),
        Reasoning("m."),
        Text("So: "),
        CallStart(0, "call_1", "get_weather"),
        Arguments(0, '{"city":'),
        Arguments(0, ' "Rome"}'),
        CallEnd(0),
        CallStart(1, "call_2", "get_weather"),
        Arguments(1, "{}"),
        CallEnd(1),
        Text("Done."),
    ]
    made = [one for event in events for one in blocks.of(event)] + list(blocks.closed())
    assert list(blocks.closed()) == []
    begun = [one for one in made if one["type"] == "content_block_start"]
    assert [one["content_block"]["type"] for one in begun] == [
        *("thinking", "text", "tool_use", "tool_use", "text")
    ]
    assert [one["index"] for one in begun] == [0, 1, 2, 3, 4]
    open_at: int | None = None
    for one in made:
        if one["type"] == "content_block_start":
            assert open_at is None
            open_at = one["index"]
        elif one["type"] == "content_block_stop":
            assert open_at == one["index"]
            open_at = None
        else:
            assert open_at == one["index"]
    deltas = [one["delta"] for one in made if one["type"] == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == "Hmm."
    assert "".join(d.get("partial_json", "") for d in deltas) == '{"city": "Rome"}{}'


def test_a_call_interrupted_in_a_stream_is_reported_once() -> None:
    blocks = _Blocks()
    events: list[Event] = [
        Text("So: "),
        CallStart(0, "call_1", "get_weather"),
        Arguments(0, '{"city": "Ro'),
        CallEnd(0, broken=True),
        Text('<tool_call>{"city": "Ro', warning="the answer ends within a call", repeats=True),
    ]
    made = [one for event in events for one in blocks.of(event)] + list(blocks.closed())
    deltas = [one["delta"] for one in made if one["type"] == "content_block_delta"]
    assert [d.get("text", "") + d.get("partial_json", "") for d in deltas] == [
        *("So: ", '{"city": "Ro')
    ]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"top_p": 1.5}, "top_p"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role"),
        (
            {
                "messages": [
                    {"role": "system", "content": [{"type": "tool_result", "tool_use_id": "x"}]}
                ]
            },
            "messages[0].content",
        ),
        ({"messages": [*ASKED, CALL]}, "tool calls"),
        (
            {
                "messages": [*ASKED, {"role": "assistant", "content": "The"}],
                "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            },
            "output_config",
        ),
        ({"speed": "fast"}, "speed"),
        ({"messages": [changed("tool_removal")]}, "messages"),
        ({"messages": [{**ASKED[0], "clear_at": "never"}]}, "clear_at"),
        ({"mcp_servers": [{"type": "url", "url": "x", "name": "x"}]}, "mcp_servers"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "allowed_callers"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
            "messages[0].content",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"container": "x"}, "container"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "wrong"}}}},
            "output_config",
        ),
    ],
)
def test_what_cannot_be_honored_is_named_in_anthropics_form(
    server: Server, fields: dict[str, Any], named: str
) -> None:
    body = {"model": "calling", "messages": ASKED, "max_tokens": 4} | fields
    body = {name: value for name, value in body.items() if value is not None}
    answer = httpx.post(server.url + PATH, json=body, headers={"x-api-key": "sk-1"})
    answered = answer.json()
    assert answer.status_code == 400
    assert set(answered) == {"type", "error"}
    assert (answered["type"], answered["error"]["type"]) == ("error", "invalid_request_error")
    assert named in answered["error"]["message"]


def test_errors_are_those_of_the_sdk(server: Server, client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(model="nothing", max_tokens=1, messages=ASKED)
    with (
        Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError, match="Incorrect API key"),
    ):
        other.messages.create(model="calling", max_tokens=1, messages=ASKED)
    assert httpx.post(server.url + PATH, json={}).json()["error"]["type"] == "authentication_error"


def test_models_are_listed_with_the_queries_of_the_beta_client(client: Anthropic) -> None:
    assert [model.id for model in client.beta.models.list()] == ["calling"]
    assert client.beta.models.retrieve("calling").id == "calling"


def test_an_unknown_model_is_an_error_of_anthropics_form(server: Server) -> None:
    headers = {"x-api-key": "sk-1", "anthropic-version": "2023-06-01"}
    answer = httpx.get(server.url + "/v1/models/none", headers=headers)
    assert answer.status_code == 404
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "not_found_error"
    del headers["anthropic-version"]
    assert "type" not in httpx.get(server.url + "/v1/models/none", headers=headers).json()

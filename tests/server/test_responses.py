"""OpenAI's Responses API, through its own SDK."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from pydantic import BaseModel

from galley.protocols.common.validate import validate
from galley.protocols.openai.responses.items import Items
from galley.protocols.openai.responses.schemas import ResponseRequest
from galley.tools.events import Arguments, CallEnd, CallStart, Event, Reasoning, Text
from tests.server.refusals import error_of
from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("server_protocols")

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
CALLED: Any = [
    {"role": "user", "content": "Who sat on the mat?"},
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    },
    {
        "type": "function_call",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": '{"city": "Rome"}',
    },
    {"type": "function_call_output", "call_id": "call_1", "output": "21 degrees"},
    {"role": "user", "content": [{"type": "input_text", "text": "So?"}]},
]


LONG: Any = {"type": "function", "name": "y" * 20}


class Where(BaseModel):
    city: Literal["Paris", "Rome"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "calling"
    make_calling(folder, max_position_embeddings=4096)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(folder, log, kv_cache_tokens=16384, threads=1) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with server.openai() as sdk:
        yield sdk


def test_an_answer_and_its_stream_say_the_same(client: OpenAI) -> None:
    params: dict[str, Any] = {
        "model": "calling",
        "instructions": "Be brief.",
        "input": "Who sat on the mat?",
        "max_output_tokens": 30,
        "temperature": 0.0,
    }
    answer = client.responses.create(**params)
    assert answer.id.startswith("resp_")
    assert answer.output_text
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    whole = answer.status == "completed"
    assert whole or answer.incomplete_details
    events = list(client.responses.create(stream=True, **params))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        *("response.created", "response.in_progress"),
        *("response.output_item.added", "response.content_part.added"),
    ]
    assert kinds[-4:] == [
        *("response.output_text.done", "response.content_part.done"),
        *("response.output_item.done", "response.completed" if whole else "response.incomplete"),
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == answer.output_text


def test_the_form_of_the_answer(client: OpenAI) -> None:
    parsed = client.responses.parse(model="calling", input="Where?", text_format=Where)
    assert parsed.output_parsed
    assert parsed.output_parsed.city in ("Paris", "Rome")
    with client.responses.stream(model="calling", input="Where?", text_format=Where) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    assert streamed.output_parsed
    assert streamed.output_parsed.city in ("Paris", "Rome")
    made = client.responses.create(
        model="calling",
        input="Where?",
        text={"format": {"type": "json_object"}},
        max_output_tokens=400,
        temperature=0,
    )
    if made.status == "completed":
        json.loads(made.output_text)


def test_items_reach_the_template(server: Server) -> None:
    def tokens(**fields: Any) -> int:
        body = {"max_output_tokens": 1, "input": CALLED[:1]} | fields
        answer = httpx.post(server.url + "/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        count: int = answer.json()["usage"]["input_tokens"]
        return count

    bare = tokens()
    chat = httpx.post(
        server.url + "/v1/chat/completions",
        json={"messages": CALLED[:1], "max_tokens": 1},
    ).json()
    assert bare == chat["usage"]["prompt_tokens"]
    assert tokens(tools=[TOOL | {"strict": False}]) > bare + 50
    assert tokens(input=CALLED) > bare + 40
    assert tokens(reasoning={"effort": "none"}) > bare


def test_instructions_and_what_the_conversation_begins_with_are_one_system_message() -> None:
    def said(**fields: Any) -> list[dict[str, Any]]:
        return validate(ResponseRequest, fields).as_conversation().messages

    user = {"role": "user", "content": "Who?"}
    rules = [{"role": "developer", "content": "Rhyme."}, {"role": "system", "content": "In Latin."}]
    assert said(instructions="Be brief.", input=[*rules, user, rules[0]]) == [
        {"role": "system", "content": "Be brief.\n\nRhyme.\n\nIn Latin."},
        user,
        {"role": "system", "content": "Rhyme."},
    ]
    assert said(input=[rules[0], user]) == [{"role": "system", "content": "Rhyme."}, user]
    assert said(input="Who?") == [user]


def test_items_begin_grow_and_are_done_one_after_another() -> None:
    items = Items("x")
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
    ]
    made = [one for event in events for one in items.of(event)] + list(items.ended())
    assert list(items.ended()) == []
    assert [item["type"] for item in items.done] == [
        *("reasoning", "message", "function_call", "function_call")
    ]
    assert items.done[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert items.done[1]["content"][0]["text"] == "So: "
    assert items.done[2]["arguments"] == '{"city": "Rome"}'
    assert len({item["id"] for item in items.done}) == 4
    added = [one["output_index"] for one in made if one["type"] == "response.output_item.added"]
    done = [one["output_index"] for one in made if one["type"] == "response.output_item.done"]
    assert added == done == [0, 1, 2, 3]
    places = [one["output_index"] for one in made]
    assert places == sorted(places)


def test_a_broken_call_is_text_with_a_warning() -> None:
    items = Items("x")
    events: list[Event] = [
        CallStart(0, "call_1", "get_weather"),
        Arguments(0, '{"city": Ro'),
        CallEnd(0, broken=True),
        Text('{"city": Ro', warning="the arguments are not valid JSON"),
    ]
    made = [one for event in events for one in items.of(event)] + list(items.ended())
    ended = [one["item"] for one in made if one["type"] == "response.output_item.done"]
    assert [item["status"] for item in ended] == ["incomplete", "completed"]
    assert items.done == ended[1:]
    assert items.done[0]["warning"] == "the arguments are not valid JSON"


@pytest.mark.parametrize("behind", ["", " And so on."])
def test_a_stream_reports_a_broken_call_once(behind: str) -> None:
    items = Items("x", streamed=True)
    events: list[Event] = [
        CallStart(0, "call_1", "get_weather"),
        Arguments(0, '{"city": Ro'),
        CallEnd(0, broken=True),
        Text('<tool_call>{"city": Ro', warning="the answer ends within a call", repeats=True),
        *([Text(behind)] if behind else []),
    ]
    made = [one for event in events for one in items.of(event)] + list(items.ended())
    assert [item["type"] for item in items.done] == ["function_call"] + ["message"] * bool(behind)
    assert items.done[0]["status"] == "incomplete"
    assert items.done[0]["arguments"] == '{"city": Ro'
    received = [one["delta"] for one in made if one["type"] == "response.output_text.delta"]
    assert "".join(received) == behind


SPACED: Any = {"type": "namespace", "name": "agents", "tools": [{**TOOL, "name": "wait"}]}


def test_functions_of_a_namespace_are_called_by_it(client: OpenAI) -> None:
    """As Codex declares them; the namespace in a call is sent back with it."""
    tools: Any = [SPACED, {"type": "web_search", "external_web_access": False}]
    params: dict[str, Any] = {"model": "calling", "tools": tools, "parallel_tool_calls": False}
    answer = client.responses.create(
        input="Who?", tool_choice="required", max_output_tokens=200, **params
    )
    [call] = [item for item in answer.output if item.type == "function_call"]
    assert (call.namespace, call.name) == ("agents", "wait")
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "21"}
    given: Any = [{"role": "user", "content": "Who?"}, *answer.output, output]
    events = list(client.responses.create(input=given, max_output_tokens=4, stream=True, **params))
    assert events[-1].type in ("response.completed", "response.incomplete")


def test_truncation_leaves_out_as_few_first_turns_as_it_must(client: OpenAI) -> None:
    """The context has 4,096 tokens; a tool's output is dropped together with its call."""
    head: Any = {"role": "developer", "content": "Be brief."}
    turns: list[list[Any]] = [
        [
            {"role": "user", "content": f"{n} " + "the cat sat on the mat " * 40},
            {"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{n}", "output": f"{n}"},
        ]
        for n in range(18)
    ]
    last: Any = {"role": "user", "content": "So?"}
    options: Any = {"model": "calling", "temperature": 0, "max_output_tokens": 100}

    def after(dropped: int) -> list[Any]:
        return [head, *(item for turn in turns[dropped:] for item in turn), last]

    with pytest.raises(BadRequestError, match="tokens"):
        client.responses.create(input=after(0), **options)
    cut = client.responses.create(input=after(0), truncation="auto", **options)
    assert cut.usage
    dropped = next(
        n
        for n in range(1, 19)
        if client.responses.input_tokens.count(model="calling", input=after(n)).input_tokens
        <= 4096 - 100
    )
    assert dropped > 1
    same = client.responses.create(input=after(dropped), **options)
    assert same.usage
    assert cut.usage.input_tokens == same.usage.input_tokens
    assert cut.output_text == same.output_text
    # A conversation that fits stays whole, and a last turn that does not fit is refused.
    short = client.responses.create(input=[head, last], truncation="auto", **options)
    assert short.output_text == client.responses.create(input=[head, last], **options).output_text
    whole: Any = [{"role": "user", "content": "the cat sat on the mat " * 800}]
    with pytest.raises(BadRequestError, match="tokens"):
        client.responses.create(input=[*turns[0], *whole], truncation="auto", **options)


NO_MATTER: list[dict[str, Any]] = [
    {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
    {"reasoning": {"summary": "auto"}},
    {"truncation": "auto"},
    {"text": {"verbosity": "low"}},
    {"client_metadata": {"window": "1"}, "safety_identifier": "x", "prompt_cache_key": "y"},
    {"tools": [{"type": "web_search"}]},
    {"frequency_penalty": 0.0, "presence_penalty": 0},
]


@pytest.mark.parametrize("fields", NO_MATTER)
def test_fields_of_newer_clients_do_not_change_the_answer(
    server: Server, fields: dict[str, Any]
) -> None:
    def said(**more: Any) -> Any:
        body = {"input": "Who?", "max_output_tokens": 8, "temperature": 0, **more}
        answer = httpx.post(server.url + "/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    answer, plain = said(**fields), said()
    assert [item["content"] for item in answer["output"]] == [
        item["content"] for item in plain["output"]
    ]
    for name, value in fields.items():
        received = answer.get(name)
        if name == "text":
            assert received == {"format": {"type": "text"}, **value}
        elif name == "reasoning":
            assert received == {"effort": None, **value}
        elif name not in ("include", "client_metadata", "tools"):
            assert received == value


def test_tokens_are_counted_as_they_are_used(client: OpenAI) -> None:
    for fields in ({}, {"instructions": "Be brief."}, {"tools": [TOOL]}):
        params: dict[str, Any] = {"model": "calling", "input": CALLED, **fields}
        counted = client.responses.input_tokens.count(**params)
        usage = client.responses.create(max_output_tokens=1, **params).usage
        assert usage
        assert counted.input_tokens == usage.input_tokens
    first = client.responses.create(model="calling", input="Who?", max_output_tokens=4)
    more: dict[str, Any] = {"model": "calling", "input": "So?", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(**more)
    usage = client.responses.create(max_output_tokens=1, **more).usage
    assert usage
    assert counted.input_tokens == usage.input_tokens


def test_a_stored_response_is_streamed_again(client: OpenAI) -> None:
    live = list(
        client.responses.create(
            model="calling", input="Who?", max_output_tokens=9, temperature=0, stream=True
        )
    )
    final: Any = live[-1]
    received = list(client.responses.retrieve(final.response.id, stream=True))
    assert [event.sequence_number for event in received] == list(range(len(received)))
    again: Any = received[-1]
    assert again.type == final.type
    assert again.response == final.response
    kinds = [event.type for event in live]
    assert [event.type for event in received] == [
        kind
        for n, kind in enumerate(kinds)
        if n == 0 or not kind.endswith("delta") or kinds[n - 1] != kind
    ]
    rest = list(client.responses.retrieve(final.response.id, stream=True, starting_after=2))
    assert [event.type for event in rest] == [event.type for event in received][3:]


def test_a_complete_response_cannot_be_cancelled(client: OpenAI) -> None:
    made = client.responses.create(model="calling", input="Who?", max_output_tokens=2)
    with pytest.raises(BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(NotFoundError):
        client.responses.cancel("resp_nothing")


def test_earlier_output_items_may_be_sent_again(client: OpenAI, server: Server) -> None:
    said: Any = {"role": "user", "content": "Where?"}
    first = client.responses.create(model="calling", input=[said], max_output_tokens=8)
    parsed = client.responses.parse(model="calling", input=[said], text_format=Where)
    for answer in (first, parsed):
        again: Any = [said, *answer.output, said]
        more = client.responses.create(model="calling", input=again, max_output_tokens=2)
        assert first.usage
        assert more.usage
        assert more.usage.input_tokens > first.usage.input_tokens + 4
    warned = {"type": "message", "role": "assistant", "content": "x", "warning": "no JSON"}
    body = {"input": [said, warned, said], "max_output_tokens": 1}
    assert httpx.post(server.url + "/v1/responses", json=body).status_code == 200


def test_fields_that_ask_for_nothing_and_the_receipt(server: Server) -> None:
    nothing = {
        **{"tools": [], "tool_choice": "none", "parallel_tool_calls": False, "include": []},
        **{"top_logprobs": 0, "max_tool_calls": None, "prompt": None, "background": False},
    }
    body = {"input": "x", "max_output_tokens": 2} | nothing
    answer = httpx.post(server.url + "/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    received = answer.json()
    assert (received["tools"], received["tool_choice"]) == ([], "none")
    chat = httpx.post(
        server.url + "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    ).json()
    receipt = {name for name in chat["usage"] if name.endswith("_ms")}
    assert receipt
    assert receipt <= set(received["usage"])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"role": "user", "content": "x", "output": "y"}]}, "input[0].output"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "some"}, "truncation"),
        ({"tools": [{"type": "file_search", "vector_store_ids": ["x"]}]}, "tools[0]"),
        (
            {"tools": [{"type": "namespace", "name": "x" * 120, "tools": [LONG]}]},
            "tools[0].tools[0]",
        ),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "wrong"}}}}, "text.format"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"wings": 2}, "wings"),
    ],
)
def test_what_cannot_be_honored_is_named(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    body = {"input": "x", "max_output_tokens": 2} | fields
    error = error_of(httpx.post(server.url + "/v1/responses", json=body))
    assert (error["param"] or "").startswith(param)
    assert not re.search(r"\b(True|False|None)\b", error["message"])  # Python's words, not JSON's

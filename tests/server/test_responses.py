"""OpenAI's Responses API, as its SDK asks and reads."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import pytest
from openai import OpenAI
from pydantic import BaseModel

from galley.api.response_answer import _Items
from galley.api.response_request import ResponseRequest
from galley.api.validate import validate
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
    asked: dict[str, Any] = {
        "model": "calling",
        "instructions": "Be brief.",
        "input": "Who sat on the mat?",
        "max_output_tokens": 30,
        "temperature": 0.0,
    }
    answer = client.responses.create(**asked)
    assert answer.id.startswith("resp_")
    assert answer.output_text
    assert answer.usage
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    whole = answer.status == "completed"
    assert whole or answer.incomplete_details
    events = list(client.responses.create(stream=True, **asked))
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
    items = _Items("x")
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
    items = _Items("x")
    events: list[Event] = [
        CallStart(0, "call_1", "get_weather"),
        Arguments(0, '{"city": Ro'),
        CallEnd(0, broken=True),
        Text('{"city": Ro', warning="the arguments are no JSON"),
    ]
    made = [one for event in events for one in items.of(event)] + list(items.ended())
    ended = [one["item"] for one in made if one["type"] == "response.output_item.done"]
    assert [item["status"] for item in ended] == ["incomplete", "completed"]
    assert items.kept == ended[1:]
    assert items.kept[0]["warning"] == "the arguments are no JSON"


def test_what_was_answered_may_be_sent_again(client: OpenAI, server: Server) -> None:
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
    told = answer.json()
    assert (told["tools"], told["tool_choice"]) == ([], "none")
    chat = httpx.post(
        server.url + "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    ).json()
    receipt = {name for name in chat["usage"] if name.endswith("_ms")}
    assert receipt
    assert receipt <= set(told["usage"])


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
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "wrong"}}}}, "text.format"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"wings": 2}, "wings"),
    ],
)
def test_what_cannot_be_honoured_is_named(
    server: Server, fields: dict[str, Any], param: str
) -> None:
    body = {"input": "x", "max_output_tokens": 2} | fields
    error = error_of(httpx.post(server.url + "/v1/responses", json=body))
    assert (error["param"] or "").startswith(param)

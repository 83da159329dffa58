"""Structured output as clients request it: the openai SDK's fields, and vLLM's."""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import jsonschema_rs
import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, Field

from tests.server.raw import CHAT
from tests.server.refusals import error_of
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("default_server")

PLAIN = "/v1/completions"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "Who sat on the mat?"}]


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as sdk:
        yield sdk


def satisfies(text: str | None, schema: dict[str, Any] = SCHEMA) -> bool:
    return jsonschema_rs.is_valid(schema, json.loads(text or ""))


def chat(client: OpenAI, response_format: Any, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{
            "model": "tiny",
            "messages": MESSAGES,
            "response_format": response_format,
            "max_tokens": 300,
            "seed": 3,
            **fields,
        }
    )


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_json_schema_is_followed_strict_or_not(client: OpenAI, strict: bool | None) -> None:
    format_ = {
        "type": "json_schema",
        "json_schema": {"name": "person", "schema": SCHEMA, "strict": strict},
    }
    answer = chat(client, format_, n=3)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert all(satisfies(choice.message.content) for choice in answer.choices)


def test_a_stream_has_the_same_text(client: OpenAI) -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    whole = chat(client, format_).choices[0].message.content
    stream = chat(client, format_, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_a_json_object(client: OpenAI) -> None:
    texts = [
        choice.message.content
        for choice in chat(client, {"type": "json_object"}, n=8, max_tokens=2000).choices
        if choice.finish_reason == "stop"
    ]
    assert texts
    assert all(isinstance(json.loads(text), dict) for text in texts)


class Ticket(BaseModel):
    """As a client declares what it wants."""

    kind: Literal["defect", "question"]
    priority: int = Field(ge=1, le=5)
    tags: list[Literal["disk", "network"]] = Field(max_length=2)
    parent: "Ticket | None"


def test_parse_with_a_pydantic_model(client: OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, response_format=Ticket, max_tokens=1000, seed=1
    )
    assert isinstance(answer.choices[0].message.parsed, Ticket)


def test_a_text_cut_at_max_tokens_says_so(client: OpenAI) -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    [choice] = chat(client, format_, max_tokens=3).choices
    assert choice.finish_reason == "length"
    assert choice.message.content.startswith("{")


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"structured_outputs": {"regex": "[ab]{2}c"}}, "[ab]{2}c"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"grammar": 'start: "x" /[0-9]/'}}, "x[0-9]"),
        ({"structured_outputs": {"json": {"enum": [1, "a"]}}}, '1|"a"'),
        ({"structured_outputs": {"json": '{"enum": [1, "a"]}'}}, '1|"a"'),
        ({"structured_outputs": {"json": {"type": "boolean"}, "regex": None}}, "true|false"),
        ({"guided_regex": "[ab]{2}c"}, "[ab]{2}c"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'root ::= "x" [0-9]'}, "x[0-9]"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
    ],
)
def test_the_fields_that_vllm_has(
    http: httpx.Client, path: str, fields: dict[str, Any], expected: str
) -> None:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": ["the cat", "the dog"]}
    body = {"model": "tiny", "max_tokens": 40, "seed": 5, **prompt, **fields}
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        text = choice["text"] if path == PLAIN else choice["message"]["content"]
        assert re.fullmatch(expected, text)
        assert choice["finish_reason"] == "stop"


def test_json_object_of_structured_outputs(http: httpx.Client) -> None:
    body = {"model": "tiny", "prompt": "x", "max_tokens": 1, "seed": 1}
    answer = http.post(PLAIN, json=body | {"structured_outputs": {"json_object": True}})
    assert answer.json()["choices"][0]["text"].startswith("{")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "text", "frob": 1}}, "response_format.frob"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_json": 3}, "guided_json"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex"),
        (
            {"response_format": {"type": "json_object"}, "guided_json": {"type": "null"}},
            "guided_json",
        ),
        ({"guided_regex": "a", "min_tokens": 2}, "min_tokens"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_json": {"not": {}}}, "guided_json"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"uniqueItems": True}},
                }
            },
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_cannot_be_honored_is_named(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 2, **fields}
    error = error_of(http.post(CHAT, json=body))
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


def test_the_sdk_sees_the_keyword(client: OpenAI) -> None:
    schema = {"type": "object", "patternProperties": {"a": {"if": {}}}}
    with pytest.raises(BadRequestError, match="'if'"):
        chat(client, {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def test_streams_under_a_grammar_outlive_the_engine(server: Server, http: httpx.Client) -> None:
    body = {
        "model": "tiny",
        "prompt": "the cat",
        "max_tokens": 600,
        "seed": 8,
        "guided_regex": "([a-z]{3} ){150}end",
    }
    whole = http.post(PLAIN, json=body).json()["choices"][0]["text"]
    with http.stream("POST", PLAIN, json=body | {"stream": True}) as stream:
        lines = (line[6:] for line in stream.iter_lines() if line.startswith("data: "))
        texts = [json.loads(next(lines))["choices"][0]["text"]]
        [engine] = server.children()
        engine.kill()
        texts += [json.loads(x)["choices"][0]["text"] for x in lines if x != "[DONE]"]
    assert "".join(texts) == whole
    assert re.fullmatch("([a-z]{3} ){150}end", whole)

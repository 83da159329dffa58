"""Fields that no model can honor: the error names the field, and other requests are unaffected."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from tests.server.conftest import CONTEXT
from tests.server.raw import CHAT
from tests.server.refusals import error_of

pytestmark = pytest.mark.xdist_group("default_server")

PLAIN = "/v1/completions"
JSON = {"Content-Type": "application/json"}
ALWAYS = {"model": "tiny", "max_tokens": 2}
USER = {"role": "user", "content": "x"}

Changes = Sequence[tuple[dict[str, Any], str]]


def case_id(value: Any) -> str:
    return str(value)[:60]


def refused(both: Changes = (), *, chat: Changes = (), plain: Changes = ()) -> pytest.MarkDecorator:
    """Return a test for each change to a request and the field that its error names."""
    cases = [(CHAT, *case) for case in (*both, *chat)] + [
        (PLAIN, *case) for case in (*both, *plain)
    ]
    return pytest.mark.parametrize(("path", "changes", "param"), cases, ids=case_id)


def check(http: httpx.Client, path: str, changes: dict[str, Any], param: str) -> None:
    """Check that the answer is 400 and that the error names the field."""
    minimal: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
    if path == PLAIN:
        minimal = {"prompt": "x"}
    body = json.dumps(ALWAYS | minimal | changes).replace("Infinity", "1e400")
    error = error_of(http.post(path, content=body, headers=JSON))
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(param)


def one(content: Any) -> dict[str, Any]:
    """Return a conversation of one message."""
    return {"messages": [{"role": "user", "content": content}]}


def _tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def _call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": "{}"}
    return {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", "\u2028", " "])
@pytest.mark.parametrize(
    ("path", "place"),
    [
        (CHAT, lambda name: {"messages": [USER], "tools": [_tool(name)]}),
        (CHAT, lambda name: {"messages": [USER, _call(name)]}),
        (
            CHAT,
            lambda name: {
                "messages": [USER],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": name, "schema": {}},
                },
            },
        ),
        (
            "/v1/responses",
            lambda name: {"input": "x", "tools": [{"type": "function", "name": name}]},
        ),
        (
            "/v1/messages",
            lambda name: {
                "messages": [USER],
                "max_tokens": 1,
                "tools": [{"name": name, "input_schema": {"type": "object"}}],
            },
        ),
        ("/api/chat", lambda name: {"messages": [USER], "tools": [_tool(name)]}),
    ],
)
def test_a_name_ends_with_the_text(
    http: httpx.Client, path: str, place: Callable[[str], dict[str, Any]], end: str
) -> None:
    for name, wrong in ((f"name{end}", True), ("name", False)):
        answer = http.post(path, json={"model": "tiny", **place(name)})
        assert ("regex" in answer.text) == wrong, answer.text
        assert not wrong or answer.status_code == 400


@refused(
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
        ({"store": "yes"}, "store"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"chat_template": "x"}, "chat_template"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params"),
        ({"guided_json": []}, "guided_json"),
        ({"guided_decoding_backend": "x"}, "guided_decoding_backend"),
        ({"x" * 100_000: 1}, "x" * 200),
        ({"metadata": {str(i): "" for i in range(100_000)}}, "metadata"),
    ],
    chat=[
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"tools": {}}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "cold": 1}]}, "messages[0].cold"),
        (one([{"type": "image_url"}]), "messages[0].content[0]"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].id",
        ),
    ],
    plain=[({"suffix": "x"}, "suffix")],
)
def test_unknown_and_exclusive_fields_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"n": 10**9}, "n"),
        ({"n": -1}, "n"),
        ({"n": 0}, "n"),
        ({"best_of": 10**9}, "best_of"),
    ],
    plain=[({"prompt": ["x"] * 2049}, "prompt"), ({"prompt": [[1]] * 2049}, "prompt")],
)
def test_counts_out_of_range_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"max_tokens": CONTEXT + 1}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
    chat=[
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 10**9}, "max_completion_tokens"),
        ({"max_tokens": None, "max_completion_tokens": -1}, "max_completion_tokens"),
    ],
)
def test_more_tokens_than_the_context_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    chat=[(one("the cat " * CONTEXT), "messages")],
    plain=[
        ({"prompt": "the cat " * CONTEXT}, "prompt"),
        ({"prompt": [1] * (2**20 + 1)}, "prompt"),
    ],
)
def test_prompts_beyond_the_context_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    chat=[
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hello"}, "messages"),
        (one(None), "messages[0].content"),
        (one([]), "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ""}] * 5000}, "messages"),
        (one([{"type": "text", "text": ""}] * 300), "messages[0].content"),
    ],
    plain=[({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt")],
)
def test_empty_or_malformed_messages_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"stop_token_ids": [99999]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ],
    plain=[
        ({"prompt": [CONTEXT * 1000]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**80]}, "prompt"),
        ({"prompt": [2**80], "echo": True}, "prompt"),
    ],
)
def test_invalid_token_ids_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 1e400}, "temperature"),
        ({"temperature": 1000}, "temperature"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": 2.001}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**80}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"priority": 101}, "priority"),
        ({"priority": -(10**30)}, "priority"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": [1]}, "top_p"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"n": False}, "n"),
        ({"seed": 1.0}, "seed"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"ignore_eos": 0}, "ignore_eos"),
    ],
    plain=[({"echo": 1}, "echo")],
)
def test_values_out_of_range_or_of_another_type_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"logit_bias": {str(i): 1 for i in range(100_000)}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"the": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"logit_bias": {"5": 100, "05": -100}}, "logit_bias"),
    ],
    chat=[
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 10**6}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ],
    plain=[
        ({"logprobs": 10**6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_invalid_logprobs_and_biases_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": "x" * 1_000_000}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": {}}, "stop"),
    ],
)
def test_invalid_stop_strings_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [({"cache_salt": ""}, "cache_salt")],
)
def test_an_empty_cache_salt_is_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)


@refused(
    [
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": 10**400}, "seed"),
    ],
)
def test_seeds_beyond_64_bits_are_refused(
    http: httpx.Client, path: str, changes: dict[str, Any], param: str
) -> None:
    check(http, path, changes, param)

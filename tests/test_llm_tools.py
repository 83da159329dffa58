"""Tools and thinking with ``galley.LLM``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from galley import LLM, SamplingParams
from galley.errors import RequestError
from tests.tools.checkpoint import make_calling

CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"enum": ["utc", "cet"]}},
            "additionalProperties": False,
        },
    },
}
THINKING: dict[str, Any] = {
    "chat_template_kwargs": {"enable_thinking": True},
    "max_thinking_tokens": 6,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = make_calling(tmp_path_factory.mktemp("models") / "calling")
    with LLM(folder, kv_cache_tokens=4096, threads=1) as model:
        yield model


def test_a_required_call_comes_after_thinking(llm: LLM) -> None:
    params = SamplingParams(max_tokens=200, seed=1, n=2)
    [output] = llm.chat(
        "What time is it?",
        params,
        tools=[CLOCK],
        tool_choice="get_time",
        parallel_tool_calls=False,
        **THINKING,
    )
    for choice in output.choices:
        [call] = choice.tool_calls
        assert call.name == "get_time"
        assert isinstance(json.loads(call.arguments), dict)
        assert choice.reasoning
        assert choice.finish_reason == "stop"
        assert not choice.text
        messages: Any = [
            {"role": "user", "content": "What time is it?"},
            {"role": "assistant", "content": None, "tool_calls": [call.as_templates_expect()]},
            {"role": "tool", "tool_call_id": call.id, "content": "noon"},
        ]
        [answer] = llm.chat(messages, SamplingParams(max_tokens=4, seed=1), tools=[CLOCK])
        assert answer.text
        assert answer.choices[0].tool_calls == []


def test_a_stream_has_thinking_calls_and_text_apart(llm: LLM) -> None:
    params = SamplingParams(max_tokens=200, seed=1)
    choice: dict[str, Any] = {"tools": [CLOCK], "tool_choice": "get_time", **THINKING}
    choice["parallel_tool_calls"] = False
    for options in (choice, THINKING):
        [whole] = [output.choices[0] for output in llm.chat("What time is it?", params, **options)]
        deltas = list(llm.chat_stream("What time is it?", params, **options))
        assert "".join(delta.text for delta in deltas) == whole.text
        assert "".join(delta.reasoning for delta in deltas) == whole.reasoning != ""
        calls = [(call.name, call.arguments) for delta in deltas for call in delta.tool_calls]
        assert calls == [(call.name, call.arguments) for call in whole.tool_calls]
        assert deltas[-1].finish_reason == whole.finish_reason


def test_what_is_wrong_is_named(llm: LLM) -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f"}}
    broken: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("x", {"tool": []}, "tool"),
        ("x", {"tools": [{"name": "f"}]}, "tools[0]"),
        ("x", {"tools": [CLOCK], "tool_choice": "f"}, "tool_choice"),
        ("x", {"chat_template_kwargs": {"other": 1}}, "chat_template_kwargs.other"),
        ("x", {"max_thinking_tokens": "7"}, "max_thinking_tokens"),
        (broken, {}, "messages"),
    ]
    for messages, options, param in cases:
        with pytest.raises(RequestError) as refused:
            llm.chat(messages, **options)
        assert refused.value.param == param


@pytest.mark.parametrize("arguments", ["[]", '{"a": "x', "", {"a": 1}])
def test_arguments_that_are_no_json_object_are_taken_back(llm: LLM, arguments: Any) -> None:
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": arguments}}
    said: Any = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    [output] = llm.chat(said, SamplingParams(max_tokens=1))
    assert output.choices[0].token_ids


def test_volatile_lines_are_left_out_of_prompts(tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "calling")
    head = "x-anthropic-billing-header: cch=1;"
    said: Any = [
        {"role": "system", "content": f"{head}\nBe brief."},
        {"role": "user", "content": "x"},
    ]
    counts = []
    for how in ("keep", "drop"):
        with LLM(folder, kv_cache_tokens=1024, threads=1, volatile_lines=how) as llm:
            [output] = llm.chat([said], SamplingParams(max_tokens=1))
            counts.append(output.prompt_tokens)
    assert counts[0] > counts[1] + 10


def test_a_parser_of_another_name_leaves_the_text_as_it_is(tmp_path: Path) -> None:
    folder = make_calling(tmp_path / "calling")
    with LLM(folder, kv_cache_tokens=1024, threads=1, reasoning_parser="off") as llm:
        with pytest.raises(RequestError, match="max_thinking_tokens"):
            llm.chat("x", **THINKING)
        [output] = llm.chat(
            "x",
            SamplingParams(max_tokens=8, seed=1),
            chat_template_kwargs={"enable_thinking": True},
        )
        assert output.text
        assert output.choices[0].reasoning == ""

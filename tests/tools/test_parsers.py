"""Each format's parser: published examples in any division; and answers of all kinds."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.tools.conversation import Tool
from galley.tools.events import Arguments, CallEnd, CallStart, Reasoning, Text, whole
from galley.tools.formats import FORMATS
from galley.tools.value_types import ALL, types_of
from tests.thorough import examples
from tests.tools.answers import TOOLS, WEATHER, Parts, events_of, new_parser, parts, read
from tests.tools.examples import EXAMPLES, Example

NAMES = sorted(FORMATS)
BY_FORMAT = pytest.mark.parametrize("name", NAMES)


def test_every_format_has_an_example() -> None:
    assert {example.format for example in EXAMPLES} == set(NAMES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_published_examples_in_every_split(example: Example) -> None:
    expected: Parts = (example.text, example.reasoning, example.calls, [])
    answer = example.answer
    options: dict[str, Any] = {"thinking": example.thinking} if example.thinking else {}
    for cut in range(len(answer) + 1):
        assert read(example.format, [answer[:cut], answer[cut:]], **options) == expected
    assert read(example.format, answer, **options) == expected
    rng = random.Random(1)
    for _ in range(50):
        cuts = sorted(rng.choices(range(len(answer)), k=8))
        pieces = [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
        assert read(example.format, pieces, **options) == expected


@pytest.mark.parametrize(
    "example", [x for x in EXAMPLES if x.calls and '{"arguments"' not in x.answer]
)
def test_arguments_come_as_they_are_written(example: Example) -> None:
    """Some of a call's arguments arrive before all of them do, and none before the name."""
    options: dict[str, Any] = {"thinking": example.thinking} if example.thinking else {}
    parser = new_parser(example.format, **options)
    seen: list[tuple[int, Any]] = []
    for at, char in enumerate(example.answer):
        seen += [(at, event) for event in parser.feed(char)]
    started = {event.index for _, event in seen if isinstance(event, CallStart)}
    for index in started:
        pieces = [at for at, e in seen if isinstance(e, Arguments) and e.index == index]
        [end] = [at for at, e in seen if isinstance(e, CallEnd) and e.index == index]
        name, arguments = example.calls[index]
        if len(arguments) > 1:
            assert len(set(pieces)) > 1, name
        assert all(at <= end for at in pieces)


BROKEN = [
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": tru}}</tool_call>', "JSON"),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": 1', "ends"),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>', "object"),
    ("hermes", '<tool_call>{"name": "get\\u0000time", "arguments": {}}</tool_call>', "name"),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>', "name"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no name"),
    ("hermes", "<tool_call>get_time()</tool_call>", "JSON"),
    ("llama", '<|python_tag|>brave_search.call(query="x")', "JSON"),
    ("llama", '{"name": "get_time", "parameters": {"a": 01}}', "JSON"),
    ("pythonic", "[get_weather(city=open('x'))]", "literal"),
    ("pythonic", "[get_weather(city=" + "[" * 300 + "]" * 300 + ")]", "literal"),
    ("mistral", "[TOOL_CALLS]get_time[ARGS]nothing", "object"),
    ("mistral", '[TOOL_CALLS][{"name": "get_time", "arguments": {}', "ends"),
    ("qwen_xml", "<tool_call>\n<function=get_time>\nnow\n</function>\n</tool_call>", "parameter"),
    ("phi", '<|tool_call|>[{"name": "get_time", "arguments": {,}}]<|/tool_call|>', "JSON"),
    ("granite", '<|tool_call|>[{"name": "get_time", "arguments": {]}]', "JSON"),
    ("harmony", "<|channel|>commentary to=browser.open<|message|>{}<|call|>", "browser.open"),
    ("harmony", "<|channel|>commentary to=functions.get_time<|message|>{1}<|call|>", "JSON"),
]


@pytest.mark.parametrize(("name", "answer", "reason"), BROKEN)
def test_malformed_calls_are_text_with_a_warning(name: str, answer: str, reason: str) -> None:
    for chunks in ([answer], list(answer)):
        text, _, calls, warnings = read(name, chunks)
        assert calls == []
        assert text == (answer.removesuffix("<|call|>") if name == "harmony" else answer)
        assert len(warnings) == 1
        assert reason in warnings[0]


@BY_FORMAT
def test_one_call_ends_the_answer_where_no_other_may_follow(name: str) -> None:
    [example, *_] = [x for x in EXAMPLES if x.format == name and len(x.calls) == 2]
    options: dict[str, Any] = {"thinking": example.thinking} if example.thinking else {}
    parser = new_parser(name, parallel=False, **options)
    answer = whole(events_of(parser, example.answer))
    assert parser.finished
    assert parts(answer)[2] == example.calls[:1]


def test_thinking_that_the_prompt_began() -> None:
    for chunks in (["so.\n</think>\n\nYes."], "so.\n</think>\n\nYes."):
        parser = new_parser("hermes", thinking="think", in_thinking=True)
        assert parts(whole(events_of(parser, chunks))) == ("Yes.", "so.", [], [])
        assert parser.reasoning_spans == [(0, 12)]


def test_thinking_that_never_ends_is_thinking() -> None:
    assert read("hermes", "<think>a </think b", thinking="think") == ("", "a </think b", [], [])


def test_a_marker_in_the_midst_of_the_text_is_no_thinking() -> None:
    text = "x <think>a</think>"
    assert read("hermes", text, thinking="think") == (text, "", [], [])


MARKERS = {
    name: (*FORMATS[name].parser.MARKERS, "{", "}", "[", "]", "(", ")", '"', "name", ":", ",", " ")
    for name in NAMES
}
PIECES = (
    "get_time",
    "get_weather",
    '"arguments"',
    "<function=",
    "<parameter=city>",
    "</parameter>",
)


@BY_FORMAT
@settings(max_examples=examples(60))
@given(data=st.data())
def test_no_answer_raises_and_none_depends_on_its_pieces(name: str, data: st.DataObject) -> None:
    soup = st.sampled_from(
        [*MARKERS[name], *PIECES, "\\", "'", "=", "\n", ">", "<think>", "</think>"]
    )
    chunks = data.draw(st.lists(soup | st.text(max_size=5), max_size=40))
    thinking = None if name == "harmony" else data.draw(st.sampled_from([None, "think"]))
    options: dict[str, Any] = {"thinking": thinking} if thinking else {}
    at_once = events_of(new_parser(name, **options), ["".join(chunks)])
    assert _merged(at_once) == _merged(events_of(new_parser(name, **options), chunks))
    answer = whole(at_once)
    for call in answer.calls:
        assert isinstance(json.loads(call.arguments), dict)
    if name != "harmony" and not thinking and not answer.calls and not answer.warnings:
        kept = "".join(chunks)
        for marker in FORMATS[name].parser.MARKERS[:2] if name == "deepseek" else ():
            kept = kept.replace(marker, "")
        assert re.sub(r"\s", "", answer.text) == re.sub(r"\s", "", kept)


def _merged(events: list[Any]) -> list[tuple[Any, ...]]:
    """Return the events with adjacent pieces of a kind merged, and without ids."""
    merged: list[tuple[Any, ...]] = []
    for event in events:
        match event:
            case CallStart():
                merged.append(("start", event.index, event.name))
            case CallEnd():
                merged.append(("end", event.index, event.broken))
            case Text(warning=str(warning)):
                merged.append(("broken", event.text, warning))
            case Text() | Reasoning() | Arguments():
                kind = (type(event).__name__, getattr(event, "index", 0))
                if merged and merged[-1][:2] == kind:
                    merged[-1] = (*kind, merged[-1][2] + event.text)
                else:
                    merged.append((*kind, event.text))
    return merged


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
PLAIN = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="<[{}]f")).map(
    str.strip
)
CALLS = st.tuples(PLAIN, st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
WRITTEN = {
    "hermes": '<tool_call>\n{{"name": "get_weather", "arguments": {0}}}\n</tool_call>',
    "mistral": "[TOOL_CALLS]get_weather[ARGS]{0}",
    "deepseek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{0}\n```"  # noqa: RUF001
    "<｜tool▁call▁end｜>",  # noqa: RUF001
    "granite": '<|tool_call|>[{{"arguments": {0}, "name": "get_weather"}}]',
    "phi": '<|tool_call|>[{{"name": "get_weather", "arguments": {0}}}]<|/tool_call|>',
}


@pytest.mark.parametrize("name", sorted(WRITTEN))
@settings(max_examples=examples(40))
@given(turns=st.lists(CALLS, max_size=4), seed=st.integers(0, 2**32))
def test_text_and_calls_come_out_as_they_went_in(
    name: str, turns: list[tuple[str, dict[str, Any]]], seed: int
) -> None:
    answer = "".join(
        text + WRITTEN[name].format(json.dumps(arguments, ensure_ascii=bool(seed % 2)))
        for text, arguments in turns
    )
    rng = random.Random(seed)
    chunks = []
    while answer:
        size = rng.randint(1, 12)
        chunks.append(answer[:size])
        answer = answer[size:]
    text, _, calls, warnings = read(name, chunks)
    assert calls == [("get_weather", arguments) for _, arguments in turns]
    assert re.sub(r"\s", "", text) == re.sub(r"\s", "", "".join(text for text, _ in turns))
    assert not warnings


STRINGS = Tool(name="get_weather", parameters={"type": "object"})


@given(values=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text(), max_size=3))
def test_python_literals_come_out_as_they_went_in(values: dict[str, str]) -> None:
    import keyword

    values = {key: value for key, value in values.items() if not keyword.iskeyword(key)}
    arguments = ", ".join(f"{key}={value!r}" for key, value in values.items())
    _, _, calls, _ = read("pythonic", f"[get_weather({arguments})]", tools=[STRINGS])
    assert calls == [("get_weather", values)]


OPTIONAL: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
TYPED: list[tuple[Any, str, Any]] = [
    *(
        (OPTIONAL, text, text)
        for text in ('{"a": 1}', "[1]", "5", "true", '"x"', "{'a': 1}", " 5 ")
    ),
    (OPTIONAL, "null", None),
    (OPTIONAL, "None", None),
    ({"type": ["string", "null"]}, '{"a": 1}', '{"a": 1}'),
    ({"type": ["null", "string"], "description": "x"}, "1.50", "1.50"),
    ({"oneOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]}, "12", "12"),
    ({"allOf": [OPTIONAL]}, "false", "false"),
    ({"enum": ["1", "2", None]}, "1", "1"),
    ({"enum": ["1", "2", None]}, "null", None),
    ({"const": "null"}, "null", "null"),
    ({"type": "string"}, "null", "null"),
    (
        {"type": "object"},
        "{'a': 1, 'b': None, 'c': [True, 'x']}",
        {"a": 1, "b": None, "c": [True, "x"]},
    ),
    ({"type": "object"}, '{"a": true}', {"a": True}),
    ({"properties": {"a": {}}}, "{'a': 'it'}", {"a": "it"}),
    ({"$ref": "#/$defs/place"}, "{'x': 1}", {"x": 1}),
    ({"type": "array"}, "('a', 2)", ["a", 2]),
    ({"type": ["object", "null"]}, "None", None),
    ({"type": ["object", "string"]}, "{'a': 1}", {"a": 1}),
    ({"type": ["object", "string"]}, "[1]", "[1]"),
    ({"type": ["integer", "string"]}, "5", 5),
    ({"type": ["integer", "string"]}, '"5"', "5"),
    ({"type": ["integer", "string"]}, "5.5", "5.5"),
    ({"type": "integer"}, "5.0", 5.0),
    ({"type": "number"}, "5", 5),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "yes", "yes"),
    ({}, "5", "5"),
    ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, "5", 5),
]


@pytest.mark.parametrize(("schema", "written", "value"), TYPED)
def test_a_value_between_tags_is_of_the_type_that_fits(
    schema: Any, written: str, value: Any
) -> None:
    place = {"type": "object"}
    parameters = {
        "type": "object",
        "properties": {"x": schema},
        "$defs": {"name": {"type": "string"}, "place": place},
    }
    tool = Tool(name="note", parameters=parameters)
    answer = f"<function=note>\n<parameter=x>\n{written}\n</parameter>\n</function>"
    for chunks in ([answer], list(answer)):
        _, _, [(_, arguments)], warnings = read("qwen_xml", chunks, tools=[tool])
        assert arguments == {"x": value}
        assert type(arguments["x"]) is type(value)
        assert not warnings


def test_a_schema_that_refers_to_itself_is_looked_at_a_bounded_number_of_times() -> None:
    loop = {"anyOf": [{"$ref": "#/properties/x"}] * 100}
    assert types_of(loop, {"properties": {"x": loop}}) == ALL


BEGINNINGS = (
    "",
    "<tool_call>",
    "[TOOL_CALLS]",
    "<|channel|>",
    '{"name": "get_time", "parameters": {"a": "',
)


@BY_FORMAT
def test_each_character_is_examined_a_bounded_number_of_times(name: str) -> None:
    """Counted, not timed: the text that waits to be parsed stays short while an answer arrives."""
    for filling in ("x", " ", "<", '{"a":', "[", "\n"):
        for prefix in BEGINNINGS:
            parser = new_parser(name)
            parser.feed(prefix)
            for _ in range(600):
                parser.feed(filling)
                assert len(parser._buffer) - parser._at < 512


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    assert TOOLS[1].schema == {"type": "object", "properties": {}}
    assert WEATHER.as_templates_expect()["function"]["name"] == "get_weather"

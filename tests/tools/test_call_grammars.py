"""Grammars of calls: random texts that follow one are parsed as calls that satisfy the tools' schemas."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer

from galley.errors import RequestError
from galley.grammar.check import LIMITS, check
from galley.grammar.vocabulary import load_vocabulary
from galley.text.stream import TextStream
from galley.text.tokenizer import Tokenizer
from galley.tools.conversation import Conversation, Tool
from galley.tools.events import Answer, Event, whole
from galley.tools.formats import FORMATS, THINKING, ChatFormat, control_tokens
from galley.tools.grammar import Thinking, grammar_of
from galley.types import Grammar, Output, Tokens
from tests.checkpoints import make_tokenizer
from tests.tools.answers import CLOCK, WEATHER, Parts, events_of, parts
from tests.tools.examples import EXAMPLES, Example

NAMES = sorted(FORMATS)
BY_FORMAT = pytest.mark.parametrize("name", NAMES)

BOOK = Tool(
    name="book.table",
    parameters={
        "type": "object",
        "properties": {
            "place": {"type": "string", "enum": ["bar", "hall"]},
            "guests": {"type": "integer", "minimum": 1, "maximum": 9},
            "vip": {"type": "boolean"},
            "days": {"type": "array", "items": {"$ref": "#/$defs/day"}, "maxItems": 2},
        },
        "required": ["guests", "place"],
        "additionalProperties": False,
        "$defs": {"day": {"enum": ["mon", "tue"]}},
    },
    field="tools[0].function.parameters",
)
SHOUT = Tool(
    name="shout",
    parameters={
        "type": "object",
        "properties": {"loud": {"type": "boolean"}, "twice": {"type": "boolean"}},
        "additionalProperties": False,
    },
)


class Model:
    """A tokenizer with some markers as special tokens, and random texts under a grammar."""

    def __init__(self, folder: Path, markers: tuple[str, ...]) -> None:
        make_tokenizer(folder)
        path = folder / "tokenizer.json"
        content = json.loads(path.read_text())
        first = max(content["model"]["vocab"].values()) + 1
        for number, marker in enumerate(markers):
            token: dict[str, Any] = {"id": first + number, "content": marker, "special": True}
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            content["added_tokens"].append(token | flags)
        path.write_text(json.dumps(content))
        self.tokenizer = Tokenizer.load(folder)
        self.vocabulary: LLTokenizer = load_vocabulary(folder)

    def random_ids(self, grammar: Grammar, seed: int) -> tuple[list[int], bool]:
        """Return tokens that follow the grammar and end soon where possible; and whether they ended."""
        compiled = check(grammar, self.vocabulary, "tools")
        matcher = LLMatcher(self.vocabulary, compiled.source, log_level=0, limits=LIMITS)
        rng = np.random.default_rng(seed)
        eos = self.vocabulary.eos_token
        ids: list[int] = []
        for _ in range(250):
            if matcher.is_stopped():
                break
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            assert not matcher.is_error(), matcher.get_error()
            if matcher.is_accepting() and eos in allowed:
                if rng.random() < 0.3 or len(allowed) == 1:
                    break
                allowed = allowed[allowed != eos]
            # Short values: closing tokens are preferred.
            ends = [t for t in allowed if set(self.tokenizer.token_text(int(t))) & set('"}])>')]
            token = int(rng.choice(ends if ends and rng.random() < 0.5 else allowed))
            ids.append(token)
            assert matcher.consume_token(token)
        return ids, matcher.is_stopped() or matcher.is_accepting()

    def accepts(self, grammar: Grammar, ids: list[int]) -> bool:
        """Return whether the tokens follow the grammar, to its end."""
        compiled = check(grammar, self.vocabulary, "tools").source
        matcher = LLMatcher(self.vocabulary, compiled, log_level=0, limits=LIMITS)
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    def spelled(self, *texts: str | tuple[str]) -> list[int]:
        """Return the ids of consecutive texts; only a tuple may contain a marker's token."""
        ids: list[int] = []
        for text in texts:
            if isinstance(text, tuple):
                ids += self.tokenizer.encode(text[0], add_special_tokens=False)
            else:
                ids += self.tokenizer.encode_plain(text)
        return ids


def templates(name: str) -> list[str]:
    """Return texts of chat templates that affect how calls are written."""
    return {
        "mistral": ["[TOOL_CALLS]", "[TOOL_CALLS][ARGS]"],
        "deepseek": ["```json", ""],
        "granite": ["<|tool_call|>", ""],
    }.get(name, [""])


def form(name: str, template: str = "", thinking: str | None = None) -> ChatFormat:
    return ChatFormat(
        calls=name,
        syntax=FORMATS[name].syntax(template),
        thinking=None if name == "harmony" else thinking,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Model]:
    """Return a model with the markers as text, and one with them as special tokens."""
    every = dict.fromkeys(marker for known in FORMATS.values() for marker in known.parser.MARKERS)
    markers = (*every, *THINKING["think"], *THINKING["mistral"])
    return {
        special: Model(tmp_path_factory.mktemp("model"), markers if special else ())
        for special in (False, True)
    }


def conversation(*tools: Tool, **fields: Any) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": "x"}], tools=tools, **fields)


def answer_of(
    model: Model,
    format_: ChatFormat,
    request: Conversation,
    seed: int,
    *,
    thinking: Thinking = "over",
    answer: Grammar | None = None,
) -> Any:
    """Return a random answer, or None if it did not end."""
    grammar = grammar_of(request, format_, model.tokenizer, thinking, answer)
    assert grammar is not None
    ids, ended = model.random_ids(grammar, seed)
    return read(model, format_, request, ids, thinking) if ended else None


def read(
    model: Model, format_: ChatFormat, request: Conversation, ids: list[int], thinking: Thinking
) -> Answer:
    """Return the answer parsed from tokens, which arrive two at a time."""
    parser = format_.parser(
        request.offered,
        parallel=request.parallel,
        in_thinking=thinking == "begun",
        tokens=control_tokens(model.tokenizer),
        constrained=True,
    )
    assert parser is not None
    markers = format_.marker_tokens(model.tokenizer, parser)
    stream = TextStream(model.tokenizer, at_start=False, markers=markers)
    events: list[Event] = []
    for at in range(0, len(ids), 2):
        ended: Any = "length" if at + 2 >= len(ids) else None
        output = Output(request_id="x", result=Tokens(tokens=ids[at : at + 2]), finish_reason=ended)
        delta = stream.feed(output)
        events += parser.feed(delta.text, delta.marks)
    return whole(events + parser.finish())


def check_calls(calls: Any, *tools: Tool) -> None:
    schemas = {tool.name: tool.schema for tool in tools}
    for call in calls:
        assert jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments)), call


@BY_FORMAT
@pytest.mark.parametrize("special", [False, True])
def test_required_and_named(models: dict[bool, Model], name: str, special: bool) -> None:
    ended = 0
    for template in templates(name):
        for seed in range(6):
            request = conversation(BOOK, SHOUT, CLOCK, choice="required", parallel=seed % 2 == 0)
            if seed == 5:
                request = conversation(BOOK, SHOUT, named="shout")
            answer = answer_of(models[special], form(name, template), request, seed)
            if answer is None:
                continue
            ended += 1
            assert answer.calls, answer
            assert not answer.text
            assert not answer.warnings
            if not request.parallel:
                assert len(answer.calls) == 1
            if seed == 5:
                assert {call.name for call in answer.calls} == {"shout"}
            check_calls(answer.calls, BOOK, SHOUT, CLOCK)
    assert ended > 2


@BY_FORMAT
@pytest.mark.parametrize("thinking", ["begun", "possible"])
def test_a_call_follows_thinking(models: dict[bool, Model], name: str, thinking: Any) -> None:
    format_ = form(name, thinking="think")
    reasoned = 0
    for seed in range(4):
        model = models[seed < 3]
        request = conversation(SHOUT, choice="required", parallel=False)
        answer = answer_of(model, format_, request, seed, thinking=thinking)
        if answer is not None:
            assert len(answer.calls) == 1
            reasoned += bool(answer.reasoning)
    if name != "harmony":
        assert reasoned or thinking == "possible"


@BY_FORMAT
def test_a_call_or_a_text_of_the_requested_form(models: dict[bool, Model], name: str) -> None:
    request = conversation(msgspec.structs.replace(SHOUT, strict=True))
    either = Grammar("choice", '["7"]')
    kinds = set()
    for seed in range(12):
        answer = answer_of(models[seed % 2 == 0], form(name), request, seed, answer=either)
        if answer is not None:
            check_calls(answer.calls, SHOUT)
            kinds.add(bool(answer.calls))
            assert answer.calls or answer.text == "7"
    assert kinds == {True, False}


@BY_FORMAT
def test_strict_tools_are_called_rightly_or_not_at_all(
    models: dict[bool, Model], name: str
) -> None:
    strict = msgspec.structs.replace(BOOK, strict=True)
    for seed in range(8):
        answer = answer_of(models[seed % 2 == 0], form(name), conversation(strict), seed)
        if answer is not None:
            check_calls(answer.calls, strict)
            assert not answer.warnings


THOUGHTS = ["</think>", "a </think> b", "</think></think>", "<think>x</think>", "</thi</think>nk>"]


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"harmony"}))
@pytest.mark.parametrize("thought", THOUGHTS)
def test_a_thought_ends_with_its_token_and_not_with_its_spelling(
    models: dict[bool, Model], name: str, thought: str
) -> None:
    model, format_ = models[True], form(name, thinking="think")
    request = conversation(CLOCK)
    ids = model.spelled(thought, ("</think>",), "7")
    expected: Parts = ("7", thought, [], [])
    assert parts(read(model, format_, request, ids, "begun")) == expected
    either = Grammar("choice", '["7"]')
    grammar = grammar_of(conversation(), format_, model.tokenizer, "begun", either)
    assert grammar is not None
    assert model.accepts(grammar, ids)
    # Where the marker is not a token, its text decides.
    plain = read(models[False], format_, request, models[False].spelled("a</think>7"), "begun")
    assert parts(plain) == ("7", "a", [], [])


MARKED = [x for x in EXAMPLES if x.answer.count(FORMATS[x.format].parser.MARKERS[0])]


@pytest.mark.parametrize("example", MARKED)
def test_a_spelled_call_is_text_and_a_call_behind_it_is_none_of_its_text(
    models: dict[bool, Model], example: Example
) -> None:
    """The example's answer with its markers as tokens, after the same in ordinary tokens."""
    model = models[True]
    format_ = form(example.format, thinking=example.thinking)
    request = conversation(WEATHER, CLOCK)
    own = {*FORMATS[example.format].parser.MARKERS, *THINKING.get(example.thinking or "", ())}
    markers = sorted(own & control_tokens(model.tokenizer).keys(), key=len, reverse=True)
    pieces = re.split(f"({'|'.join(map(re.escape, markers))})", example.answer)
    tokens = model.spelled(*((piece,) if piece in markers else piece for piece in pieces))
    expected: Parts = (example.text, example.reasoning, example.calls, [])
    assert parts(read(model, format_, request, tokens, "over")) == expected
    spelled = read(model, format_, request, model.spelled(example.answer), "over")
    if example.format not in ("llama", "pythonic"):  # which have calls without markers
        assert not spelled.calls
        assert not spelled.warnings
        assert spelled.text == example.answer


@pytest.mark.parametrize("name", ["hermes", "qwen_xml", "deepseek", "phi", "granite", "mistral"])
def test_grammar_and_parser_agree_on_a_spelled_call(models: dict[bool, Model], name: str) -> None:
    model, format_ = models[True], form(name)
    strict = conversation(msgspec.structs.replace(BOOK, strict=True))
    assert format_.syntax is not None
    marker = (*format_.syntax.begin, *format_.syntax.call)[0]
    text = f'See {marker}{{"name": "book.table", "arguments": {{}}}} there.'
    ids = model.spelled(text)
    grammar = grammar_of(strict, format_, model.tokenizer, "over", None)
    assert grammar is not None
    assert model.accepts(grammar, ids)
    assert parts(read(model, format_, strict, ids, "over")) == (text, "", [], [])
    token = model.spelled("See ", (marker,), '{"name": "book.table", "arguments": {}} there.')
    assert not model.accepts(grammar, token)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", True),
        ("def f(a: list[int]) -> None:\n    return {'a': \"</p>\"}\n\n", True),
        ("</tool_call> é", True),
        ("<parameter=x>", False),
        ("</function>", False),
    ],
)
def test_text_between_tags(models: dict[bool, Model], text: str, allowed: bool) -> None:
    parameters = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
    request = conversation(Tool(name="note", parameters=parameters), choice="required")
    model = models[False]
    grammar = grammar_of(request, form("qwen_xml"), model.tokenizer, "over", None)
    assert grammar is not None
    compiled = check(grammar, model.vocabulary, "tools").source
    written = f"<function=note>\n<parameter=text>\n{text}\n</parameter>\n</function>"
    written = f"<tool_call>\n{written}\n</tool_call>"
    ids = model.tokenizer.encode_plain(written)
    matcher = LLMatcher(model.vocabulary, compiled, log_level=0, limits=LIMITS)
    assert (matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()) == allowed
    if allowed:
        parser = form("qwen_xml").parser(request.offered)
        assert parser is not None
        [call] = whole(events_of(parser, written)).calls
        assert json.loads(call.arguments) == {"text": text}


OPTIONAL: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
CHOICE: dict[str, Any] = {"anyOf": [{"enum": ["a", "1"]}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        (OPTIONAL, "Paris", "Paris"),
        (OPTIONAL, '{"a": 1}', '{"a": 1}'),
        (OPTIONAL, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]}, "5", "5"),
        (CHOICE, "1", "1"),
        (CHOICE, "null", None),
        (CHOICE, "b", ValueError),
        ({"enum": ["a", None]}, "null", None),
        ({"enum": ["a", None]}, "5", ValueError),
        ({"type": ["integer", "string"]}, "5", 5),
        ({"type": ["integer", "string"]}, '"5"', "5"),
        ({"type": "integer"}, "x", ValueError),
    ],
)
def test_grammar_and_parser_agree_on_values_between_tags(
    models: dict[bool, Model], schema: Any, written: str, value: Any
) -> None:
    parameters = {
        "properties": {"x": schema},
        "required": ["x"],
        "$defs": {"name": {"type": "string"}},
    }
    request = conversation(Tool(name="note", parameters=parameters), choice="required")
    model = models[False]
    grammar = grammar_of(request, form("qwen_xml"), model.tokenizer, "over", None)
    assert grammar is not None
    text = f"<function=note>\n<parameter=x>\n{written}\n</parameter>\n</function>"
    text = f"<tool_call>\n{text}\n</tool_call>"
    assert model.accepts(grammar, model.spelled(text)) == (value is not ValueError)
    if value is not ValueError:
        parser = form("qwen_xml").parser(request.offered)
        assert parser is not None
        [call] = whole(events_of(parser, text)).calls
        assert json.loads(call.arguments) == {"x": value}


@pytest.mark.parametrize("name", ["hermes", "qwen_xml", "pythonic"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"x": {"not": {}}}, "required": ["x"]},
        {"type": "object", "properties": {"x": {"$ref": "https://example.com/x"}}},
    ],
)
def test_a_schema_that_cannot_be_followed_is_named(
    models: dict[bool, Model], name: str, parameters: dict[str, Any]
) -> None:
    field = "tools[0].function.parameters"
    request = conversation(Tool(name="x", parameters=parameters, field=field), choice="required")
    with pytest.raises(RequestError) as refused:
        answer_of(models[False], form(name), request, 0)
    assert refused.value.param == field


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen_xml", {"properties": {"x": {"type": "string", "pattern": "a"}}}),
        ("qwen_xml", {"properties": {"a>b": {"type": "string"}}}),
        ("pythonic", {"properties": {"a-b": {"type": "string"}}}),
        ("pythonic", {"anyOf": [{"properties": {}}]}),
        ("qwen_xml", {"properties": {}, "required": ["x"]}),
    ],
)
def test_what_a_format_cannot_write_is_named(
    models: dict[bool, Model], name: str, parameters: dict[str, Any]
) -> None:
    field = "tools[3].function.parameters"
    request = conversation(Tool(name="x", parameters=parameters, field=field), choice="required")
    with pytest.raises(RequestError) as refused:
        grammar_of(request, form(name), models[False].tokenizer, "over", None)
    assert refused.value.param == field


def test_no_grammar_where_none_is_requested(models: dict[bool, Model]) -> None:
    tokenizer = models[False].tokenizer
    json_ = Grammar("json_schema", "{}")
    assert grammar_of(conversation(), form("hermes"), tokenizer, "over", None) is None
    assert grammar_of(conversation(WEATHER), form("hermes"), tokenizer, "over", None) is None
    assert grammar_of(conversation(), form("hermes"), tokenizer, "over", json_) is json_

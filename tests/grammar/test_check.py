"""What is refused, and that the error names what is at fault."""

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer

from galley.errors import CheckpointError, RequestError
from galley.grammar.check import MAX_SOURCE, check
from galley.grammar.json_schema import MAX_SCHEMAS
from galley.grammar.vocabulary import load_vocabulary
from galley.types import Grammar, SamplingParams
from tests.checkpoints import make_tokenizer
from tests.grammar.schemas import SCHEMAS

DEEP = 64 * '{"type":"array","items":' + "{}" + 64 * "}"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    folder = tmp_path_factory.mktemp("vocabulary")
    make_tokenizer(folder)
    return load_vocabulary(folder, eos_token_ids=[0])


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {"type": "string"}}, "'not'"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"dependentRequired": {"a": ["b"]}}, "'dependentRequired'"),
        ({"if": {}, "then": {}}, "'if'"),
        ({"prefixItems": [{}], "additionalItems": False}, "'additionalItems'"),
        ({"type": "array", "contains": {"type": "null"}}, "'contains'"),
        ({"type": "string", "maxlength": 3}, "'maxlength'"),
        ({"x-guidance": {"lenient": True}}, "'x-guidance'"),
        (
            {"properties": {"a": {"anyOf": [{"nullable": True}]}}},
            "'nullable' .*/properties/a/anyOf/0",
        ),
        ({"$defs": {"unused": {"frob": 1}}}, "'frob' .*defs/unused"),
        ({"type": "string", "format": "klingon"}, "format: klingon"),
        ({"type": "string", "pattern": "(?=a)b"}, "'pattern'.*look-ahead"),
        ({"type": "string", "pattern": "(a"}, "'pattern'.*unclosed group"),
        ({"type": "object", "patternProperties": {"[": {}}}, "'patternProperties'.*unclosed"),
        ({"$ref": "https://example.com/schema"}, r"'\$ref'.*nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, r"'\$ref'.*nothing is fetched"),
        ({"$ref": "#/$defs/absent"}, r"'\$ref'"),
        ({"$ref": "#name"}, r"'\$ref'"),
        ({"properties": {"a": {"$id": "https://example.com/"}}}, r"'\$id'"),
        ({"$ref": "#"}, "no text satisfies it"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "elephant"}, "elephant"),
        ({"enum": []}, "'enum'"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ({"properties": []}, "'properties'"),
        ({"anyOf": {}}, "'anyOf'"),
        ({"items": [{}]}, "'prefixItems'"),
        ({"minLength": -1}, "minLength"),
        ({"type": "number", "multipleOf": 0}, "multiple"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "oneOf"),
        ({"anyOf": [{}] * (MAX_SCHEMAS + 1)}, "subschemas"),
    ],
)
def test_a_schema_that_cannot_be_honoured_names_the_keyword(
    schema: dict[str, Any], named: str, vocabulary: LLTokenizer
) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        check(Grammar("json_schema", json.dumps(schema)), vocabulary, "the.field")
    assert caught.value.param == "the.field"
    assert str(caught.value).startswith("the.field")


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", "[1]"), "a JSON object"),
        (Grammar("json_schema", "[" * 50_000), "not JSON"),
        (Grammar("json_schema", DEEP + " " * MAX_SOURCE), f"at most {MAX_SOURCE}"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("regex", "(" * 60_000 + "a" + ")" * 60_000), "250"),
        (Grammar("regex", r"\bword\b"), "lookaround"),
        (Grammar("regex", "[a&&b]"), "no text satisfies it"),
        (Grammar("regex", ".*" * 1000), "lexer"),
        (Grammar("grammar", "garbage"), "Expected token"),
        (Grammar("grammar", "start: a\na: a"), "no text satisfies it"),
        (Grammar("grammar", 'start: "a" | missing'), "missing"),
        (Grammar("grammar", 'start: %json {"frob": 1}'), "%json"),
        (Grammar("grammar", "root ::= ("), "GBNF"),
        (Grammar("grammar", "root ::= " + "(" * 60_000), "GBNF"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_grammar_that_cannot_be_compiled_says_why(
    grammar: Grammar, named: str, vocabulary: LLTokenizer
) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        check(grammar, vocabulary, "the.field")
    assert caught.value.param == "the.field"
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_every_schema_of_the_list_compiles(vocabulary: LLTokenizer) -> None:
    for schema in SCHEMAS:
        assert check(Grammar("json_schema", json.dumps(schema)), vocabulary, "x").kind == "compiled"


@pytest.mark.parametrize(
    "change", [{"min_tokens": 1}, {"ignore_eos": True}, {"num_beams": 2, "temperature": 0.0}]
)
def test_what_does_not_go_with_a_grammar_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(grammar=Grammar("regex", "a"), **change)
    assert caught.value.param == next(iter(change))


def test_a_vocabulary_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        load_vocabulary(tmp_path)


def test_tokens_with_a_role_are_not_text(tmp_path: Path) -> None:
    """The tokenizer's own file calls the token ordinary text, its configuration calls it the text's end."""
    make_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["special"] = False
    file.write_text(json.dumps(content), encoding="utf-8")
    vocabulary = load_vocabulary(tmp_path)
    assert vocabulary.is_special_token(0)

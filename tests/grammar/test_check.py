"""Refused schemas, with an error that names the cause."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from llguidance import LLMatcher, LLTokenizer

from galley.errors import CheckpointError, RequestError
from galley.grammar.check import MAX_SOURCE, check
from galley.grammar.json_schema import MAX_SCHEMAS
from galley.grammar.vocabulary import load_vocabulary
from galley.types import Grammar, SamplingParams
from tests.checkpoints import make_tokenizer
from tests.grammar.accepting import accepts, follows
from tests.grammar.schemas import SCHEMAS, record

DEEP = 64 * '{"type":"array","items":' + "{}" + 64 * "}"


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
        ({"$defs": {"unused": {"type": "string", "max_length": 1}}}, "'maxLength'.*defs/unused"),
        ({"Enum": ["a"]}, "did you mean 'enum'"),
        ({"type": "array", "item": {}}, "did you mean 'items'"),
        ({"properties": {"a": {"requires": "b"}}}, "'requires'"),
        ({"unique": True}, "'unique'"),
        ({"$ref": "#/frob/x", "frob": {"x": {"not": {}}}}, "cannot be compiled"),
        ({"type": "string", "format": "klingon"}, "format: klingon"),
        ({"type": "string", "pattern": "(?=a)b"}, "'pattern'.*look-ahead"),
        ({"type": "string", "pattern": "(a"}, "'pattern'.*unclosed group"),
        ({"type": "object", "patternProperties": {"[": {}}}, "'patternProperties'.*unclosed"),
        ({"$ref": "https://example.com/schema"}, r"'\$ref'.*not fetched"),
        ({"$ref": "file:///etc/passwd"}, r"'\$ref'.*not fetched"),
        ({"$ref": "#/$defs/absent"}, r"'\$ref'"),
        ({"$ref": "#name"}, r"'\$ref'"),
        ({"properties": {"a": {"$id": "https://example.com/", "$ref": "#"}}}, r"'\$id'"),
        ({"properties": {"a": {"id": {"type": "string"}}}}, "'id' must be a string"),
        ({"$ref": "#"}, "no text can match it"),
        ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
        ({"type": "elephant"}, "elephant"),
        ({"enum": []}, "'enum'"),
        ({"properties": {"a": 5}}, "/properties/a"),
        ({"properties": []}, "'properties'"),
        ({"anyOf": {}}, "'anyOf'"),
        ({"items": [{}], "prefixItems": [{}]}, "'prefixItems'"),
        ({"minLength": -1}, "minLength"),
        (
            {"pattern": "a", "maxLength": 8193},
            "'maxLength' 8193 is not supported together with 'pattern'",
        ),
        ({"pattern": "a", "minLength": 10**30}, "'minLength' 1000"),
        ({"type": "number", "multipleOf": 0}, "multiple"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "oneOf"),
        ({"anyOf": [{}] * (MAX_SCHEMAS + 1)}, "subschemas"),
    ],
)
def test_a_schema_that_cannot_be_honored_names_the_keyword(
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
        (Grammar("json_schema", DEEP + " " * MAX_SOURCE), f"more than the allowed {MAX_SOURCE}"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("regex", "(" * 60_000 + "a" + ")" * 60_000), "250"),
        (Grammar("regex", r"\bword\b"), "lookaround"),
        (Grammar("regex", "[a&&b]"), "no text can match it"),
        (Grammar("regex", ".*" * 5000), "lexer"),
        (Grammar("grammar", "garbage"), "Expected token"),
        (Grammar("grammar", "start: a\na: a"), "no text can match it"),
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


@pytest.mark.parametrize(
    "fields",
    [
        {"self": {"vendor": "com.example", "version": "1-0-0"}},
        {"name": "ticket", "readonly": True, "links": [{"rel": "self"}], "notes": "x"},
        {"$anchor": "a", "contentMediaType": "text/plain", "contentSchema": {"not": {}}},
        {"enumNames": ["A"], "propertyOrder": 3, "options": {"hidden": True}, "x-ms-y": 1},
        {"markdownDescription": "x", "tsType": "string", "errorMessage": {"type": "no"}},
        {"uniqueItems": False, "nullable": False},
        {"//": "a comment", "_comment": "another", "": "", "\U0001f9d9" * 100: 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_says_nothing_about_values_is_taken_and_changes_nothing(
    fields: dict[str, Any], vocabulary: LLTokenizer
) -> None:
    schema: dict[str, Any] = {"properties": {"n": {"enum": ["a", 1], **fields}}, **fields}
    texts = ['{"n": "a"}', '{"n": 1}', '{"n": 2}', '{"n": null}', "7"]
    assert accepts(schema, vocabulary, *texts) == [True, True, False, False, True]
    plain = record(n={"type": "string", "maxLength": 2, **fields}) | fields
    assert accepts(plain, vocabulary, '{"n": "ab"}', '{"n": "abc"}', "7") == [True, False, False]


@pytest.mark.parametrize(
    ("pattern", "repeated", "end"),
    [
        ("[a-z]", "B", "b"),
        ("^(.|\\n)*x", "é", "x"),
        ("[a-z][0-9][A-Z]+!", "b", "a1B!"),
        ("^[^a]*a[^b]*b", "c", "ab"),
        ("(foo|bar)+$", "f", "foo"),
    ],
)
@pytest.mark.parametrize("most", [4, 100, 8192])
def test_a_pattern_allows_a_text_up_to_its_greatest_length(
    pattern: str, repeated: str, end: str, most: int, vocabulary: LLTokenizer
) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": most}
    longest = (repeated * most)[: most - len(end)] + end if most > len(end) else end
    texts = [json.dumps(text, ensure_ascii=False) for text in (longest, repeated + longest)]
    assert accepts(schema, vocabulary, *texts) == [len(longest) <= most, False]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *(
            ("date", f"{year}-02-{day}")
            for year in (1900, 2000, 2023, 2024, 2100)
            for day in (28, 29)
        ),
        *(("date", f"2023-{month:02}-{day}") for month in range(1, 14) for day in (30, 31)),
        *(("date-time", f"{day}T12:30:00Z") for day in ("2023-02-29", "2024-02-29", "2023-04-31")),
        *(
            ("date-time", f"1998-{day}:60Z")
            for day in ("12-31T23:59", "12-31T22:59", "12-31T23:60")
        ),
        ("date-time", "1998-12-31T15:59:60.123-08:00"),
        *(
            ("time", f"{at}:60{zone}")
            for at in ("23:59", "22:59", "15:59")
            for zone in ("Z", "-08:00")
        ),
        *(
            ("time", text)
            for text in ("05:29:60+05:30", "23:59:60+05:30", "24:00:00Z", "00:00:00z")
        ),
        *(("email", text) for text in ('"a b"@c.de', '"a@b"@c.de', '"a\\"b"@c.de', '"a"b"@c.de')),
        *(("email", "a" * count + "@b.de") for count in (1, 64, 65)),
        *(("email", text) for text in (".a@b.de", "a..b@c.de", "a@[1.2.3.4]", "a@[1.2.3.256]")),
        *(("hostname", ".".join(["a" * 61] * 4) + end) for end in (".bcde", ".bcdefg")),
        *(("ipv6", text) for text in ("::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::")),
        *(("ipv6", text) for text in ("::ffff:192.168.0.1", "1:2:3:4:5:6:1.2.3.4", "::1.2.3.256")),
        *(("ipv6", text) for text in ("1:2:3:4:5:6:7:1.2.3.4", "1::2::3", "12345::", "1:2:3")),
    ],
)
def test_texts_of_a_format_are_those_that_a_validator_takes(
    form: str, text: str, vocabulary: LLTokenizer
) -> None:
    schema = {"type": "string", "format": form}
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    assert accepts(schema, vocabulary, json.dumps(text)) == [validator.is_valid(text)]


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (
            {"items": [{"type": "null"}, {"type": "boolean"}], "additionalItems": False},
            {"[null, true]": True, "[null]": True, "[true]": False, "[null, true, 1]": False},
        ),
        (
            {"items": [{"type": "null"}], "additionalItems": {"type": "integer"}},
            {"[null, 1]": True, "[null, true]": False},
        ),
        (
            {"items": {"type": "null"}, "additionalItems": False},
            {"[null, null]": True, "[1]": False},
        ),
        ({"type": "array", "maxItems": 1.0}, {"[1]": True, "[1, 2]": False}),
        ({"type": "string", "minLength": 2.0, "maxLength": 2.0}, {'"ab"': True, '"abc"': False}),
        (
            {"type": "object", "properties": {"a": {"id": "http://x/a#", "type": "null"}}},
            {'{"a": null}': True, '{"a": 1}': False},
        ),
        (
            {"type": "string", "_format": "date", "_maxLength": 1, "@type": "xsd:string"},
            {'"long"': True, "1": False},
        ),
    ],
)
def test_what_earlier_drafts_wrote_otherwise(
    schema: dict[str, Any], texts: dict[str, bool], vocabulary: LLTokenizer
) -> None:
    assert accepts(schema, vocabulary, *texts) == list(texts.values())


# Valid and invalid texts of each format; most come from the JSON Schema Test Suite.
FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "hostname": (
        ["www.example.com", "a", "1host", "a--b.example", "a-b", "x" * 63, "ab-c", "abc-d"],
        ["-a", "a-", "a_b", "xn--X", "XN--aa---o47jg78q", "aa--b", "x" * 64, "a..b", ""],
    ),
    "email": (
        ["joe@[127.0.0.1]", "joe@[IPv6:::1]", '"joe bloggs"@example.com', "te~st@example.com"],
        ["2962", "joe@[IPv6:zz]", ".test@example.com", "joe@[127.0.0.300]"],
    ),
    "json-pointer": (
        ["", "/foo/0", "/a~1b", "/m~0n", "/ ", "//"],
        ["/foo/bar~", "#/a", "a", "/~2"],
    ),
    "relative-json-pointer": (
        ["1", "0/foo/bar", "2/0/baz/1/zip", "0#", "0-1"],
        ["/foo", "-1/foo", "0##", "01/a", ""],
    ),
    "uri-reference": (
        [
            "http://foo.bar/?baz=qux#quux",
            "//foo.bar/?q=%20",
            "/abc",
            "abc",
            "#frag",
            "",
            "?q",
            "a/b:c",
        ],
        ["\\\\WINDOWS\\file", "#frag\\ment", "a b", "%zz", "1a:b", "http://[::1"],
    ),
    "iri": (
        ["http://ƒøø.ßår/?∂éœ=πîx#πîüx", "http://[2001:0db8::7334]", "urn:a", "mailto:a@b"],
        ["http://2001:0db8:85a3:0000:0000:8a2e:0370:7334", "/abc", "âππ", "http:// a", "a\ue000:"],
    ),
    "iri-reference": (["//ƒøø.ßår/", "/âππ", "âππ", "#ƒrägmênt"], ["#ƒräg\\mênt", "a b"]),
    "uri-template": (
        ["http://e.com/{term:1}/{term}", "{?a,b*}", "{+path}/here", "", "{%41.b}"],
        ["http://e.com/{term:1}/{term", "{}", "a b", "{a:0}", "a}"],
    ),
    "uuid4": (
        ["98d80576-482e-427f-8434-7f86890ab222"],
        ["99c17cbb-656f-164a-940f-1a4568f03487", "98d80576-482e-427f-7434-7f86890ab222"],
    ),
    "password": (["", "anything"], []),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_allow_their_texts_alone(name: str, vocabulary: LLTokenizer) -> None:
    valid, invalid = FORMATS[name]
    texts = [json.dumps(text, ensure_ascii=False) for text in valid + invalid]
    allowed = accepts({"type": "string", "format": name}, vocabulary, *texts)
    wrong = [
        text
        for text, is_allowed, n in zip(texts, allowed, range(len(texts)), strict=True)
        if is_allowed != (n < len(valid))
    ]
    assert wrong == []


def test_every_schema_of_the_list_compiles(vocabulary: LLTokenizer) -> None:
    for schema in SCHEMAS:
        assert check(Grammar("json_schema", json.dumps(schema)), vocabulary, "x").kind == "compiled"


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("root ::= ( [x]* )*", {"": True, "xx": True, "y": False}),
        ("root ::= ([x]? | b)+\nb ::= ([y]+)?", {"": True, "xyyx": True, "z": False}),
        ('root ::= (("a"){2,3})*', {"": True, "aa": True, "aaaaa": True, "a": False}),
        ('root ::= "a" <|end|> "b"', {"a": False, "ab": False}),
        ('start: "a ::= b"', {"a ::= b": True}),
        ('root ::= "<[10]>" [<] # not <[5]>', {"<[10]><": True, "a": False}),
    ],
)
def test_gbnf_as_llama_cpp_reads_it(
    source: str, texts: dict[str, bool], vocabulary: LLTokenizer
) -> None:
    compiled = check(Grammar("grammar", source), vocabulary, "x").source
    assert {text: follows(compiled, vocabulary, text) for text in texts} == texts


def test_tokens_of_gbnf(vocabulary: LLTokenizer) -> None:
    def allowed(source: str, *tokens: int) -> bool:
        compiled = check(Grammar("grammar", source), vocabulary, "x").source
        matcher = LLMatcher(vocabulary, compiled, log_level=0)
        return all(map(matcher.consume_token, tokens)) and matcher.is_accepting()

    for source, other in (('root ::= <[10]> "a"?', 11), ("root ::= (<[10]>)+", 11)):
        assert allowed(source, 10)
        assert not allowed(source, other)
    assert allowed("root ::= !<[10]>", 11)
    assert not allowed("root ::= !<[10]>", 10)
    assert allowed("root ::= rule rule\nrule ::= <[10]>", 10, 10)


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
    """The tokenizer's file calls the token ordinary text, its configuration calls it the end of text."""
    make_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    for token in content["added_tokens"]:
        token["special"] = False
    file.write_text(json.dumps(content), encoding="utf-8")
    vocabulary = load_vocabulary(tmp_path)
    assert vocabulary.is_special_token(0)

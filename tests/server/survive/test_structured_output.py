"""Grammars that cannot be honored: a prompt error, and other requests are unaffected."""

from typing import Any

import httpx
import pytest

from tests.server.raw import CHAT
from tests.server.refusals import error_of
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("default_server")

CYCLE = "start: r0\n" + "".join(
    f'r{i}: r{(i + 1) % 5000} | "a" r{(i + 1) % 5000}\n' for i in range(5000)
)
"""5,000 rules, each of which refers to the next: llguidance overflows its process's stack."""


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    """Return the answer; the client waits at most a minute."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8}
    return http.post(CHAT, json=body | fields)


def schema(value: Any) -> dict[str, Any]:
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}
    }


@pytest.mark.parametrize("field", ["chat_template", "chat_template_kwargs"])
def test_a_template_in_the_request_is_refused(http: httpx.Client, field: str) -> None:
    value: Any = "{{ 1 }}" if field == "chat_template" else {"chat_template": "{{ 1 }}"}
    assert error_of(ask(http, **{field: value}))["param"].startswith(field)


@pytest.mark.parametrize(
    "expression",
    [
        "(a",
        "(" * 60_000 + "a" + ")" * 60_000,
        "(" * 60_000,
        ".*" * 2000,
        "[z-a]",
        "(?=a)b",
        "a{2,1}",
    ],
    ids=lambda value: value[:16],
)
def test_a_regular_expression_that_cannot_be_compiled_is_refused(
    http: httpx.Client, expression: str
) -> None:
    assert error_of(ask(http, guided_regex=expression))["param"] == "guided_regex"


@pytest.mark.parametrize("expression", ["(a*)*", "a{1,1000000000}", "((a{1,999}){1,999}){1,999}"])
def test_a_regular_expression_that_looks_costly_is_served(
    http: httpx.Client, expression: str
) -> None:
    answer = ask(http, guided_regex=expression)
    assert answer.status_code == 200, answer.text
    assert not answer.json()["choices"][0]["message"]["content"].strip("a")


@pytest.mark.parametrize(
    "grammar",
    [{"guided_regex": "(a|aa)+" * 2000}, {"guided_grammar": 'root ::= ("a"{1000}){1000}'}],
    ids=["regex", "gbnf"],
)
def test_a_grammar_that_grows_too_large_is_the_requests_fault(
    http: httpx.Client, grammar: dict[str, str]
) -> None:
    """It compiles, and reaches a limit while the text is generated: not an error of the server."""
    error = error_of(ask(http, **grammar))
    assert error["type"] == "invalid_request_error"
    assert "the grammar cannot be applied any further" in error["message"]


@pytest.mark.parametrize("field", ["guided_grammar", "structured_outputs"])
def test_a_grammar_that_ends_its_process_is_one_requests_error(
    server: Server, http: httpx.Client, field: str
) -> None:
    engines = [process.pid for process in server.children()]
    given: Any = CYCLE if field == "guided_grammar" else {"grammar": CYCLE}
    error = error_of(ask(http, **{field: given}))
    assert error["param"].startswith(field)
    assert "exceeds the stack" in error["message"]
    assert [process.pid for process in server.children()] == engines
    assert ask(http, guided_regex="ab").status_code == 200


def test_a_grammar_that_is_too_large_is_refused(http: httpx.Client) -> None:
    rules = "start: r0\n" + "".join(f'r{i}: "{"a" * 60}"\n' for i in range(5000))
    assert "more than the allowed" in error_of(ask(http, guided_grammar=rules))["message"]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"type": "elephant"}, "elephant"),
        ({"$ref": "http://169.254.169.254/latest"}, "$ref"),
        ({"$ref": "file:///etc/passwd"}, "$ref"),
        ({"$ref": "#"}, "no text"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "no text"),
        ({"not": {}}, "'not'"),
        ({"type": "string", "minLenght": 1}, "'minLenght'"),
        ({"type": "string", "pattern": "("}, "'pattern'"),
        ({"anyOf": [{}] * 20_000}, "subschemas"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_schema_that_cannot_be_honored_is_refused(
    http: httpx.Client, value: dict[str, Any], named: str
) -> None:
    error = error_of(ask(http, **schema(value)))
    assert error["param"] == "response_format.json_schema.schema"
    assert named in error["message"]


def test_a_schema_that_nests_beyond_the_limit_is_refused(http: httpx.Client) -> None:
    text = '{"type":"array","items":' * 5000 + "{}" + "}" * 5000
    assert error_of(ask(http, guided_json=text))["param"] == "guided_json"


def test_a_recursive_schema_is_followed(http: httpx.Client) -> None:
    node = {
        "type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["next"],
        "additionalProperties": False,
    }
    answer = ask(http, **schema(node))
    assert answer.json()["choices"][0]["message"]["content"].startswith("{")


def test_a_grammar_that_fails_late_ends_in_an_error(http: httpx.Client) -> None:
    answer = ask(
        http,
        guided_regex="([ab]{0,500}a[ab]{0,500}){200}",
        max_tokens=2000,
        temperature=2,
        seed=1,
    )
    error = error_of(answer)
    assert "grammar cannot be applied" in error["message"]


def test_names_with_control_characters_are_refused(http: httpx.Client) -> None:
    fields = {"type": "json_schema", "json_schema": {"name": "a\x00\n", "schema": {}}}
    error = error_of(ask(http, response_format=fields))
    assert error["param"] == "response_format.json_schema.name"

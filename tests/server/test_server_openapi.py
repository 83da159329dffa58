"""The OpenAPI document against the server: what it promises is what comes."""

import re
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from galley.config import Settings
from galley.gateway.registry import Registry
from galley.server.app import create_app
from galley.server.auth import KeyRing
from galley.server.openapi import document
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_openapi")

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PAGE: dict[str, Any] = document(create_app(Registry(Settings()), keys=KeyRing([])).routes)
SCHEMA = schemathesis.openapi.from_dict(PAGE)
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
SPOKEN = [operation for operation in OPERATIONS if "/audio/" in operation.path]
"""What a text model refuses; test_server_audio.py asks a speech model."""


def test_the_page_names_every_route(server: Server) -> None:
    page = httpx.get(f"{server.url}/openapi.json").json()
    assert page == PAGE
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        assert "$ref" in str(page["paths"][path]["post"]["requestBody"])
    assert "422" not in str(page["paths"])


def test_the_page_for_people_needs_nothing_from_outside(server: Server) -> None:
    answer = httpx.get(f"{server.url}/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|<link|<img|@import|//", answer.text)
    for method, path in ((m, p) for p, methods in PAGE["paths"].items() for m in methods):
        assert f"<code>{method.upper()} {path}</code>" in answer.text
    links = re.findall(r'href="#(\w+)"', answer.text)
    assert "ChatRequest" in links
    assert all(f'id="{name}"' in answer.text for name in links)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_answers_are_as_documented(server: Server, operation: Any) -> None:
    check_answers(server, operation)


def check_answers(server: Server, operation: Any) -> None:
    """Random requests, good and bad, get answers that the page knows."""

    @settings(
        max_examples=25,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        case=st.one_of(
            operation.as_strategy(),
            operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE),
        )
    )
    def check(case: Any) -> None:
        _keep_short(case)
        case.call_and_validate(base_url=server.url, checks=CHECKS)

    check()


GOOD: dict[str, Any] = {
    "POST /v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "n": 2,
    },
    "POST /v1/completions": {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "echo": True},
    "POST /tokenize": {"prompt": "hi"},
    "POST /detokenize": {"tokens": [300, 301]},
}


@pytest.mark.parametrize(
    "operation",
    [operation for operation in OPERATIONS if operation not in SPOKEN],
    ids=lambda operation: operation.label,
)
def test_good_answers_are_as_documented(server: Server, operation: Any) -> None:
    body = {"json": GOOD[operation.label] | {"model": "tiny"}} if operation.label in GOOD else {}
    path = operation.path.replace("{model}", "tiny")
    answer = httpx.request(operation.method, server.url + path, **body)
    assert answer.status_code == 200
    operation.validate_response(answer)


def _keep_short(case: Any) -> None:
    """A random request for this model that would be served should not take long."""
    if isinstance(case.body, dict) and "completions" in case.operation.path:
        if case.body.get("model"):
            case.body["model"] = "tiny"
        if case.body.get("max_tokens") is None:
            case.body["max_tokens"] = 3

"""The server's answers match its OpenAPI document."""

import json
import re
from typing import Any

import httpx
import msgspec
import pytest

from galley.gateway.registry import Registry
from galley.gateway.tenants import Tenants
from galley.protocols.http.openapi import Operation
from galley.server.app import create_app
from galley.server.auth import ADMIN_PATHS
from galley.settings.config import Settings
from tests.server.conftest import ADMIN_KEY
from tests.server.openapi import (
    ADAPTERS,
    OF_TENSORS,
    OF_VECTORS,
    OPERATIONS,
    PAGE,
    SPOKEN,
    check_answers,
)
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("default_server")


def test_the_page_names_every_route(server: Server) -> None:
    page = httpx.get(f"{server.url}/openapi.json").json()
    assert page == PAGE
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
        assert "$ref" in str(page["paths"][path]["post"]["requestBody"])
    assert "422" not in str(page["paths"])


def test_patterns_hold_for_whole_texts_here_and_in_javascript() -> None:
    routes = create_app(Registry(Settings()), tenants=Tenants({})).routes
    kinds = [kind for route in routes if isinstance(route, Operation) for kind in route.types]
    _, schemas = msgspec.json.schema_components(list(dict.fromkeys(kinds)))
    ours = re.findall(r'"pattern": "(.*?)"[,}]', json.dumps(schemas))
    patterns = re.findall(r'"pattern": "(.*?)"[,}]', json.dumps(PAGE))
    assert ours
    assert all(pattern.startswith("^") and pattern.endswith(r"\\Z") for pattern in ours)
    assert all(pattern.startswith("^") and pattern.endswith("$") for pattern in patterns)


def test_the_page_for_people_needs_nothing_from_outside(server: Server) -> None:
    answer = httpx.get(f"{server.url}/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert not re.search(r"<script|<link|<img|@import|//", answer.text)
    for method, path in ((m, p) for p, methods in PAGE["paths"].items() for m in methods):
        assert f"<code>{method.upper()} {path}</code>" in answer.text
    links = re.findall(r'href="#(\w+)"', answer.text)
    assert "ChatRequest" in links
    assert all(f'id="{name}"' in answer.text for name in links)


def test_errors_are_documented_one_by_one() -> None:
    for path, methods in PAGE["paths"].items():
        for method, operation in methods.items():
            statuses = operation["responses"].keys()
            assert "default" not in statuses
            assert {"400", "401", "403", "408", "429", "431", "500", "503"} <= statuses
            if method == "post" and "requestBody" in operation:
                assert {"404", "413", "415", "504"} <= statuses, path
            if "/audio/" in path:
                assert "501" in statuses
            for status in ("429", "503"):
                answer = operation["responses"][status]
                is_probe = path.endswith(("/health", "/ready", "/live"))
                assert is_probe or "Retry-After" in answer["headers"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_answers_are_as_documented(server: Server, operation: Any) -> None:
    check_answers(server, operation)


GOOD: dict[str, Any] = {
    "POST /v1/chat/completions": {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "logprobs": True,
        "top_logprobs": 2,
        "n": 2,
    },
    "POST /v1/completions": {"prompt": ["a", "b"], "max_tokens": 2, "logprobs": 1, "echo": True},
    "POST /v1/responses": {"input": "hi", "max_output_tokens": 2},
    "POST /v1/responses/input_tokens": {"input": "hi"},
    "POST /v1/responses/compact": {"input": "hi"},
    "POST /v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "POST /v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "POST /api/chat": {"messages": [{"role": "user", "content": "hi"}], "stream": False},
    "POST /api/generate": {"prompt": "hi", "stream": False, "options": {"num_predict": 2}},
    "POST /api/show": {},
    "POST /api/pull": {},
    "POST /api/create": {"model": "made", "from": "tiny", "system": "Be brief."},
    "POST /api/copy": {"source": "tiny", "destination": "copied"},
    "POST /tokenize": {"prompt": "hi"},
    "POST /detokenize": {"tokens": [300, 301]},
    "POST /admin/reload": {},
    **{
        f"POST /v2/models/{{model}}{version}/{route}": {"text_input": "hi", "max_tokens": 2}
        for version in ("", "/versions/{version}")
        for route in ("generate", "generate_stream")
    },
}


ALWAYS_REFUSED = (
    "DELETE /api/delete",
    "POST /admin/drain",
    "POST /v1/responses/{response_id}/cancel",
)
"""Operations refused in this server's state: its model has one replica, and its responses are complete."""

UNLOAD = "POST /v2/repository/models/{model}/unload"
"""It would leave the server without a model; test_model_repository.py has others."""


@pytest.mark.parametrize(
    "operation",
    [
        o
        for o in OPERATIONS
        if o not in (*SPOKEN, *ADAPTERS, *OF_VECTORS, *OF_TENSORS)
        and o.label not in (*ALWAYS_REFUSED, UNLOAD)
    ],
    ids=lambda operation: operation.label,
)
def test_good_answers_are_as_documented(server: Server, operation: Any) -> None:
    given = GOOD.get(operation.label)
    if given is not None and not given.keys() & {"source", "text_input"}:
        given = {"model": "tiny"} | given
    body = {} if given is None else {"json": given}
    path = operation.path.replace("{model}", "tiny").replace("{version}", "1")
    if "{response_id}" in path:
        made = httpx.post(f"{server.url}/v1/responses", json=GOOD["POST /v1/responses"]).json()
        path = path.replace("{response_id}", made["id"])
    for_admins = path.startswith(("/admin/", "/v2/repository/models/")) or path in ADMIN_PATHS
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"} if for_admins else {}
    answer = httpx.request(operation.method, server.url + path, headers=admin, **body)
    assert answer.status_code == 200
    operation.validate_response(answer)

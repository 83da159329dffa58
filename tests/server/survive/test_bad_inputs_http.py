"""Malformed bodies and wrong paths, accidental or deliberate, refused before any field is read."""

import json
from dataclasses import dataclass
from typing import Any

import httpx
import psutil
import pytest

from tests.server.raw import CHAT, Raw
from tests.server.refusals import error_of
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("default_server")

PLAIN = "/v1/completions"
JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Case:
    """A request with the raw bytes of its body."""

    name: str
    body: bytes
    says: str


NO_REQUESTS = [
    Case("list", b"[]", 'must be a JSON object, like {"model": "NAME"}; got an array'),
    Case("number", b"42", "got a number"),
    Case("null", b"null", "got null"),
    Case("string", b'""', "got a string"),
    Case("empty", b"", "not JSON"),
    Case("broken", b'{"model": "tiny", ', "not JSON"),
    Case("trailing", b"{} {}", "not JSON"),
    Case("not-utf8", b'{"model": "\xff"}', "UTF-8"),
]
DEEP = [
    Case("deep", b"[" * 3000 + b"]" * 3000, "deep"),
    Case("deep-object", b'{"a":' * 3000 + b"1" + b"}" * 3000, "deep"),
    Case("65-levels", b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "deep"),
]
NO_NUMBERS = [
    Case("nan", b'{"temperature": NaN}', "NaN"),
    Case("infinity", b'{"temperature": -Infinity}', "Infinity"),
    Case("digits", b'{"seed": ' + b"9" * 5000 + b"}", "digits"),
]
TWICE = [
    Case("duplicate", b'{"model": "tiny", "model": "other"}', "twice"),
    Case("duplicate-surrogate", rb'{"\ud800": 1, "\ud800": 2}', "twice"),
    Case("duplicate-inside", b'{"messages": [{"role": "user", "role": "user"}]}', "twice"),
]

each_path = pytest.mark.parametrize("path", [CHAT, "/tokenize"])


def each(cases: list[Case]) -> pytest.MarkDecorator:
    """Return a test for each of them."""
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def check_refused(http: httpx.Client, path: str, case: Case) -> None:
    """Check that the answer is 400 and that the error says why."""
    error = error_of(http.post(path, content=case.body, headers=JSON))
    assert error["type"] == "invalid_request_error"
    assert case.says in error["message"]


@each_path
@each(NO_REQUESTS)
def test_bodies_that_are_not_requests_are_400(http: httpx.Client, path: str, case: Case) -> None:
    """The error says what was received instead of an object."""
    check_refused(http, path, case)


@pytest.mark.parametrize("kind", [b"[]", b"42", b"null"])
def test_the_error_names_what_came(http: httpx.Client, kind: bytes) -> None:
    message = error_of(http.post(CHAT, content=kind, headers=JSON))["message"]
    name = {b"[]": "an array", b"42": "a number", b"null": "null"}[kind]
    assert message.endswith(f"got {name}")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=b"},
        {"Content-Type": "application/json; charset=utf-16"},
        {"Content-Type": "application/x-www-form-urlencoded; charset=latin-1"},
        {"Content-Type": "application/x-www-form-urlencoded", "Origin": "http://127.0.0.1"},
        {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-site"},
        {"Content-Type": "", "Origin": "http://localhost:3000"},
    ],
)
def test_a_body_must_be_declared_as_json(http: httpx.Client, headers: dict[str, str]) -> None:
    answer = http.post(CHAT, content=b"{}", headers=headers)
    assert "application/json" in error_of(answer, 415)["message"]


@pytest.mark.parametrize("charset", ["utf8", "UTF-8", '"utf8"', "us-ascii", "Utf8; x=y"])
def test_utf_8_may_be_written_as_many_write_it(http: httpx.Client, charset: str) -> None:
    headers = {"Content-Type": f"application/json; charset={charset}"}
    answer = http.post("/tokenize", content='{"prompt": "ä"}'.encode(), headers=headers)
    assert answer.status_code == 200


@each_path
@each(DEEP)
def test_deeply_nested_bodies_are_refused(http: httpx.Client, path: str, case: Case) -> None:
    check_refused(http, path, case)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_cap_is_413(http: httpx.Client, chunked: bool) -> None:
    body = b'{"model": "' + b"x" * (9 * 1024 * 1024) + b'"}'
    content = (body[i : i + 65536] for i in range(0, len(body), 65536)) if chunked else body
    error = error_of(http.post(CHAT, content=content, headers=JSON), 413)
    assert error["code"] == "request_too_large"


def test_a_client_that_sends_everything_first_gets_the_error(server: Server) -> None:
    size = 9 * 1024 * 1024
    with Raw(server) as client:
        client.post(f"Content-Length: {size}").send(body=b"x" * size)
        assert error_of(client.answer(), 413)["code"] == "request_too_large"


def test_a_body_without_end_is_cut_off(server: Server) -> None:
    chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with Raw(server) as client:
        client.post("Transfer-Encoding: chunked")
        assert client.send_until_refused(chunk, 1000) < 1000


def test_three_megabytes_in_chunks_of_six_bytes_are_refused(server: Server) -> None:
    process = psutil.Process(server.process.pid)
    before = process.memory_info().rss
    text = b'{"model": "tiny", "messages": [], "user": "' + b"x" * 3_000_000 + b'"}'
    text = text[: len(text) // 6 * 6]
    chunks = b"".join(b"6\r\n%b\r\n" % text[i : i + 6] for i in range(0, len(text), 6))
    with Raw(server) as client:
        client.post("Transfer-Encoding: chunked", "Connection: close")
        client.send(body=chunks + b"0\r\n\r\n")
        error_of(client.answer())
    assert process.memory_info().rss - before < 100 * 2**20


def test_small_chunks_are_served(http: httpx.Client) -> None:
    body = json.dumps({"prompt": "x" * 30_000}).encode()
    chunks = (body[i : i + 6] for i in range(0, len(body), 6))
    answer = http.post("/tokenize", content=chunks, headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]"}, 200),
    ],
    ids=str,
)
def test_foreign_hosts_are_refused(
    http: httpx.Client, headers: dict[str, str], status: int
) -> None:
    for path in ("/v1/models", "/health", "/metrics", "/docs"):
        answer = http.get(path, headers=headers)
        assert answer.status_code == status
        if status == 403:
            assert error_of(answer, 403)["code"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/images/generations", 404, "unknown_url"),
        ("GET", "/nothing", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/health", 405, "method_not_allowed"),
    ],
)
def test_unknown_paths_and_methods_are_404_and_405(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    assert error_of(http.request(method, path), status)["code"] == code


@pytest.mark.parametrize("path", [CHAT, PLAIN, "/tokenize", "/detokenize"])
def test_an_unknown_model_is_404(http: httpx.Client, path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "x"}]},
        PLAIN: {"prompt": "x"},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }
    error = error_of(http.post(path, json=bodies[path] | {"model": "gpt-17"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@each_path
def test_an_unpaired_surrogate_in_a_field_is_refused(http: httpx.Client, path: str) -> None:
    body = rb'{"model": "tiny", "\ud800": 2}'
    check_refused(http, path, Case("surrogate", body, "Unsupported"))


@each_path
@each(NO_NUMBERS)
def test_nan_and_infinity_are_refused(http: httpx.Client, path: str, case: Case) -> None:
    check_refused(http, path, case)


@each_path
@each(TWICE)
def test_duplicate_keys_are_refused(http: httpx.Client, path: str, case: Case) -> None:
    check_refused(http, path, case)

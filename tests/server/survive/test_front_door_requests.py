"""Headers and bodies that are too large, too slow, incomplete, or not HTTP."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.conftest import CONTEXT
from tests.server.raw import CHAT, Raw, connections, parsed
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_front_door_requests")

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with short timeouts."""
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model,
        log,
        kv_cache_tokens=4 * CONTEXT,
        threads=1,
        header_timeout=1,
        body_timeout=1,
        keep_alive_timeout=2,
        max_unfinished_body_bytes=2**20,
    ) as running:
        yield running


def resident(server: Server) -> int:
    """Return the resident memory of the server's process in bytes."""
    size: int = psutil.Process(server.process.pid).memory_info().rss
    return size


def test_giant_headers_are_refused(http: httpx.Client) -> None:
    for headers in (
        {"X-Large": "x" * 2**20},
        {f"X-{number}": "" for number in range(2_000)},
        {f"X-{number}": "" for number in range(101)},
    ):
        error = error_of(http.get("/v1/models", headers=headers), 431)
        assert error["code"] == "headers_too_large"
    assert error_of(http.get("/" + "x" * 40_000), 431)
    assert http.get("/v1/models", headers={"X-Large": "x" * 20_000}).status_code == 200


@pytest.mark.parametrize("line", ["X-Many: 1\r\n", "x" * 2**16], ids=["many", "one"])
def test_headers_without_end_are_refused(server: Server, line: str) -> None:
    before = resident(server)
    with Raw(server) as client:
        client.send("GET /health HTTP/1.1", "Host: localhost", body=b"X-Endless: ")
        data = (line * (2**20 // len(line))).encode()
        assert client.send_until_refused(data, 300) < 300
        error_of(client.answer(), 431)
    assert resident(server) - before < 32 * 2**20


@pytest.mark.parametrize("what", ["trailers", "extensions"])
def test_chunks_with_endless_extensions_are_refused(server: Server, what: str) -> None:
    before = resident(server)
    with Raw(server) as client:
        client.post("Transfer-Encoding: chunked")
        client.send("0" if what == "trailers" else "1;a=", body=b"")
        line = b"X-Trailer: 1\r\n" if what == "trailers" else b"1;" + b"e" * 100 + b"\r\nx\r\n"
        client.send_until_refused(line * (2**20 // len(line)), 300)
        assert client.answer().status_code in (400, 431)
    assert resident(server) - before < 32 * 2**20


@pytest.mark.parametrize("padding", [b"", b" " * 200_000], ids=["small", "large"])
def test_a_length_may_have_any_number_of_zeros(server: Server, padding: bytes) -> None:
    """Python converts at most 4,300 digits."""
    body = b"{}" + padding
    with Raw(server) as client:
        client.post(f"Content-Length: {'0' * 5_000}{len(body)}").send(body=body)
        client.socket.shutdown(socket.SHUT_WR)
        assert error_of(client.answer())["param"] in ("model", "messages")
    assert "Traceback" not in server.log


def test_a_trailer_is_not_a_header(server: Server) -> None:
    body = b"2\r\n{}\r\n0\r\nContent-Type: text/plain\r\nHost: evil.example\r\n\r\n"
    with Raw(server) as client:
        client.post("Transfer-Encoding: chunked", "Connection: close")
        client.send(body=body)
        assert error_of(client.answer())["param"] in ("model", "messages")


def test_headers_that_trickle_time_out(server: Server) -> None:
    with Raw(server) as client:
        client.send("GET /health HTTP/1.1", "Host: localhost")
        trickle(client, b"X: y\r\n")
        assert error_of(client.answer(), 408)["code"] == "request_timeout"


@pytest.mark.parametrize("length", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
def test_a_body_that_trickles_times_out(server: Server, length: str) -> None:
    with Raw(server) as client:
        client.post(length)
        trickle(client, b"1\r\n \r\n")
        error_of(client.answer(), 408)


def trickle(client: Raw, data: bytes) -> None:
    """Send ``data`` ten times a second until the server closes the connection."""
    deadline = time.monotonic() + 30
    client.socket.setblocking(False)
    while time.monotonic() < deadline:
        try:
            client.socket.send(data)
            client.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            time.sleep(0.1)
            continue
        break
    client.socket.settimeout(30)


def test_a_slow_body_that_arrives_is_served(server: Server) -> None:
    body = json.dumps({"prompt": "x" * 6000}).encode()
    with Raw(server) as client:
        client.post(f"Content-Length: {len(body)}", "Connection: close", path="/tokenize")
        for first in range(0, len(body), 400):
            client.send(body=body[first : first + 400])
            time.sleep(0.15)
        assert client.answer().status_code == 200


def test_connections_that_say_nothing_are_ended(server: Server) -> None:
    with Raw(server) as silent, Raw(server) as half, Raw(server) as unfinished, Raw(server) as kept:
        half.send("GET /health HTTP/1.1", "Host: local")
        unfinished.post("Content-Length: 1000").send(body=b'{"model": ')
        kept.send("GET /health HTTP/1.1", "Host: localhost", "")
        for client in (silent, half, unfinished):
            error_of(client.answer(), 408)
        assert kept.rest().startswith(b"HTTP/1.1 200 ")
    until(lambda: connections(server) <= 2)  # the connections of the neighbor and of the fixture


def test_unfinished_bodies_are_bounded_in_total(server: Server) -> None:
    clients = [Raw(server) for _ in range(6)]
    try:
        for client in clients:
            client.post("Content-Length: 1000000").send(body=b" " * 300_000)
        answers = [client.answer() for client in clients]
    finally:
        for client in clients:
            client.socket.close()
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(408) == 3
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert error_of(refused, 503)["code"] == "too_many_bodies"
    assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_malformed_http_is_400(server: Server, request_: bytes) -> None:
    with Raw(server) as client:
        client.send(body=request_)
        error = error_of(client.answer())
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")


@pytest.mark.parametrize("version", ["2.0", "0.9"])
def test_another_version_of_http_is_505(server: Server, version: str) -> None:
    with Raw(server) as client:
        client.send(f"GET /health HTTP/{version}", "Host: localhost", "")
        assert error_of(client.answer(), 505)["code"] == "http_version_unknown"


def test_a_malformed_chunk_is_refused(server: Server) -> None:
    with Raw(server) as client:
        client.post("Transfer-Encoding: chunked").send(body=b"zz\r\n")
        assert error_of(client.answer())["code"] == "invalid_http"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_half_is_answered(server: Server, stream: bool) -> None:
    fields = {"model": "tiny", "prompt": "x", "max_tokens": 200, "ignore_eos": True}
    body = json.dumps(fields | {"stream": stream}).encode()
    with Raw(server) as client:
        client.post(f"Content-Length: {len(body)}", path="/v1/completions").send(body=body)
        client.socket.shutdown(socket.SHUT_WR)
        answer = client.rest()
    assert parsed(answer).status_code == 200
    assert b"[DONE]" in answer if stream else parsed(answer).json()["usage"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_is_gone_is_not_answered(server: Server, stream: bool) -> None:
    cancelled = "galley_finished_sequences_total{endpoint=/v1/completions,finish_reason=cancelled}"
    before = server.metrics().get(cancelled, 0)
    fields = {"model": "tiny", "prompt": "x", "max_tokens": 10_000, "ignore_eos": True}
    body = json.dumps(fields | {"stream": stream}).encode()
    with Raw(server) as client:
        client.post(f"Content-Length: {len(body)}", path="/v1/completions").send(body=body)
        until(lambda: server.metrics()["galley_requests_running"] == 1)
    until(lambda: server.metrics().get(cancelled, 0) == before + 1, 10)


@pytest.mark.parametrize(
    ("hosts", "version", "status"),
    [
        (["localhost", "evil.example"], "1.1", 400),
        (["localhost", "localhost"], "1.1", 400),
        ([], "1.1", 400),
        ([], "1.0", 403),
        (["localhost:80@evil.example"], "1.1", 400),
        (["[::1]evil.example"], "1.1", 400),
        (["[::1]:80:80"], "1.1", 400),
        (["[::1"], "1.1", 400),
        (["user@localhost"], "1.1", 400),
        (["localhost, evil.example"], "1.1", 400),
        (["localhost/evil"], "1.1", 400),
        (["localhost:http"], "1.1", 400),
        (["localhost:80"], "1.1", 200),
        (["[::1]:80"], "1.0", 200),
    ],
    ids=str,
)
def test_a_request_has_one_host(
    server: Server, hosts: list[str], version: str, status: int
) -> None:
    with Raw(server) as client:
        lines = [f"Host: {host}" for host in hosts]
        client.send(f"GET /v1/models HTTP/{version}", *lines, "Connection: close", "")
        assert client.answer().status_code == status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/v1/models", 200),
        ("http://evil.example/v1/models", 400),
        ("http://localhost:1/v1/models", 400),
        ("http://localhost@evil.example/v1/models", 400),
    ],
)
def test_a_target_with_a_host_is_of_the_same_host(server: Server, target: str, status: int) -> None:
    with Raw(server) as client:
        client.send(f"GET {target} HTTP/1.1", "Host: localhost", "Connection: close", "")
        assert client.answer().status_code == status


@pytest.mark.parametrize(
    ("codings", "status"),
    [
        (["gzip, chunked"], 501),
        (["gzip", "chunked"], 501),
        (["deflate, chunked"], 501),
        (["identity, chunked"], 501),
        (["chunked, chunked"], 400),
        (["CHUNKED"], 200),
        (["gzip"], 501),
    ],
    ids=str,
)
def test_transfer_codings_other_than_chunked_are_unknown(
    server: Server, codings: list[str], status: int
) -> None:
    body = b'{"model": "tiny", "prompt": "x"}'
    with Raw(server) as client:
        lines = [f"Transfer-Encoding: {coding}" for coding in codings]
        client.post(*lines, "Connection: close", path="/tokenize")
        client.send(body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        answer = client.answer()
    assert answer.status_code == status
    if status == 501:
        assert "Transfer-Encoding" in error_of(answer, 501)["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_in_http_1_0_ends_with_the_connection(server: Server, stream: bool) -> None:
    fields = {"model": "tiny", "prompt": "x", "max_tokens": 20, "temperature": 0}
    body = json.dumps(fields | {"stream": stream}).encode()
    answers = []
    for version in ("1.0", "1.1"):
        with Raw(server) as client:
            client.send(
                f"POST /v1/completions HTTP/{version}",
                "Host: localhost",
                "Connection: close",
                "Content-Type: application/json",
                f"Content-Length: {len(body)}",
                "",
                body=body,
            )
            answers.append(client.answer())
    old, new = answers
    assert "transfer-encoding" not in old.headers
    assert old.status_code == new.status_code == 200
    if stream:
        assert new.headers["transfer-encoding"] == "chunked"
        events = [line for line in old.content.splitlines() if line]
        assert all(line.startswith(b"data: {") for line in events[:-1])
        assert events[-1] == b"data: [DONE]"
    else:
        assert old.json()["choices"] == new.json()["choices"]


def test_head_in_http_1_0_has_no_body(server: Server) -> None:
    with Raw(server) as client:
        client.send("HEAD /v1/models HTTP/1.0", "Host: localhost", "")
        answer = client.answer()
    assert (answer.status_code, answer.content) == (200, b"")


def test_long_values_are_cut_in_errors(http: httpx.Client) -> None:
    for answer in (
        http.get("/" + "y" * 4000),
        http.request("Z" * 4000, "/health"),
        http.post(
            CHAT,
            content=b'{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "seed": '
            + b"7" * 4000
            + b"}",
            headers=JSON,
        ),
        http.post(CHAT, json={"model": "m" * 4000, "messages": [{"role": "user", "content": "x"}]}),
    ):
        assert answer.status_code >= 400
        assert len(error_of(answer, answer.status_code)["message"]) < 500


def test_nan_is_not_a_value(http: httpx.Client) -> None:
    for number in ("NaN", "Infinity", "-Infinity"):
        body = f'{{"model": null, "temperature": {number}}}'
        error = error_of(http.post(CHAT, content=body, headers=JSON))
        assert error["param"] == "temperature"


def test_head_is_get_without_a_body(http: httpx.Client) -> None:
    for path in ("/health", "/v1/models", "/metrics", "/docs"):
        answer = http.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert int(answer.headers["content-length"]) > 0


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    paths = ["/health", "/v1/models", "/nothing"]
    with Raw(server) as client:
        client.send(
            *(line for path in paths for line in (f"GET {path} HTTP/1.1", "Host: localhost", ""))
        )
        answer = client.rest()
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200", b"200", b"404"]

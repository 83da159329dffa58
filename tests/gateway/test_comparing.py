"""The models that compare questions: of another server, which may be of any kind, or of this one."""

import asyncio
import json
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from galley.cache.store import StoreError
from galley.errors import RequestError, SettingsError
from galley.gateway.caller import Caller
from galley.gateway.comparing import RemoteEmbedder, ServedComparer
from galley.gateway.served import ServedModel
from galley.types import Task


@contextmanager
def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[tuple[str, list[str]]]:
    """Yield a server's URL and the lines of the requests to it."""
    seen: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.requestline)
            self.rfile.read(int(self.headers["Content-Length"]))
            respond(self)

        def do_GET(self) -> None:
            seen.append(self.requestline)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", seen
        server.shutdown()


def answers(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def respond(to: BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        to.wfile.write(body)

    return respond


def moved(to: BaseHTTPRequestHandler) -> None:
    to.send_response(302)
    to.send_header("Location", "/elsewhere")
    to.end_headers()


def nonsense(to: BaseHTTPRequestHandler) -> None:
    to.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")


def endless(to: BaseHTTPRequestHandler) -> None:
    to.send_response(200)
    to.end_headers()
    try:
        while True:
            to.wfile.write(b" " * 65536)
    except OSError:
        pass


def refuses(to: BaseHTTPRequestHandler) -> None:
    to.send_error(413)


@pytest.mark.parametrize("path", ["", "/v1", "/v1/"])
def test_vectors_are_in_the_order_of_the_texts(path: str) -> None:
    data = [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [1, 0]}]
    with serving(answers(json.dumps({"data": data}).encode())) as (url, seen):
        found = RemoteEmbedder(url + path, "m", "key").vectors(["a", "b"], 30.0)
    assert found == [array("f", vector).tobytes() for vector in ([1, 0], [0, 2])]
    assert seen == ["POST /v1/embeddings HTTP/1.1"]


@pytest.mark.parametrize(
    ("respond", "error"),
    [
        (moved, "answered 302"),
        (endless, "more than 1048576 bytes"),
        (nonsense, "not an answer over HTTP"),
        (answers(b'{"x": ' + b"[" * 100_000), "recursion"),
        (answers(b'{"data": []}'), "0 vectors for 1 texts"),
        (answers(b'{"data": [{"embedding": "AAAA"}]}'), "Expected `array`"),
    ],
    ids=["redirect", "endless", "nonsense", "deep", "none", "base64"],
)
def test_what_is_no_vector_is_an_outage(
    respond: Callable[[BaseHTTPRequestHandler], None], error: str
) -> None:
    with serving(respond) as (url, seen):
        embedder = RemoteEmbedder(url, "m", "secret")
        with pytest.raises(StoreError, match=error):
            asyncio.run(embedder.embed("text"))
    assert len(seen) == 1


def test_a_text_that_is_not_taken_is_none() -> None:
    with serving(refuses) as (url, _):
        assert asyncio.run(RemoteEmbedder(url, "m", "").embed("text")) is None


class Refusing:
    """Models of which none is of the kind that is needed."""

    async def find(
        self, name: str | None, task: Task | None = None, caller: Caller | None = None
    ) -> ServedModel:
        raise RequestError(f"{name} does not support {task}")


def test_a_model_of_another_kind_is_an_outage_that_is_logged() -> None:
    comparer = ServedComparer(Refusing(), "chat", "chat")
    with pytest.raises(StoreError, match="chat does not support embed"):
        asyncio.run(comparer.embed("text"))
    with pytest.raises(StoreError, match="chat does not support rerank"):
        asyncio.run(comparer.scores("text", ["other"]))


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://name:password@h", "http://[::1"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="semantic_cache_url") as error:
        RemoteEmbedder(url, "m", "")
    assert "password@" not in str(error.value)


def test_a_key_that_no_header_takes_is_refused_without_being_shown() -> None:
    with pytest.raises(SettingsError, match="semantic_cache_api_key") as error:
        RemoteEmbedder("http://h", "m", "secret\n")
    assert "secret" not in str(error.value)

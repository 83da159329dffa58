"""Compressed bodies: decoded within the limits, or refused with the encoding named."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import httpx
import psutil
import pytest

from tests.server.conftest import CONTEXT
from tests.server.raw import CHAT
from tests.server.refusals import error_of
from tests.server.serving import Server
from tests.speech.recordings import brief

pytestmark = pytest.mark.xdist_group("server_front_door_encodings")

MOST = 1_000_000
BODY = json.dumps({"model": "tiny", "prompt": "the dog " * 2000}).encode()
JSON = {"Content-Type": "application/json"}


def raw(data: bytes) -> bytes:
    """Return raw deflate data without zlib's framing, as some clients send it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def members(data: bytes) -> bytes:
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(b"") + gzip.compress(data[half:])


CODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZip", lambda data: gzip.compress(data, 0)),
    ("gzip", members),
    ("deflate", zlib.compress),
    ("deflate", raw),
    ("identity", bytes),
]


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"tiny={model}", f"hearing={hearing}", f"tiny.kv_cache_tokens={4 * CONTEXT}"]
    with Server(
        models, log, threads=1, max_body_bytes=MOST, max_audio_bytes=2 * MOST, body_timeout=60
    ) as running:
        yield running


@pytest.mark.parametrize(("coding", "packed"), CODINGS)
@pytest.mark.parametrize("chunk", [0, 1, 1000])
def test_a_compressed_body_is_what_it_stands_for(
    http: httpx.Client, coding: str, packed: Callable[[bytes], bytes], chunk: int
) -> None:
    body = packed(BODY)
    if chunk == 1:
        body = packed(b'{"model": "tiny", "prompt": "the dog"}')
    parts = (body[i : i + chunk] for i in range(0, len(body), chunk)) if chunk else body
    answer = http.post("/tokenize", content=parts, headers=JSON | {"Content-Encoding": coding})
    assert answer.status_code == 200, answer.text
    plain = {"model": "tiny", "prompt": "the dog"} if chunk == 1 else json.loads(BODY)
    assert answer.json() == http.post("/tokenize", json=plain).json()


@pytest.mark.parametrize(("coding", "packed"), CODINGS[:6])
def test_forms_may_be_compressed(
    http: httpx.Client, coding: str, packed: Callable[[bytes], bytes]
) -> None:
    files = {"file": ("call.wav", brief())}
    request = http.build_request(
        "POST", "/v1/audio/transcriptions", data={"model": "hearing"}, files=files
    )
    expected = http.send(request).json()["text"]
    headers = {"Content-Type": request.headers["Content-Type"], "Content-Encoding": coding}
    answer = http.post("/v1/audio/transcriptions", content=packed(request.read()), headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["text"] == expected


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "x"])
def test_an_unknown_coding_is_named(http: httpx.Client, coding: str) -> None:
    answer = http.post("/tokenize", content=BODY, headers=JSON | {"Content-Encoding": coding})
    message = error_of(answer, 415)["message"]
    assert "Content-Encoding" in message
    assert coding in message
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", BODY),
        ("gzip", zlib.compress(BODY)),
        ("gzip", gzip.compress(BODY, mtime=0)[:-1]),
        ("gzip", gzip.compress(BODY, mtime=0)[:-30]),
        ("gzip", gzip.compress(BODY, mtime=0) + b"more"),
        ("gzip", gzip.compress(BODY, mtime=0)[:-8] + b"\0" * 8),
        ("deflate", zlib.compress(BODY)[:-1]),
        ("deflate", zlib.compress(BODY) + b"more"),
        ("deflate", b"\xff" * 100),
        ("deflate", gzip.compress(BODY, mtime=0)),
        ("gzip", gzip.compress(b"", mtime=0) * 5_000),
        ("deflate", b"\x00\x00\x00\xff\xff" * 20_000),
    ],
    ids=range(12),
)
def test_what_is_not_what_its_header_says_is_refused(
    http: httpx.Client, coding: str, body: bytes
) -> None:
    answer = http.post("/tokenize", content=body, headers=JSON | {"Content-Encoding": coding})
    assert f"does not match Content-Encoding {coding}" in error_of(answer)["message"]
    assert http.post("/tokenize", content=BODY, headers=JSON).status_code == 200


@cache
def bomb(start: bytes, packed: Callable[[bytes], bytes], size: int) -> bytes:
    """Return the compressed form of ``size`` bytes, nearly all of them spaces."""
    return packed(start + b" " * (size - len(start)))


@pytest.mark.parametrize(("coding", "packed"), CODINGS[:6])
@pytest.mark.parametrize("path", ["/tokenize", CHAT, "/v1/audio/transcriptions"])
def test_what_unfolds_beyond_the_limit_is_not_unfolded(
    server: Server, http: httpx.Client, path: str, coding: str, packed: Callable[[bytes], bytes]
) -> None:
    process = psutil.Process(server.process.pid)
    headers = JSON | {"Content-Encoding": coding}
    start = b'{"x": "'
    if "audio" in path:
        headers["Content-Type"] = "multipart/form-data; boundary=b"
        start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    body = bomb(start, packed, 3 * MOST if coding == "GZip" else 50 * MOST)
    http.post(
        path, content=body, headers=headers
    )  # makes the server import what such a request needs
    before = process.memory_info().rss
    error = error_of(http.post(path, content=body, headers=headers), 413)
    assert error["code"] == "request_too_large"
    assert process.memory_info().rss - before < 32 * 2**20

"""Requests that a web page can make a browser on this machine send to a server bound without keys."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.server.conftest import CONTEXT
from tests.server.openapi import PAGE
from tests.server.refusals import error_of
from tests.server.serving import Server
from tests.speech.recordings import brief

pytestmark = pytest.mark.xdist_group("server_front_door_pages")

NAMED = "https://app.example.com"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
BODY = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nhearing\r\n--b--\r\n'
WRITES = [
    (method, path)
    for path, methods in PAGE["paths"].items()
    for method in methods
    if method not in ("get", "head", "options")
]
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Origin": "http://localhost:80@evil.example"},
    {"Origin": "http://127.0.0.1.evil.example:8000"},
    {"Origin": "http://app.example.com"},
    {"Origin": "https://app.example.com.evil.example"},
    {"Origin": "file://localhost"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
]
OWN = [
    {},
    {"Origin": "http://localhost:3000"},
    {"Origin": "http://[::1]:8000"},
    {"Origin": "https://proxy.test"},
    {"Origin": NAMED},
    {"Sec-Fetch-Site": "same-origin"},
    {"Origin": NAMED, "Sec-Fetch-Site": "cross-site"},
]


@pytest.fixture(scope="module")
def server(
    model: Path, hearing: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    models = [f"tiny={model}", f"hearing={hearing}", f"tiny.kv_cache_tokens={4 * CONTEXT}"]
    with Server(
        models, log, threads=1, cors_origin=NAMED, allowed_host="proxy.test", admin_key="sk-admin"
    ) as running:
        yield running


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_no_route_takes_a_form_of_a_foreign_page(
    http: httpx.Client, headers: dict[str, str]
) -> None:
    for method, path in [*WRITES, ("post", "/nowhere")]:
        url = path.replace("{model}", "tiny")
        answer = http.request(method, url, content=BODY, headers=FORM | headers)
        assert answer.status_code == 403, (method, path)
        assert "Origin" in answer.text


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_pages_of_this_machine_and_named_ones_may_send_recordings(
    http: httpx.Client, headers: dict[str, str]
) -> None:
    files = {"file": ("call.wav", brief())}
    answer = http.post(
        "/v1/audio/transcriptions", data={"model": "hearing"}, files=files, headers=headers
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("headers", FOREIGN[:-1], ids=str)
def test_no_foreign_page_opens_a_websocket(server: Server, headers: dict[str, str]) -> None:
    url = f"ws://127.0.0.1:{server.port}/v1/realtime?intent=transcription"
    with pytest.raises(InvalidStatus) as denied:
        connect(url, additional_headers=headers)
    answer = httpx.Response(
        denied.value.response.status_code,
        headers=list(denied.value.response.headers.raw_items()),
        content=bytes(denied.value.response.body or b""),
    )
    assert error_of(answer, 403)["code"] == "origin_not_allowed"


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_pages_of_this_machine_open_websockets(server: Server, headers: dict[str, str]) -> None:
    url = f"ws://127.0.0.1:{server.port}/v1/realtime?intent=transcription"
    with connect(url, additional_headers=headers) as client:
        assert "session.created" in str(client.recv())

"""Requests of current clients, sent to a server.

``recorded/`` contains requests sent by the clients (``make clients``). Editors do not run in these tests:
the requests in ``from_source/`` follow their public source, which each file names.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.server.serving import Server
from tests.tools.checkpoint import make_calling

pytestmark = pytest.mark.xdist_group("clients")

RECORDINGS: Final = sorted(
    path
    for folder in ("recorded", "from_source")
    for path in (Path(__file__).parent / folder).glob("*.json")
)
LIMITS: Final[dict[str, Any]] = {
    "/v1/messages": {"max_tokens": 4},
    "/v1/responses": {"max_output_tokens": 4},
    "/v1/chat/completions": {"max_tokens": 4},
    "/api/chat": {"options": {"num_predict": 4}},
}
"""Path -> fields that keep an answer short; the prompt is as the client wrote it."""


def requests() -> list[Any]:
    return [
        pytest.param(request, id=f"{path.stem}-{index}-{request['path']}")
        for path in RECORDINGS
        for index, request in enumerate(json.loads(path.read_text())["requests"])
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models") / "recorded"
    make_calling(folder, max_position_embeddings=65536)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(folder, log, kv_cache_tokens=65536, threads=1) as running:
        yield running


@pytest.mark.parametrize("recorded", requests())
def test_every_recorded_request_is_answered(server: Server, recorded: dict[str, Any]) -> None:
    path = recorded["path"].partition("?")[0]
    body = recorded.get("body")
    if body is not None:
        limits = LIMITS.get(path, {})
        body = body | limits
        if "options" in limits:
            body["options"] = (recorded["body"].get("options") or {}) | limits["options"]
    answer = httpx.request(
        recorded["method"],
        server.url + recorded["path"],
        json=body,
        headers=recorded["headers"],
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    assert bool(events) == bool(body and body.get("stream") and path != "/api/chat")
    lines = [json.loads(line) for line in answer.text.splitlines() if line[:1] == "{"]
    assert not any(e.get("error") or e.get("type") == "error" for e in events + lines)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recording_has_its_client_and_no_paths_of_the_machine(path: Path) -> None:
    recording = json.loads(path.read_text())
    assert recording["version"][0].isdigit()
    assert recording["requests"]
    assert ("source" in recording) == (path.parent.name == "from_source")
    for private in ("/tmp/", "/root", "/home/"):
        assert private not in path.read_text()


def test_editors_take_the_server_for_an_ollama_that_they_support(server: Server) -> None:
    """VS Code refuses versions before 0.6.4; both editors read a model's capabilities and context."""
    version = httpx.get(server.url + "/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    shown = httpx.post(server.url + "/api/show", json={"model": "recorded"}).json()
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 65536
    assert "tools" in shown["capabilities"]

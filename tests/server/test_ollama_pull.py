"""Models downloaded and removed by Ollama's client, from a real hub on loopback."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.formats.hub import FILES, WANTED, Hub, running_hub
from tests.server.key_files import KeyFile, bearer, key_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_protocols")

SIZE = sum(len(FILES[name]) for name in WANTED)


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def server(model: Path, home: Path, hub: Hub) -> Iterator[Server]:
    environ = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": "",
        "NO_PROXY": "127.0.0.1",
    }
    KeyFile(home / "keys.yaml", boss={"admin": True}, ada={})
    models = ["tiny=" + str(model), "far=acme/far/a.gguf"]
    # No engine is needed, and the second model's file is not on the hub yet.
    flags: Any = {"load_on_request": True, "api_key_file": home / "keys.yaml"}
    with Server(models, home / "log", environ=environ, **flags) as running:
        yield running


@pytest.fixture
def boss(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, headers=bearer(key_of("boss"))) as client:
        yield client


def stored(home: Path) -> set[str]:
    found = home.glob("hub/*/snapshots/*")
    return {p.relative_to(f).as_posix() for f in found for p in f.rglob("*") if p.is_file()}


def test_a_model_is_pulled_with_its_progress_and_deleted(boss: ollama.Client, home: Path) -> None:
    lines = list(boss.pull("acme/tiny", stream=True))
    assert (lines[0].status, lines[-1].status) == ("pulling manifest", "success")
    sized = [line for line in lines if line.total]
    assert sized
    completed = [line.completed or 0 for line in sized]
    assert completed == sorted(completed)
    assert completed[-1] == sized[-1].total == SIZE
    assert len({line.digest for line in sized}) == 1
    assert stored(home) == WANTED
    # The model is present: nothing is downloaded, which is also a success.
    assert boss.pull("acme/tiny").status == "success"
    assert boss.delete("acme/tiny").status == "success"
    assert not stored(home)
    with pytest.raises(ollama.ResponseError, match="is not in the cache") as refused:
        boss.delete("acme/tiny")
    assert refused.value.status_code == 404


def test_a_served_model_is_pulled_by_its_name_and_stays(
    boss: ollama.Client, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FILES, "a.gguf", b"GGUF" + bytes(1000))
    assert boss.pull("far:latest").status == "success"
    assert stored(home) == {"a.gguf"}
    for name in ("far", "acme/far", "acme/far/a.gguf"):
        with pytest.raises(ollama.ResponseError, match="is served as 'far'") as refused:
            boss.delete(name)
        assert refused.value.status_code == 409
    assert boss.pull("tiny").status == "success"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/none", "the hub has no model acme/none"),
        ("acme/broken", "the hub cannot be reached"),
        ("no-such", "is not a served model, hub id"),
        ("../../etc", "is not a served model, hub id"),
    ],
)
def test_what_cannot_be_pulled_is_reported(boss: ollama.Client, name: str, said: str) -> None:
    with pytest.raises(ollama.ResponseError, match=said) as refused:
        boss.pull(name)
    assert refused.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=said):
        list(boss.pull(name, stream=True))


def test_without_an_admin_key_neither_is_allowed(server: Server, home: Path) -> None:
    before = stored(home)
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        body = {"model": "acme/tiny"}
        for key, status in ((bearer(key_of("ada")), 403), ({}, 401)):
            answer = httpx.request(method, server.url + path, json=body, headers=key)
            assert answer.status_code == status, answer.text
            assert "error" in answer.json()
    assert stored(home) == before


def test_disconnecting_stops_the_download(server: Server, boss: ollama.Client, hub: Hub) -> None:
    hub.requests.clear()
    hub.hold = threading.Event()
    params: Any = {"json": {"model": "acme/tiny"}, "headers": bearer(key_of("boss"))}
    with httpx.stream("POST", f"{server.url}/api/pull", **params) as answer:
        lines = answer.iter_lines()  # a collected generator would disconnect
        next(lines)
        until(lambda: "model.safetensors" in hub.fetched())
    server.wait_for_log(r"POST /api/pull 499")
    hub.hold.set()
    hub.hold = None
    assert boss.pull("acme/tiny").status == "success"
    # If the first one had not been stopped, the second would have found the file.
    assert hub.fetched().count("model.safetensors") == 2

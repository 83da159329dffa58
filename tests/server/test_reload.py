"""A model's files are reloaded while it is served: no request fails or mixes two versions."""

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.checkpoints import make_checkpoint
from tests.server.conftest import ADMIN_KEY, CONTEXT
from tests.server.neighbor import Neighbor, alone
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_reload")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same name with different answers."""
    folder = tmp_path_factory.mktemp("other") / "tiny"
    folder.mkdir()
    return make_checkpoint(folder, seed=7, max_position_embeddings=CONTEXT)


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """The model files that are served and replaced."""
    return Path(shutil.copytree(model, tmp_path / "tiny"))


@pytest.fixture
def server(folder: Path, tmp_path: Path) -> Iterator[Server]:
    log = tmp_path / "log"
    with Server(
        folder, log, kv_cache_tokens=4 * CONTEXT, threads=1, admin_key=ADMIN_KEY
    ) as running:
        yield running


def replace(folder: Path, other: Path) -> None:
    for path in other.iterdir():
        shutil.copy(path, folder / path.name)


def hup(server: Server) -> None:
    server.process.send_signal(signal.SIGHUP)


def engines(server: Server) -> list[psutil.Process]:
    return [
        child
        for child in server.children()
        if child.status() != psutil.STATUS_ZOMBIE and "galley.service.worker" in child.cmdline()
    ]


def test_new_files_are_served_and_no_request_fails(
    server: Server, folder: Path, other: Path
) -> None:
    with server.client() as client:
        before = alone(client)
        texts: list[str] = []
        over = threading.Event()

        def ask() -> None:
            with server.client() as own:
                while not over.is_set():
                    texts.append(alone(own))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: texts)
        with Neighbor(server, before):
            replace(folder, other)
            hup(server)
            until(lambda: "is served from the new files" in server.log)
        after = alone(client)
        until(lambda: after in texts)  # a thread may still be reading the old files
        over.set()
        for thread in threads:
            thread.join()
        assert after != before
        assert set(texts) == {before, after}
        until(lambda: len(engines(server)) == 1)
        assert server.metrics()["galley_engine_restarts_total"] == 0


def test_files_that_cannot_be_used_change_nothing(server: Server, folder: Path) -> None:
    with server.client() as client:
        before = alone(client)
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
        with Neighbor(server, before):
            hup(server)
            until(lambda: "continues unchanged" in server.log)
        assert "model.safetensors" in server.log
        assert alone(client) == before
        assert client.get("/ready").status_code == 200
        assert len(engines(server)) == 1


def test_files_that_have_not_changed_are_left_alone(server: Server) -> None:
    [engine] = engines(server)
    hup(server)
    until(lambda: "neither its files nor its settings have changed" in server.log)
    assert [e.pid for e in engines(server)] == [engine.pid]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "galley.yaml"
    path.write_text("kv_cache_tokens: 1024\nmax_queue: 9\n")
    return path


def test_settings_that_changed_take_effect_or_are_named(folder: Path, config: Path) -> None:
    """Engine settings change with a new engine, server settings at once; others are reported."""
    log = config.with_name("log")
    with Server(folder, log, config=config, threads=1) as server, server.client() as client:
        before = alone(client)
        [old] = engines(server)
        config.write_text(
            "kv_cache_tokens: 512\nmax_queue: 7\nport: 1234\nlog_level: debug\nmax_running: 3\n"
        )
        with Neighbor(server, before):
            hup(server)
            until(lambda: "is served from the new files" in server.log)
        assert "changed settings that need a restart: max_queue" in server.log
        assert "changed at once: log_level=debug" in server.log
        assert "kv_cache_tokens=512, max_running=3" in server.log
        assert alone(client) == before
        until(lambda: len(engines(server)) == 1)
        assert [e.pid for e in engines(server)] != [old.pid]
        [info] = client.get("/v1/models").json()["data"]
        assert client.get("/ready").status_code == 200
        assert info["id"] == "tiny"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_running: many\n", "max_running"),
        ("no_such_setting: 1\n", "no_such_setting"),
        ("- a list\n", "must contain a mapping"),
    ],
)
def test_a_settings_file_with_a_mistake_changes_nothing(
    folder: Path, config: Path, text: str, says: str
) -> None:
    with Server(folder, config.with_name("log"), config=config, threads=1) as server:
        [engine] = engines(server)
        config.write_text(text)
        hup(server)
        until(lambda: "the settings are unchanged" in server.log)
        assert says in server.log
        until(lambda: "have changed" in server.log)
        assert [e.pid for e in engines(server)] == [engine.pid]


def test_a_model_may_change_its_tokenizer(server: Server, folder: Path, other: Path) -> None:
    """The tokenizer, template and engine of a chat come from the same load."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    with server.client() as client:
        first = client.post("/tokenize", json={"messages": body["messages"]}).json()
        replace(folder, other)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}{{ 'x' * 50 }}")
        hup(server)
        until(lambda: "is served from the new files" in server.log)
        second = client.post("/tokenize", json={"messages": body["messages"]}).json()
        assert second["count"] > first["count"]
        answer: httpx.Response = client.post("/v1/chat/completions", json=body)
        assert answer.json()["usage"]["prompt_tokens"] == second["count"]


def test_operators_reload_by_a_route(server: Server, folder: Path, other: Path) -> None:
    admin = {"Authorization": f"Bearer {ADMIN_KEY}"}
    with server.client() as client:
        before = alone(client)

        def reload(model: str, **headers: str) -> httpx.Response:
            return client.post("/admin/reload", json={"model": model}, headers=headers)

        with Neighbor(server, before):
            assert reload("tiny").status_code == 401
            assert error_of(reload("huge", **admin), 404)["code"] == "model_not_found"
            replace(folder, other)
            answer = reload("tiny", **admin)
            assert (answer.status_code, answer.json()) == (200, {"model": "tiny"})
        assert alone(client) != before
        (folder / "config.json").write_text("{}")
        refused = error_of(reload("tiny", **admin))
        assert refused["param"] == "model"
        assert "config.json" in refused["message"]
        assert alone(client) != before

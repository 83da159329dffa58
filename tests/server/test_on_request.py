"""Models loaded on request: a folder of three, two of which may be loaded at a time."""

import concurrent.futures
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from tests.cli.command import galley
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("on_request")

KEEP_ALIVE = 4


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    for name in ("a", "b", "c", "broken", "no-model"):
        shutil.copytree(model, folder / name)
    (folder / "broken" / "model.safetensors").write_bytes(b"\0" * 64)
    (folder / "no-model" / "config.json").unlink()
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        [],
        log,
        models_dir=folder,
        max_loaded_models=2,
        model_keep_alive=KEEP_ALIVE,
        kv_cache_tokens=16384,
        threads=1,
        take_turns=False,
    ) as running:
        yield running


def cards(server: Server) -> dict[str, dict[str, Any]]:
    return {card["id"]: card for card in httpx.get(f"{server.url}/v1/models").json()["data"]}


def states(server: Server) -> dict[str, str]:
    return {name: card["state"] for name, card in cards(server).items()}


def ask(server: Server, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 2, "temperature": 0, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)


def test_nothing_is_loaded_before_the_first_request(server: Server) -> None:
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert states(server) == dict.fromkeys(("a", "b", "broken", "c"), "unloaded")
    assert not server.children()
    assert not any("galley_engine_ready" in name for name in server.metrics("a"))


def test_requests_for_a_loading_model_wait_for_one_load(server: Server) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: ask(server, "a"), range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({json.dumps(answer.json()["choices"]) for answer in answers}) == 1
    assert server.log.count("a was loaded on request") == 1
    card = cards(server)["a"]
    assert card["memory"] > 0
    assert time.time() < card["expires_at"] <= time.time() + KEEP_ALIVE
    assert "generate" in card["tasks"]


@contextmanager
def held(server: Server, model: str) -> Iterator[Iterator[Any]]:
    """Start a stream of the model that cannot progress: its engine is stopped."""
    with server.openai() as client:
        stream = client.completions.create(
            model=model,
            prompt=[5, 6],
            max_tokens=3000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        pieces = iter(stream)
        next(pieces)
        engine = server.engine(model)
        engine.suspend()
        try:
            yield pieces
        finally:
            stream.close()
            engine.resume()


def test_the_least_recently_used_is_unloaded_and_streams_continue(server: Server) -> None:
    with held(server, "a") as pieces:
        assert ask(server, "b").status_code == 200
        # a was used first, but has a request in flight, so b is evicted.
        assert ask(server, "c").status_code == 200
        now = states(server)
        assert (now["a"], now["b"], now["c"]) == ("loaded", "unloaded", "loaded")
        assert "unloading b to make room for c" in server.log
        server.engine("a").resume()
        assert list(pieces)[-1].choices[0].finish_reason == "length"


def test_a_request_does_not_wait_longer_than_it_may(server: Server) -> None:
    with held(server, "a"), held(server, "c"):
        late = httpx.post(
            f"{server.url}/v1/completions",
            json={"model": "b", "prompt": "x"},
            headers={"x-request-timeout": "1"},
            timeout=30,
        )
        assert "b was not loaded" in error_of(late, 504)["message"]
        assert states(server)["b"] == "loading"
    assert ask(server, "b").status_code == 200


def test_a_model_that_cannot_be_loaded_affects_no_other(server: Server, folder: Path) -> None:
    refused = ask(server, "broken")
    message = error_of(refused, 500)["message"]
    assert "broken cannot be loaded: " in message
    assert "model.safetensors" in message
    assert str(folder) not in message
    assert f"{folder}/broken/model.safetensors" in server.log
    assert ask(server, "a").status_code == 200
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert states(server)["broken"] == "unloaded"
    assert error_of(ask(server, "no-model"), 404)


def test_a_request_must_name_one_of_several(server: Server) -> None:
    answer = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"})
    assert "choose one in the field model" in error_of(answer, 400)["message"]


def test_ps_shows_what_is_loaded(server: Server) -> None:
    assert ask(server, "a").status_code == 200
    listed = galley("ps", server.url)
    assert listed.returncode == 0, listed.stderr
    [line] = [line for line in listed.stdout.splitlines() if line.startswith("a ")]
    assert "loaded" in line
    assert " in " in line
    assert "broken" not in listed.stdout
    assert "broken" in galley("ps", server.url, "--all").stdout
    nobody = galley("ps", "http://127.0.0.1:9")
    assert nobody.returncode == 1
    assert "no server answers at http://127.0.0.1:9/v1/models" in nobody.stderr


def test_a_model_without_requests_is_unloaded(server: Server) -> None:
    assert ask(server, "a").status_code == 200
    until(lambda: "loaded" not in states(server).values(), 2 * KEEP_ALIVE + 10)
    until(lambda: not server.children(), 10)
    assert ask(server, "a").status_code == 200


def test_ollamas_client_says_how_long_a_model_stays(server: Server) -> None:
    client = ollama.Client(host=server.url)
    client.generate("b", "x", options={"num_predict": 1}, keep_alive="1h30m")
    [b] = [m for m in client.ps().models if m.name == "b"]
    assert b.expires_at is not None
    assert 5300 < b.expires_at.timestamp() - time.time() <= 5400
    assert {m.model for m in client.list().models} == {"a", "b", "broken", "c"}
    for forever in (1e308, 400 * 366 * 86_400.0):
        client.generate("b", "x", options={"num_predict": 1}, keep_alive=forever)
        (shown,) = [one for one in client.ps().models if one.model == "b"]
        assert shown.expires_at is not None
        assert shown.expires_at.year >= 2300
    client.generate("b", keep_alive=0)
    until(lambda: states(server)["b"] == "unloaded", 15)
    with pytest.raises(ollama.ResponseError, match="keep_alive must be seconds, or a duration"):
        client.generate("b", "x", keep_alive="soon")


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_to_unload_a_model_that_is_not_loaded_loads_nothing(server: Server, path: str) -> None:
    assert ask(server, "a").status_code == 200
    until(lambda: states(server)["c"] == "unloaded", 2 * KEEP_ALIVE + 10)
    loads = server.log.count("was loaded on request")
    body = {"model": "c", "keep_alive": "0s" if path == "chat" else 0, "stream": False}
    answer = httpx.post(f"{server.url}/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["done_reason"] == "unload"
    assert states(server)["c"] == "unloaded"
    assert server.log.count("was loaded on request") == loads
    unknown = httpx.post(f"{server.url}/api/{path}", json={**body, "model": "zebra"})
    assert unknown.status_code == 404


def test_an_unloaded_model_is_kept_as_the_settings_say_once_it_is_loaded_again(
    server: Server,
) -> None:
    ollama.Client(host=server.url).generate("c", "x", options={"num_predict": 1}, keep_alive=0)
    until(lambda: states(server)["c"] == "unloaded", 15)
    assert ask(server, "c").status_code == 200
    assert cards(server)["c"]["expires_at"] > time.time() + 1

"""LoRA adapters on a real server: loading while it serves, naming, unloading, and recovery from a crash."""

import concurrent.futures
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from galley.errors import SettingsError
from galley.settings.config import Settings
from tests.adapters.peft import make_adapter
from tests.server.openapi import ADAPTERS
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("adapters")

ADMIN = {"Authorization": "Bearer sk-admin"}
USER = {"Authorization": "Bearer sk-user"}


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    at = tmp_path_factory.mktemp("adapters")
    for i, name in enumerate("abcd"):
        make_adapter(at / name, model, seed=i, size=0.1)
    make_adapter(at / "dora", model, use_dora=True)
    return at


@pytest.fixture(scope="module")
def server(model: Path, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        model,
        log,
        adapter=f"a={folder / 'a'}",
        max_adapters=2,
        kv_cache_tokens=32768,
        threads=1,
        admin_key="sk-admin",
        api_key="sk-user",
    ) as running:
        yield running


def load(server: Server, name: str, path: Path | str, **fields: Any) -> httpx.Response:
    body = {"name": name, "path": str(path), **fields}
    return httpx.post(f"{server.url}/v1/adapters", json=body, headers=ADMIN, timeout=60)


def unload(server: Server, name: str) -> httpx.Response:
    return httpx.delete(f"{server.url}/v1/adapters/{name}", headers=ADMIN)


def ask(server: Server, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": list(range(5, 45)), "max_tokens": 8, "temperature": 0}
    url = f"{server.url}/v1/completions"
    return httpx.post(url, json={**body, "logprobs": 0, **fields}, headers=USER, timeout=60)


def tokens(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["choices"][0]["logprobs"]["tokens"]
    return found


def listed(server: Server) -> dict[str, Any]:
    cards = httpx.get(f"{server.url}/v1/models", headers=USER).json()["data"]
    return {card["id"]: card["parent"] for card in cards}


def test_adapters_are_named_listed_loaded_and_unloaded(server: Server, folder: Path) -> None:
    assert listed(server) == {"tiny": None, "tiny:a": "tiny"}
    plain, first = tokens(ask(server, "tiny")), ask(server, "tiny:a")
    assert tokens(first) != plain
    assert first.json()["model"] == "tiny:a"
    assert ask(server, "a").json()["model"] == "tiny:a"
    assert tokens(ask(server, "a")) == tokens(first)
    assert error_of(ask(server, "b"), 404)["code"] == "model_not_found"
    [listing, loading, unloading] = ADAPTERS
    answer = load(server, "b", folder / "b")
    loading.validate_response(answer)
    card = answer.json()
    assert (card["id"], card["name"], card["model"]) == ("tiny:b", "b", "tiny")
    second = tokens(ask(server, "b"))
    assert second not in (plain, tokens(first))
    assert set(listed(server)) == {"tiny", "tiny:a", "tiny:b"}
    one = httpx.get(f"{server.url}/v1/models/tiny:b", headers=USER).json()
    assert one["parent"] == "tiny"
    answer = httpx.get(f"{server.url}/v1/adapters", headers=ADMIN)
    listing.validate_response(answer)
    assert [card["name"] for card in answer.json()["data"]] == ["a", "b"]
    answer = unload(server, "tiny:b")
    unloading.validate_response(answer)
    assert answer.json()["deleted"] is True
    assert error_of(ask(server, "b"), 404)["code"] == "model_not_found"
    assert error_of(unload(server, "b"), 404)["code"] == "model_not_found"
    assert error_of(unload(server, "tiny"), 404)["code"] == "model_not_found"
    # A different adapter under the same name is a different adapter.
    assert load(server, "b", folder / "c").status_code == 200
    assert tokens(ask(server, "b")) not in (plain, second)
    assert unload(server, "b").status_code == 200


def test_chats_and_openais_client_name_adapters(server: Server) -> None:
    client = server.openai("sk-user")
    messages: Any = [{"role": "user", "content": "Hello"}]
    answers = [
        client.chat.completions.create(model=name, messages=messages, max_tokens=8, temperature=0)
        for name in ("tiny", "tiny:a")
    ]
    assert [answer.model for answer in answers] == ["tiny", "tiny:a"]
    assert answers[0].choices[0].message.content != answers[1].choices[0].message.content
    assert [model.id for model in client.models.list()] == ["tiny", "tiny:a"]


def test_only_admins_change_adapters(server: Server, folder: Path) -> None:
    body = {"name": "x", "path": str(folder / "b")}
    for headers, status in ((USER, 403), ({}, 401), ({"Authorization": "Bearer no"}, 401)):
        assert (
            httpx.post(f"{server.url}/v1/adapters", json=body, headers=headers).status_code
            == status
        )
        assert httpx.get(f"{server.url}/v1/adapters", headers=headers).status_code == status
        url = f"{server.url}/v1/adapters/a"
        assert httpx.delete(url, headers=headers).status_code == status
    assert set(listed(server)) == {"tiny", "tiny:a"}


def test_adapters_that_are_of_no_use_are_refused(server: Server, folder: Path) -> None:
    refused = error_of(load(server, "dora", folder / "dora"), 400)
    assert refused["code"] == "adapter_unusable"
    assert "'use_dora' is True" in refused["message"]
    assert "it does not exist" in error_of(load(server, "none", folder / "none"), 400)["message"]
    assert error_of(load(server, "a", folder / "b"), 409)["code"] == "conflict"
    assert error_of(load(server, "tiny", folder / "b"), 409)["code"] == "conflict"
    for name in ("", "a:b", "../x", "x" * 101, "x\n", "x\nx", "\n", "x\r"):
        assert error_of(load(server, name, folder / "b"), 400)["param"] == "name"
    assert error_of(load(server, "x", folder / "b", model="other"), 404)["param"] == "model"
    assert set(listed(server)) == {"tiny", "tiny:a"}


@pytest.mark.parametrize("name", ["x\n", "x:y\n", "\n"])
def test_a_name_with_a_line_break_is_refused_in_settings(name: str) -> None:
    with pytest.raises(SettingsError, match="is not NAME=FOLDER"):
        Settings(model="m", adapter=(f"{name}=folder",))


def test_more_adapters_than_there_is_room_for_take_turns(server: Server, folder: Path) -> None:
    for name in "bcd":
        assert load(server, name, folder / name).status_code == 200
    alone = {name: tokens(ask(server, name)) for name in "abcd"}
    assert len({tuple(text) for text in alone.values()}) == 4
    with concurrent.futures.ThreadPoolExecutor(12) as threads:
        names = [*"abcd"] * 3
        answers = list(threads.map(lambda name: tokens(ask(server, name)), names))
    assert answers == [alone[name] for name in names]
    metrics = server.metrics(**USER)
    assert metrics["galley_adapters_loaded"] == 2
    assert metrics["galley_adapter_evictions_total"] >= 4
    assert metrics["galley_adapter_loads_total"] >= 6
    for name in "bcd":
        assert unload(server, name).status_code == 200


def test_hundreds_are_registered_while_two_are_in_memory(server: Server, folder: Path) -> None:
    files = {f"{name}{i}": name for i in range(50) for name in "abcd"}
    for name, file in files.items():
        assert load(server, name, folder / file).status_code == 200
    assert set(listed(server)) == {"tiny", "tiny:a", *(f"tiny:{name}" for name in files)}
    wanted = [*files][::9]
    alone = {file: tokens(ask(server, f"{file}0")) for file in "abcd"}
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda name: tokens(ask(server, name)), wanted))
    assert answers == [alone[files[name]] for name in wanted]
    assert server.metrics(**USER)["galley_adapters_loaded"] == 2
    for name in files:
        assert unload(server, name).status_code == 200
    assert set(listed(server)) == {"tiny", "tiny:a"}


def test_a_further_name_of_an_adapter_goes_with_it(server: Server, folder: Path) -> None:
    assert load(server, "b", folder / "b").status_code == 200
    made = {"model": "legal", "from": "tiny:b", "parameters": {"num_predict": 4}}
    assert httpx.post(f"{server.url}/api/create", json=made, headers=ADMIN).status_code == 200
    greedy = {"temperature": 0, "ignore_eos": True}
    assert tokens(ask(server, "legal", **greedy)) == tokens(ask(server, "b", **greedy))
    assert load(server, "legal", folder / "b").status_code == 409
    assert unload(server, "b").status_code == 200
    tags = httpx.get(f"{server.url}/api/tags", headers=USER)
    assert tags.status_code == 200
    assert "legal" not in tags.text
    assert ask(server, "legal").status_code == 404


def test_streams_keep_their_adapters_through_a_crash_and_an_unloading(
    server: Server, folder: Path
) -> None:
    assert load(server, "b", folder / "b").status_code == 200
    long = {"max_tokens": 1500, "ignore_eos": True}
    names = ["tiny", "a", "b", "a"]
    expected = [tokens(ask(server, name, **long)) for name in names]
    restarts = server.metrics(**USER)["galley_engine_restarts_total"]
    with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        running = [threads.submit(ask, server, name, **long) for name in names]
        until(lambda: server.metrics(**USER)["galley_requests_running"] == len(names))
        assert unload(server, "b").status_code == 200
        [engine] = server.children()
        engine.send_signal(signal.SIGKILL)
        assert [tokens(stream.result()) for stream in running] == expected
    assert server.metrics(**USER)["galley_engine_restarts_total"] == restarts + 1
    assert tokens(ask(server, "a", ignore_eos=True)) == expected[1][:8]


def test_an_adapter_that_is_of_no_use_ends_the_start(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(AssertionError, match="'use_dora' is True"),
        Server(model, tmp_path / "log", adapter=f"dora={folder / 'dora'}", kv_cache_tokens=512),
    ):
        pass

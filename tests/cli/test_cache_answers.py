"""``galley cache`` on answers stored by a real server."""

from pathlib import Path

import httpx
import pytest

from tests.cli.command import galley
from tests.server.serving import Server


@pytest.fixture(scope="module")
def stored(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A store with three answers, and their keys."""
    folder = tmp_path_factory.mktemp("answers")
    store = folder / "answers.sqlite"
    keys = []
    with Server(
        checkpoint,
        folder / "log",
        threads=1,
        kv_cache_tokens=1024,
        served_model_name="tiny",
        response_cache="exact",
        response_cache_store=store,
    ) as server:
        for number, tag in enumerate(("a", "a", "b")):
            answer = httpx.post(
                f"{server.url}/v1/completions",
                json={"prompt": [5, 6, 7 + number], "max_tokens": 4, "temperature": 0},
                headers={"x-galley-cache-tag": tag},
            )
            assert answer.headers["x-galley-cache"] == "miss"
            keys.append(answer.headers["x-galley-cache-key"])
        assert server.stop() == 0
    return store, keys


def cache(*args: str, store: Path, fails: bool = False) -> str:
    done = galley("cache", *args, "--store", store)
    assert bool(done.returncode) == fails, done.stderr + done.stdout
    return done.stderr if fails else done.stdout


def test_answers_are_listed_shown_and_removed(stored: tuple[Path, list[str]]) -> None:
    store, keys = stored
    listed = cache("list", store=store)
    assert all(key[:16] in listed for key in keys)
    listed = cache("list", "--tag", "b", store=store)
    assert [key[:16] in listed for key in keys] == [False, False, True]
    assert "no answers" in cache("list", "--model", "other", store=store)

    shown = cache("show", keys[0][:10], store=store)
    assert keys[0] in shown
    assert "3 prompt, 4 generated" in shown
    assert "tag:         a" in shown

    assert "removed 1 answer\n" in cache("rm", keys[0][:12], store=store)
    assert "no answer begins" in cache("show", keys[0], store=store, fails=True)
    assert "is not a key" in cache("rm", "*", store=store, fails=True)
    assert "select answers with" in cache("purge", store=store, fails=True)
    assert "removed 1 answer\n" in cache("purge", "--tag", "a", store=store)
    assert keys[2][:16] in cache("list", store=store)
    assert "removed 1 answer\n" in cache("purge", "--all", store=store)
    assert "no answers are stored" in cache("list", store=store)


def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    store = tmp_path / "none.sqlite"
    assert "no answers are stored" in cache("list", store=store)
    assert "removed 0 answers" in cache("purge", "--all", store=store)
    assert not store.exists()


def test_a_redis_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = galley("cache", "list", "--store", f"unix://{tmp_path}/none.sock")
    assert done.returncode != 0
    assert "cannot be read" in done.stderr
    assert "Traceback" not in done.stderr

"""Tokenizers whose steps explode, loop or panic, and text workers stopped or killed while idle."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.checkpoints import CHATML
from tests.cli.command import galley
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_text_tokenizers")

MIB = 2**20
SECONDS = 2

GROWS, LOOPS, PANICS = "§", "¤", "¶"
HOSTILE: dict[str, tuple[str, str]] = {
    "explodes": (f"x {GROWS}", "the available memory|longer than 2 s"),
    "explodes in a text": (
        "hello " * 100 + GROWS + " world" * 100,
        "the available memory|longer than 2 s",  # whichever limit is reached first
    ),
    "loops": ((LOOPS * 20 + " ") * 700 + "x", "longer than 2 s"),
    "panics": (PANICS * 40 + "b", "tokenizer failed on this text"),
}
"""Short texts, and their errors."""


def expression(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def spoil(folder: Path) -> None:
    """Make a tokenizer hostile to the texts above and leave all others alone."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    grow = {"type": "Replace", "pattern": {"String": GROWS}, "content": GROWS * 10}
    content["normalizer"] = {"type": "Sequence", "normalizers": [grow] * 8}
    steps = [
        expression(f"(?:{LOOPS}|{LOOPS})*x"),
        expression(f"({PANICS}+)+$"),
        content["pre_tokenizer"],
    ]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    path.unlink()
    path.write_text(json.dumps(content), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hostile") / "tiny"
    shutil.copytree(model, folder)
    spoil(folder)
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        folder,
        log,
        kv_cache_tokens=65536,
        threads=1,
        text_seconds=SECONDS,
        text_bytes=256 * MIB,
    ) as running:
        yield running


def requests(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return a name, a path and a body for each way in which a text is received."""
    messages = [{"role": "user", "content": text}]
    few = {"model": "tiny", "max_tokens": 2}
    return {
        "completion": ("/v1/completions", {**few, "prompt": text}),
        "chat": ("/v1/chat/completions", {**few, "messages": messages}),
        "tokenize": ("/tokenize", {"prompt": text}),
        "messages": ("/v1/messages/count_tokens", {"model": "tiny", "messages": messages}),
        "ollama": ("/api/generate", {"model": "tiny", "prompt": text, "raw": True}),
    }


@pytest.mark.parametrize(
    ("route", "name"),
    [("completion", name) for name in HOSTILE]
    + [(route, "explodes") for route in ("chat", "tokenize", "messages", "ollama")]
    + [("chat", "panics"), ("tokenize", "panics")],
)
def test_a_tokenizer_has_a_budget_for_a_short_text(
    server: Server, http: httpx.Client, route: str, name: str
) -> None:
    text, said = HOSTILE[name]
    own = psutil.Process(server.process.pid)
    before = own.memory_info().rss
    path, body = requests(text)[route]
    answer = http.post(path, json=body)
    for _ in range(10):
        if re.search(said, answer.text):
            break
        assert "longer than 2 s" in answer.text  # a busy machine reaches this limit first
        answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert re.search(said, answer.text)
    assert "Traceback" not in server.log
    assert own.memory_info().rss < before + 100 * MIB
    path, body = requests("hello")[route]
    assert http.post(path, json=body).status_code == 200


def ask(http: httpx.Client, route: str) -> Any:
    """Return the answer to a greeting, which must not change."""
    path, body = requests("hello")[route]
    answer = http.post(path, json=body | {"temperature": 0})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def ended(worker: psutil.Process) -> bool:
    try:
        ended: bool = worker.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    return ended


def test_a_text_worker_that_is_stopped_is_replaced(server: Server, http: httpx.Client) -> None:
    before = ask(http, "chat")
    workers = server.text_workers()
    for worker in workers:
        worker.suspend()
    assert ask(http, "chat") == before
    assert "its process may be stopped" in server.log
    assert any(ended(worker) for worker in workers)
    for worker in workers:
        if not ended(worker):
            worker.resume()


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV", "SIGBUS", "SIGABRT", "SIGALRM"])
def test_a_text_worker_that_died_while_it_was_idle_is_no_requests_fault(
    server: Server, http: httpx.Client, number: str
) -> None:
    before = [ask(http, route) for route in ("chat", "completion")]
    workers = server.text_workers()
    for worker in workers:
        worker.send_signal(getattr(signal, number))
    until(lambda: all(map(ended, workers)))
    assert [ask(http, route) for route in ("chat", "completion")] == before


def test_a_speech_model_whose_tokenizer_has_custom_steps_is_not_served(
    hearing: Path, tmp_path: Path
) -> None:
    """Prompts of live sessions are encoded in the server's process, between two pieces of audio."""
    folder = shutil.copytree(hearing, tmp_path / "hearing")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    path.unlink()
    path.write_text(json.dumps(content), encoding="utf-8")
    done = galley("serve", folder, "--port", "0", "--threads", "1")
    assert done.returncode == 1
    assert "its tokenizer has custom steps (Replace)" in done.stderr
    assert "Traceback" not in done.stderr

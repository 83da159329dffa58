"""Texts of several megabytes: memory is bounded, and short requests do not wait for them."""

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.server.conftest import with_defaults
from tests.server.containers import memory_limit
from tests.server.refusals import error_of
from tests.server.serving import Server, until

pytestmark = pytest.mark.xdist_group("server_text_sizes")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A separate server: its memory is measured, and text workers are killed."""
    with with_defaults(model, tmp_path_factory.mktemp("text_sizes")) as running:
        yield running


CHAT = "/v1/chat/completions"
MIB = 2**20
WORDS = "The quick brown fox, 12 jumps; over lazy dogs and zürich.\n"


def words(characters: int) -> str:
    return (WORDS * (characters // len(WORDS) + 1))[:characters]


def chat(http: httpx.Client) -> httpx.Response:
    messages = [{"role": "user", "content": "hello"}]
    return http.post(CHAT, json={"model": "tiny", "messages": messages, "max_tokens": 2})


def memory(server: Server) -> int:
    """Return the memory of all of the server's processes, in bytes."""
    total = 0
    for process in [psutil.Process(server.process.pid), *server.processes()]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def during_tokenization(
    server: Server, http: httpx.Client, body: dict[str, Any], times: int
) -> list[httpx.Response]:
    """Send ``/tokenize`` from ``times`` clients at once; chat stays responsive and memory bounded."""
    before, highest = memory(server), 0
    assert chat(http).status_code == 200
    with ThreadPoolExecutor(times) as pool, server.client() as other:
        futures = [pool.submit(other.post, "/tokenize", json=body) for _ in range(times)]
        while not all(future.done() for future in futures):
            began = time.monotonic()
            assert chat(http).status_code == 200
            assert time.monotonic() - began < 10
            highest = max(highest, memory(server))
        assert highest < before + 800 * MIB
        return [future.result() for future in futures]


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_twelve_texts_of_7_mb_are_refused(server: Server, http: httpx.Client, field: str) -> None:
    text: Any = words(7 * MIB)
    body = {field: [{"role": "user", "content": text}] if field == "messages" else text}
    for answer in during_tokenization(server, http, body, 12):
        error = error_of(answer)
        assert error["param"] == field
        assert str(7 * MIB) in error["message"]
        assert str(MIB) in error["message"]


def test_accepted_large_texts_wait_for_each_other(server: Server, http: httpx.Client) -> None:
    answers = during_tokenization(server, http, {"prompt": words(MIB)}, 4)
    taken = [answer.json()["count"] for answer in answers if answer.status_code == 200]
    assert len(set(taken)) == 1
    for answer in answers:
        if answer.status_code != 200:  # on a busy machine some do not get their turn in time
            error_of(answer, 429)
            assert int(answer.headers["retry-after"]) >= 1
    # The memory used by the work is released.
    assert all(worker.memory_info().rss < 150 * MIB for worker in server.text_workers())


def test_more_ids_than_are_detokenized_are_refused(http: httpx.Client) -> None:
    error = error_of(http.post("/detokenize", json={"tokens": [300] * 10**6}))
    assert error["param"] == "tokens"
    assert "65536" in error["message"]


def test_a_killed_text_worker_affects_no_other_request(server: Server, http: httpx.Client) -> None:
    body = {"prompt": words(MIB)}
    expected = http.post("/tokenize", json=body).json()
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(http.post("/tokenize", json=body)))
    workers = server.text_workers()
    assert len(workers) >= 2
    used = {worker: worker.cpu_times().user for worker in workers}
    asking.start()
    # One of them is being worked on.
    until(lambda: any(worker.cpu_times().user > used[worker] + 0.1 for worker in workers))
    for worker in workers:
        worker.kill()
    with server.client() as other:
        assert chat(other).status_code == 200
    asking.join()
    assert answers[0].json() == expected


class TestAlone:
    """Tests with a separate server, whose budget is small."""

    @pytest.fixture(autouse=True)
    def neighbor(self) -> None:
        """No neighboring stream runs."""

    def test_a_text_over_the_budget_is_refused(self, model: Path, tmp_path: Path) -> None:
        limit = 64 * MIB
        with (
            Server(model, tmp_path / "log", threads=1, text_bytes=limit) as server,
            server.client() as http,
        ):
            error = error_of(http.post("/tokenize", json={"prompt": words(MIB)}))
            assert error["param"] == "prompt"
            assert str(limit) in error["message"]
            answer = http.post("/tokenize", json={"prompt": words(100_000)})
            assert answer.status_code == 200, answer.text
            assert chat(http).status_code == 200

    def test_a_text_of_7_mb_in_a_container_of_400_mb_affects_no_other_request(
        self, model: Path, tmp_path: Path
    ) -> None:
        with (
            Server(model, tmp_path / "log", threads=1, kv_cache_tokens=4096) as server,
            memory_limit(400 * MIB) as enter,
            server.client() as http,
        ):
            for process in [psutil.Process(server.process.pid), *server.processes()]:
                enter(process.pid)
            for size, status in ((7 * MIB, 400), (MIB, 200), (7 * MIB, 400)):
                answer = http.post("/tokenize", json={"prompt": words(size)})
                assert answer.status_code == status, answer.text
            assert chat(http).status_code == 200

    def test_the_kernel_kills_the_text_worker_first(self, model: Path, tmp_path: Path) -> None:
        with Server(model, tmp_path / "log", threads=1) as server, server.client() as http:
            assert chat(http).status_code == 200
            [worker] = server.text_workers()
            score = Path(f"/proc/{worker.pid}/oom_score_adj")
            assert int(score.read_text()) == 1000

    def test_files_that_changed_wait_for_the_reload(self, model: Path, tmp_path: Path) -> None:
        """A worker started in the meantime would tokenize for a different model than the engine's."""
        folder = shutil.copytree(model, tmp_path / "tiny")
        with Server(folder, tmp_path / "log", threads=1) as server, server.client() as http:
            before = http.post("/tokenize", json={"prompt": words(200_000)}).json()
            server.text_workers()[-1].kill()
            (folder / "README.md").write_text("another version", encoding="utf-8")
            # The worker for conversations is alive, and does the killed one's work.
            assert chat(http).status_code == 200
            assert http.post("/tokenize", json={"prompt": words(200_000)}).json() == before
            for worker in server.text_workers():
                worker.kill()
            error = error_of(chat(http), 503)
            assert "must be reloaded" in error["message"]
            server.process.send_signal(signal.SIGHUP)
            server.wait_for_log("served from the new files")
            assert chat(http).status_code == 200

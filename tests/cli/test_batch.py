"""galley batch in real use: a tiny model, files, kills."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from .command import environment, galley, start_galley

pytestmark = pytest.mark.xdist_group("cli-processes")

COUNT = 24


def chat(custom_id: str, **body: object) -> str:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"the cat sat {custom_id}"}],
        "max_tokens": 8,
        **body,
    }
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    )


def completion(custom_id: str, **body: object) -> str:
    body = {"model": "tiny", "prompt": "the dog", "max_tokens": 8, **body}
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    )


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answers(path: Path) -> dict[str, Any]:
    """Return custom_id -> answer, without what differs between runs."""
    results = read(path)
    by_id = {result["custom_id"]: result for result in results}
    assert len(by_id) == len(results), "a line was done twice"
    return {
        custom_id: (result["id"], result["error"], result["response"]["body"]["choices"])
        for custom_id, result in by_id.items()
    }


@pytest.fixture(scope="module")
def long_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [
        chat(f"line {i} é", max_tokens=400, ignore_eos=True, seed=i, temperature=1.0)
        for i in range(COUNT)
    ]
    return write(tmp_path_factory.mktemp("batch") / "in.jsonl", *lines)


@pytest.fixture(scope="module")
def whole(long_batch: Path, run: "Run") -> dict[str, Any]:
    """The answers of a run that nothing interrupts."""
    target = long_batch.with_name("whole.jsonl")
    assert run(long_batch, target).returncode == 0
    return answers(target)


@pytest.fixture(scope="module")
def run(checkpoint: Path) -> Callable[[Path, Path], subprocess.CompletedProcess[str]]:
    def run(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
        return galley(
            "batch", source, target, "--model", checkpoint, "--max-running", "4", "--threads", "1"
        )

    return run


@pytest.fixture
def start(checkpoint: Path) -> Callable[[Path, Path], subprocess.Popen[str]]:
    def start(source: Path, target: Path) -> subprocess.Popen[str]:
        args = (
            "batch",
            source,
            target,
            "--model",
            checkpoint,
            "--max-running",
            "4",
            "--threads",
            "1",
        )
        return start_galley(*args)

    return start


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)


Run = Callable[[Path, Path], subprocess.CompletedProcess[str]]
Start = Callable[[Path, Path], "subprocess.Popen[str]"]


def test_every_kind_of_line_has_its_result(tmp_path: Path, run: Run) -> None:
    source = write(
        tmp_path / "in.jsonl",
        chat("chat"),
        "",
        completion("n", n=3),
        completion("ids", prompt=[[1, 2], [3]]),
        "no JSON",
        json.dumps({"custom_id": "no url", "method": "POST", "body": {}}),
        chat("unknown field", color="red"),
        chat("wrong model", model="huge"),
        chat("too long", max_tokens=10_000),
        chat("stream", stream=True),
        chat("empty", messages=[]),
        json.dumps({"custom_id": 5, "method": "POST", "url": "/v1/completions", "body": {}}),
        chat("many", n=100, max_tokens=1),
    )
    done = run(source, tmp_path / "out.jsonl")
    assert done.returncode == 1, done.stderr
    assert "12 results added, 0 already present, 8 failed" in done.stderr
    results = {result["id"]: result for result in read(tmp_path / "out.jsonl")}

    def body(number: int) -> dict[str, Any]:
        result = results[f"batch_req_{number}"]
        assert result["error"] is None
        assert result["response"]["status_code"] == 200
        return dict(result["response"]["body"])

    def refusal(number: int, status: int, param: str | None) -> str:
        result = results[f"batch_req_{number}"]
        assert result["response"]["status_code"] == status
        assert result["response"]["body"]["error"]["param"] == param
        return str(result["custom_id"])

    assert body(1)["object"] == "chat.completion"
    assert body(1)["usage"]["completion_tokens"] <= 8
    assert [choice["index"] for choice in body(3)["choices"]] == [0, 1, 2]
    assert len(body(4)["choices"]) == 2
    assert results["batch_req_5"]["custom_id"] is None
    assert results["batch_req_5"]["error"]["code"] == "invalid_line"
    assert "line 5: The body is not JSON" in results["batch_req_5"]["error"]["message"]
    assert results["batch_req_6"]["error"]["message"] == "line 6: Missing field 'url'"
    assert refusal(7, 400, "color") == "unknown field"
    assert refusal(8, 404, "model") == "wrong model"
    assert refusal(9, 400, "max_tokens") == "too long"
    assert refusal(10, 400, "stream") == "stream"
    assert refusal(11, 400, "messages") == "empty"
    assert "custom_id" in results["batch_req_12"]["error"]["message"]
    assert len(body(13)["choices"]) == 100


def test_failed_lines_are_counted_and_retried(tmp_path: Path, run: Run) -> None:
    """Lines for another model fail; once they name the served model, nothing fails."""
    source = write(tmp_path / "in.jsonl", *(chat(str(i), model="gpt", max_tokens=2) for i in "abc"))
    target = tmp_path / "out.jsonl"
    first = run(source, target)
    assert first.returncode == 1
    assert "3 results added, 0 already present, 3 failed" in first.stderr
    assert "3 x 404: The model 'gpt' does not exist; this server has 'tiny'" in first.stderr
    target.chmod(0o640)
    flags = ("--served-model-name", "gpt", "--threads", "1", "--model", tmp_path / "gone")
    kept = galley("batch", source, target, *flags, "--no-retry-failed")
    assert kept.returncode == 1
    assert "0 results added, 3 already present, 3 failed" in kept.stderr
    again = run(write(source, *(chat(i, max_tokens=2) for i in "abc")), target)
    assert again.returncode == 0, again.stderr
    assert "3 results added, 0 already present, 0 failed" in again.stderr
    assert answers(target).keys() == set("abc")
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_killed_and_resumed_it_gives_what_an_uninterrupted_run_gives(
    tmp_path: Path, long_batch: Path, whole: dict[str, Any], run: Run, start: Start
) -> None:
    torn = tmp_path / "torn.jsonl"
    kills = 0
    for lines in (2, 8, 15):
        process = start(long_batch, torn)
        wait_for_lines(torn, lines, process)
        engines = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        kills += torn.read_bytes().count(b"\n") < COUNT
        gone, alive = psutil.wait_procs(engines, timeout=10)
        assert gone
        assert not alive
        with torn.open("ab") as file:  # as if the kill had interrupted a write
            file.write(b'{"id": "batch_req_9", "custom')
    assert kills == 3
    resumed = run(long_batch, torn)
    assert resumed.returncode == 0, resumed.stderr
    assert len(whole) == COUNT
    assert answers(torn) == whole


def test_the_engine_may_be_killed(
    tmp_path: Path, long_batch: Path, whole: dict[str, Any], start: Start
) -> None:
    process = start(long_batch, tmp_path / "out.jsonl")
    wait_for_lines(tmp_path / "out.jsonl", 5, process)
    children = psutil.Process(process.pid).children()
    (engine,) = (child for child in children if "galley.service.worker" in child.cmdline())
    engine.kill()
    assert process.wait(60) == 0, process.communicate()[0]
    assert answers(tmp_path / "out.jsonl") == whole


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, long_batch: Path, start: Start) -> None:
    process = start(long_batch, tmp_path / "out.jsonl")
    wait_for_lines(tmp_path / "out.jsonl", 2, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert not psutil.wait_procs(children, timeout=10)[1]
    assert 2 <= len(answers(tmp_path / "out.jsonl")) < COUNT


def test_a_finished_batch_starts_nothing(tmp_path: Path, run: Run) -> None:
    source = write(tmp_path / "in.jsonl", chat("a"))
    assert run(source, tmp_path / "out.jsonl").returncode == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    again = galley("batch", source, tmp_path / "out.jsonl", "--model", tmp_path / "gone")
    assert again.returncode == 0
    assert "0 results added, 1 already present" in again.stderr
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_what_is_refused_before_anything_runs(tmp_path: Path, checkpoint: Path) -> None:
    source = write(tmp_path / "in.jsonl", chat("a"), chat("b"), chat("a"))
    done = galley("batch", source, tmp_path / "out.jsonl", "--model", checkpoint)
    assert done.returncode == 1
    assert "lines 1 and 3 have the same custom_id 'a'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()
    same = write(tmp_path / "same.jsonl", chat("a"))
    done = galley("batch", same, same, "--model", checkpoint)
    assert done.returncode == 1
    assert read(same)[0]["custom_id"] == "a"


def test_a_model_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", chat("a"))
    done = galley("batch", source, tmp_path / "out.jsonl", "--model", tmp_path / "nowhere")
    assert done.returncode == 1
    assert "nowhere does not exist" in done.stderr
    assert done.stderr.count("galley: ") == 1
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line_and_can_be_resumed(
    tmp_path: Path, checkpoint: Path, run: Run
) -> None:
    source = write(tmp_path / "in.jsonl", *(chat(str(i), max_tokens=2) for i in range(8)))
    target = tmp_path / "out.jsonl"
    # ulimit counts blocks of 512 bytes: room for some lines, and for a part of the next.
    script = 'ulimit -f 3 && exec "$@"'
    command = [sys.executable, "-m", "galley", "batch", str(source), str(target)]
    flags = ["--model", str(checkpoint), "--threads", "1"]
    full = subprocess.run(
        ["sh", "-c", script, "sh", *command, *flags],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment(PYTHONDONTWRITEBYTECODE="1"),
    )
    assert full.returncode == 1, full.stderr
    assert f"galley: cannot write {target}: File too large" in full.stderr
    assert "Traceback" not in full.stderr
    assert 0 < len(read(target)) < 8
    assert run(source, target).returncode == 0
    assert answers(target).keys() == set(map(str, range(8)))

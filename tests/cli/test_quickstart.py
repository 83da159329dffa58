"""What ``make run`` does after the installation."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from galley import LLM, SamplingParams
from galley.formats.source import BUNDLED_MODELS
from tests.thorough import unless

from .command import environment, free_port, galley

pytestmark = pytest.mark.xdist_group("cli-processes")

SCRIPT = Path(__file__).parents[2] / "scripts" / "quickstart.py"


def start(checkpoint: Path, port: int, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=environment(
            GALLEY_MODEL=str(checkpoint),
            GALLEY_PORT=str(port),
            GALLEY_THREADS="1",
            GALLEY_MAX_MODEL_LEN="400",
            **variables,
        ),
    )


def read_until(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    assert process.stdout
    output = b""
    while text not in output:
        data = os.read(process.stdout.fileno(), 65536)
        assert data, output.decode(errors="replace")
        output += data
    return output


@pytest.mark.parametrize("stop", [signal.SIGINT, unless(False, signal.SIGTERM)])
def test_answers_then_serving_until_stopped(checkpoint: Path, stop: signal.Signals) -> None:
    port = free_port()
    process = start(checkpoint, port, GALLEY_API_KEY="key")
    try:
        output = read_until(process, b"Ctrl-C stops the server.").decode()
        with LLM(checkpoint, max_model_len=400, threads=1) as llm:
            message = {"role": "user", "content": "What is a KV cache?"}
            [answer] = llm.chat([message], SamplingParams(temperature=0))
        assert answer.text in output
        assert f"Serving at http://127.0.0.1:{port}/v1" in output
        children = psutil.Process(process.pid).children(recursive=True)
        engines = [child for child in children if "galley.service.worker" in child.cmdline()]
        assert len(engines) == 3
        content = {"model": "embed", "input": "x"}
        headers = {"Authorization": "Bearer key"}
        url = f"http://127.0.0.1:{port}/v1/embeddings"
        assert httpx.post(url, json=content, headers=headers).json()["data"][0]["embedding"]
        if stop is signal.SIGINT:
            os.killpg(process.pid, stop)  # a terminal sends it to every process
        else:
            process.send_signal(stop)
        assert process.wait(30) == 0
        assert not psutil.wait_procs(children, timeout=10)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_the_list_has_every_bundled_model() -> None:
    listed = galley("list").stdout.splitlines()
    bundled = {line.split()[0] for line in listed if "bundled" in line}
    assert bundled == set(BUNDLED_MODELS)


def test_a_server_that_cannot_start_ends_it(tmp_path: Path) -> None:
    process = start(tmp_path / "nowhere", free_port())
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"nowhere does not exist" in output


def test_any_port_and_a_key_from_a_file(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\nfirst-key\nsecond-key\n")
    process = start(checkpoint, 0, GALLEY_API_KEY_FILE=str(tmp_path / "keys"))
    try:
        output = read_until(process, b"Ctrl-C stops the server.").decode()
        listens = re.search(r"listens on http://127\.0\.0\.1:(\d+)", output)
        assert listens
        assert int(listens[1]) > 0
        assert f"Serving at http://127.0.0.1:{listens[1]}/v1" in output
        assert "was interrupted" not in output
        assert "first" not in output
    finally:
        process.terminate()
        process.communicate()


def test_the_server_of_somebody_else_is_not_shown(checkpoint: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = start(checkpoint, port)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}" in output.decode()
        assert b"What is a KV cache?" not in output
        other.settimeout(0)
        with pytest.raises(BlockingIOError):
            other.accept()

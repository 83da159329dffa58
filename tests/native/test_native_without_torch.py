"""The core serves without torch: importing it anywhere would raise in these processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import galley
from tests.conftest import CheckpointMaker
from tests.missing import without
from tests.server.serving import Server


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return without(tmp_path, "torch", "transformers", "safetensors")


@pytest.fixture
def folder(checkpoint: CheckpointMaker) -> Path:
    return checkpoint("llama")


def test_the_library_generates(folder: Path, environ: dict[str, str]) -> None:
    code = (
        "import json, sys\n"
        "from galley import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], weight_dtype=sys.argv[2], threads=1)\n"
        "out = llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))\n"
        "try:\n"
        "    import torch\n"
        "    found = True\n"
        "except ModuleNotFoundError:\n"
        "    found = False\n"
        "print(json.dumps([len(out[0].token_ids), found]))\n"
    )
    for kind in ("auto", "int4"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(folder), kind],
            env=os.environ | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [4, False]


def test_the_server_serves(folder: Path, environ: dict[str, str], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"weight_dtype": "int8", "threads": 1}
    with Server(folder, tmp_path / "log", environ=environ, **settings) as server:
        answer = server.openai().completions.create(
            model=folder.name, prompt=[5, 6, 7], max_tokens=4, temperature=0
        )
        assert server.stop() == 0
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert "WARNING" not in server.log


def test_the_terminal_answers(folder: Path, environ: dict[str, str]) -> None:
    done = galley("run", folder, "the cat", "--max-tokens", "4", "--threads", "1", environ=environ)
    assert (done.returncode, done.stderr) == (0, "")


def test_batches_are_answered(folder: Path, environ: dict[str, str], tmp_path: Path) -> None:
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": folder.name, "prompt": "the dog", "max_tokens": 4},
    }
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text(json.dumps(line) + "\n")
    done = galley("batch", requests, results, "--model", folder, environ=environ)
    assert done.returncode == 0, done.stderr
    assert json.loads(results.read_text())["response"]["status_code"] == 200


def test_the_bundled_model_is_scored(environ: dict[str, str], tmp_path: Path) -> None:
    scores = tmp_path / "scores.json"
    done = galley("eval", "demo", "--json", scores, environ=environ)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(scores.read_text())["scores"]) == 6

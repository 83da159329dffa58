"""The core serves with torch absent: an import of it anywhere would raise in these processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CheckpointMaker
from tests.server.serving import Server

FORBID = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Forbid())
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Python runs ``sitecustomize`` at start, in child processes too."""
    (tmp_path / "sitecustomize.py").write_text(FORBID)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return {"PYTHONPATH": path.rstrip(os.pathsep)}


def test_the_library_generates(checkpoint: CheckpointMaker, environ: dict[str, str]) -> None:
    code = (
        "import json, sys\n"
        "from galley import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], executor='cpu', quantize=sys.argv[2], threads=1)\n"
        "out = llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))\n"
        "try:\n"
        "    import torch\n"
        "    found = True\n"
        "except ModuleNotFoundError:\n"
        "    found = False\n"
        "print(json.dumps([len(out[0].token_ids), found]))\n"
    )
    for kind in ("", "int4"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(checkpoint("llama")), kind],
            env=os.environ | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [4, False]


def test_the_reference_executor_says_what_it_needs(
    checkpoint: CheckpointMaker, environ: dict[str, str]
) -> None:
    code = (
        "import sys\n"
        "from galley import LLM\n"
        "from galley.errors import SettingsError\n"
        "try:\n"
        "    LLM(sys.argv[1], executor='reference')\n"
        "except SettingsError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(checkpoint("llama"))],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "needs the package 'torch'" in done.stdout


def test_the_server_serves(
    checkpoint: CheckpointMaker, environ: dict[str, str], tmp_path: Path
) -> None:
    folder = checkpoint("llama")
    settings: dict[str, Any] = {"executor": "cpu", "quantize": "int8", "threads": 1}
    with Server(folder, tmp_path / "log", environ=environ, **settings) as server:
        answer = server.openai().completions.create(
            model=folder.name, prompt=[5, 6, 7], max_tokens=4, temperature=0
        )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3

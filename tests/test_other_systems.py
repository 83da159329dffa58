"""Without Linux-only features, as on macOS: no /proc, no CPU affinity, no memfd files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CheckpointMaker
from tests.missing import without_linux
from tests.server.serving import Server

IMPORT_ALL = """
import importlib, pkgutil, galley

def imported(path, prefix):
    for module in pkgutil.iter_modules(path, prefix):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.startswith("galley"):
                raise
            continue  # of an extra
        yield module.name
        if module.ispkg:
            yield from imported(loaded.__path__, module.name + ".")

print(len(list(imported(galley.__path__, "galley."))))
"""


def test_all_modules_can_be_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        env=os.environ | without_linux(tmp_path, "resource", "torch", "triton", "transformers"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 600


@pytest.mark.parametrize("missing", [(), ("resource", "fcntl")], ids=["macOS", "neither module"])
def test_the_bundled_model_answers(missing: tuple[str, ...], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "galley", "run", "What is a KV cache?"],
        env=os.environ | without_linux(tmp_path, *missing),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "keys and values" in done.stdout


def test_two_models_take_turns_on_the_cores(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    models = [f"{name}={checkpoint('llama')}" for name in ("one", "two")]
    environ = without_linux(tmp_path, "resource")
    with Server(models, tmp_path / "log", environ=environ, threads=1, take_turns=True) as server:
        for model in ("one", "two"):
            answer = server.openai().completions.create(
                model=model, prompt=[5, 6, 7], max_tokens=4, temperature=0
            )
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 4
        metrics = server.metrics()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert metrics["galley_memory_limit_bytes"] == total
    assert metrics["galley_memory_available_bytes"] == total // 2

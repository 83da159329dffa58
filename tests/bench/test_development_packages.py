"""Benchmarks with only the package itself installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.missing import without

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("module", "missing"), [("live", "websockets"), ("peers", "tokenizers")])
def test_missing_packages_are_named(tmp_path: Path, module: str, missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=without(tmp_path, missing) | {"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"No module named '{missing}': the benchmarks need")
    assert "-m pip install --constraint constraints.txt --editable '.[dev]'" in done.stderr
    assert "Traceback" not in done.stderr

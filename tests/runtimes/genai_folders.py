"""Models in ONNX Runtime GenAI's format, written by its own builder, and the library alone."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.checkpoints import make_checkpoint

SHAPE: Final[dict[str, Any]] = {"hidden_size": 64}
"""The library's attention needs heads whose size is a multiple of 8."""

_built: list[Path] = []
"""The folder that this process has built; the builder takes as long as a hundred tests."""


def make_genai(folder: Path) -> Path:
    """Write a random language model; return its folder, next to that of the original checkpoint."""
    pytest.importorskip("onnx_ir", reason="onnxruntime-genai's builder")
    original = folder.parent / f"{folder.name}-checkpoint"
    if _built:
        shutil.copytree(_built[0], folder)
        shutil.copytree(_built[0].parent / f"{_built[0].name}-checkpoint", original)
        return folder
    make_checkpoint(original, "llama", **SHAPE)
    cache = folder.parent / "cache"
    command = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        original,
        "-o",
        folder,
    ]
    subprocess.run(
        [*map(str, command), "-p", "fp32", "-e", "cpu", "-c", str(cache)],
        check=True,
        capture_output=True,
    )
    _built.append(folder)
    return folder


def genai_alone(path: Path) -> Callable[[list[int], int], list[int]]:
    """Return a function that continues one prompt greedily with the library, by a number of tokens."""
    library = pytest.importorskip("onnxruntime_genai", reason="extra onnxruntime-genai")
    model = library.Model(str(path))

    def continued(prompt: list[int], count: int) -> list[int]:
        params = library.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=len(prompt) + count)
        generator: Any = library.Generator(model, params)
        generator.append_tokens(np.array(prompt, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)[len(prompt) :]]

    return continued

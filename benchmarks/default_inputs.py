"""Measure what rounding the inputs of linear layers loses against float32 inputs on the same weights.

    python -m benchmarks.default_inputs MODEL TEXT [--tokens N] [--context N] [--llama PYTHON]

MODEL is a checkpoint with integer weights, TEXT a text file. Keys and values are float32 in every row of
Galley. With ``--llama``, a Python that has llama-cpp-python and numpy, MODEL is a GGUF file, and llama.cpp
runs it as well, with its own defaults. The speed of both, behind the same server:

    galley compare MODEL --engines native,llama.cpp --requests 12 --concurrency 1,8 --output-tokens 32
"""

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.gguf_peers import Peer
from galley import LLM
from galley.calibration.forward import TeacherForced, Tokens
from galley.calibration.measures import Divergence, Loss, following
from galley.cli.terminal import table
from galley.formats.source import resolve_model
from galley.ops.sampling import Logits
from galley.quality.texts import read_texts
from galley.settings.engine import Activations, EngineSettings

COMPARED: Final[tuple[Activations, ...]] = ("int8", "bfloat16")


def loaded(model: str, activations: Activations, longest: int) -> TeacherForced:
    """Load a model that rounds its inputs to this type."""
    settings = EngineSettings(
        model=model, activations=activations, kv_dtype="float32", weight_cache=False
    )
    return TeacherForced(settings, resolve_model(model), longest=longest)


def all_logits(model: TeacherForced, window: Tokens) -> Logits:
    """Return the logits of all positions."""
    return np.concatenate([rows.copy() for _, rows in model.logits(window)])


def losses(model: str, windows: Sequence[Tokens]) -> dict[str, Loss]:
    """Return the loss of each type of inputs."""
    longest = max(map(len, windows))
    found: dict[str, Loss] = {}
    for activations in COMPARED:
        with loaded(model, activations, longest) as one:
            found[activations] = loss(model, windows, (all_logits(one, w) for w in windows))
    return found


def loss(model: str, windows: Sequence[Tokens], logits: Iterable[Logits]) -> Loss:
    """Return the loss of the logits of each window against float32 inputs."""
    divergence = Divergence()
    with loaded(model, "float32", max(map(len, windows))) as base:
        for window, found in zip(windows, logits, strict=True):
            divergence.add(all_logits(base, window), found, following([window]))
    return divergence.loss()


def loss_of_llama(python: str, model: str, windows: Sequence[Tokens]) -> Loss:
    """Return llama.cpp's loss with its own defaults."""
    file = str(Path(model).resolve())
    with tempfile.TemporaryDirectory() as folder:
        job = {"model": file, "windows": [list(w) for w in windows], "prompts": [], "steps": 0}
        with np.load(Peer(python, Path(folder)).run(**job, defaults=True)) as theirs:
            each = (theirs[f"window {i}"] for i in range(len(windows)))
            return loss(model, windows, each)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--llama", help="interpreter that has llama-cpp-python and numpy")
    wanted = parser.parse_args()
    with LLM(wanted.model) as llm:
        texts = read_texts(llm, wanted.text, context=wanted.context, tokens=wanted.tokens)
    windows = texts.windows
    found = losses(wanted.model, windows)
    if wanted.llama:
        found["llama.cpp"] = loss_of_llama(wanted.llama, wanted.model, windows)
    rows = [
        [name, f"{one.kl:.2g}", f"{one.kl_p99:.2g}", f"{one.top1:.2%}"]
        for name, one in found.items()
    ]
    print(table(("inputs", "mean KL, nats", "99 %", "same likeliest token"), rows))


if __name__ == "__main__":
    main()

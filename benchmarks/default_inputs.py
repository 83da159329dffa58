"""Measure what rounding the inputs of linear layers loses against float32 inputs on the same weights.

    python -m benchmarks.default_inputs MODEL TEXT [--tokens N] [--context N]

MODEL is a checkpoint with integer weights, TEXT a text file. Keys and values are float32 in every row.
"""

import argparse
from pathlib import Path
from typing import Final

import numpy as np

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


def losses(model: str, windows: list[Tokens]) -> dict[Activations, Loss]:
    """Return the loss of each type of inputs."""
    longest = max(map(len, windows))
    found: dict[Activations, Loss] = {}
    for activations in COMPARED:
        divergence = Divergence()
        with loaded(model, "float32", longest) as base, loaded(model, activations, longest) as one:
            for window in windows:
                divergence.add(
                    all_logits(base, window), all_logits(one, window), following([window])
                )
        found[activations] = divergence.loss()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--context", type=int, default=256)
    wanted = parser.parse_args()
    with LLM(wanted.model) as llm:
        texts = read_texts(llm, wanted.text, context=wanted.context, tokens=wanted.tokens)
    rows = [
        [name, f"{loss.kl:.2g}", f"{loss.kl_p99:.2g}", f"{loss.top1:.2%}"]
        for name, loss in losses(wanted.model, list(texts.windows)).items()
    ]
    print(table(("inputs", "mean KL, nats", "99 %", "same likeliest token"), rows))


if __name__ == "__main__":
    main()

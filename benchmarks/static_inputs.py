"""Measure what int8 inputs lose with one static scale, by observer, and with a scale per token.

    python -m benchmarks.static_inputs [MODEL] [--tokens N]

Weights are not quantized further. Scales are observed on text that the model generates; the loss is
measured on other generated text. Galley's kernels scale each token; static scales are computed for this
table only.
"""

import argparse

from galley import LLM
from galley.calibration.held_out import held_apart
from galley.calibration.static_inputs import loss_of_inputs, observed
from galley.cli.terminal import table
from galley.engine.read_model import read_model
from galley.formats.source import resolve_model
from galley.ops.choice import choose_executor
from galley.quality.texts import own_texts
from galley.quant.observers import OBSERVERS
from galley.settings.engine import EngineSettings


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--tokens", type=int, default=16384)
    wanted = parser.parse_args()
    with LLM(wanted.model) as llm:
        windows = own_texts(llm, context=256, tokens=wanted.tokens).windows
    model = read_model(EngineSettings(kv_dtype="float32"), resolve_model(wanted.model))
    _, factory = choose_executor("auto", "cpu")
    texts = held_apart(windows)
    ranges = observed(model, factory, texts.calibration, OBSERVERS)
    rows = []
    for name in (None, *OBSERVERS):
        chosen = None if name is None else ranges[name]
        loss = loss_of_inputs(model, factory, texts.measured, chosen)
        rows.append(
            [name or "each token", f"{loss.kl:.2g}", f"{loss.kl_p99:.2g}", f"{loss.top1:.2%}"]
        )
    print(table(("scale", "mean KL, nats", "99 %", "same likeliest token"), rows))


if __name__ == "__main__":
    main()

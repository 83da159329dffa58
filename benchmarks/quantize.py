"""What each method of ``galley quantize`` loses: perplexity and divergence, on text it has not seen.

    python -m benchmarks.quantize [MODEL] [--calibrate FILE] [--data FILE] [--results FILE]

int4 in groups of 128 with each method. A method calibrates on text that the model generates, or on
``--calibrate``; what is lost is measured on ``--data``, by default the questions and answers of the bundled
model's held-out sets.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scripts.benchmarks_page import Figure

from benchmarks.results_file import machine_file, put
from galley import LLM
from galley.calibration.measures import Loss
from galley.calibration.quantize import (
    HELD_OUT,
    METHODS,
    Method,
    Plan,
    Quantizer,
    linear_weights,
)
from galley.demo import heldout
from galley.engine.read_model import read_model
from galley.engine_settings import EngineSettings
from galley.formats.source import resolve_model
from galley.ops.executor import choose_executor
from galley.quality.texts import Window, own_texts, read_texts
from galley.quant.grid import Scheme

SCHEME = Scheme(4, 128)
CONTEXT = 256


def windows(model: str, calibrate: Path | None, data: Path, tokens: int) -> list[Window]:
    """One in HELD_OUT from ``data``, which is measured on; all others to calibrate with."""
    with LLM(model) as llm:
        seen = (
            own_texts(llm, context=CONTEXT, tokens=tokens)
            if calibrate is None
            else read_texts(llm, calibrate, context=CONTEXT, tokens=tokens)
        ).windows
        unseen = read_texts(llm, data, context=CONTEXT, tokens=tokens // HELD_OUT).windows
    left = iter(seen)
    taken: list[Window] = []
    for window in unseen:
        taken.append(window)
        taken += [one for one, _ in zip(left, range(HELD_OUT - 1), strict=False)]
    return taken


def measure(
    model: str, method: Method, texts: Sequence[Window], folder: Path
) -> tuple[Loss, float]:
    """What the method loses, and the seconds that it took."""
    began = time.monotonic()
    read = read_model(EngineSettings(model=model, kv_dtype="float32"), resolve_model(model))
    plan = Plan(method, dict.fromkeys(linear_weights(read.program), SCHEME))
    _, factory = choose_executor("auto", "cpu")
    loss = Quantizer(read, factory, folder / method, plan, texts).run()
    return loss, time.monotonic() - began


def main() -> None:
    """Measure all methods, and put the figures into a results file if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--calibrate", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--results", type=machine_file)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = wanted.data or _demo_data(Path(folder))
        texts = windows(wanted.model, wanted.calibrate, data, wanted.tokens)
        losses: dict[Method, Loss] = {}
        for method in METHODS:
            losses[method], seconds = measure(wanted.model, method, texts, Path(folder))
            loss = losses[method]
            more = loss.perplexity / loss.base_perplexity - 1
            print(
                f"{method}: perplexity {loss.base_perplexity:.4f} -> {loss.perplexity:.4f} ({more:+.2%}), "
                f"KL {loss.kl:.3g}, 99 % {loss.kl_p99:.3g}, top-1 {loss.top1:.2%}, {loss.tokens} tokens, "
                f"{seconds:.0f} s",
                flush=True,
            )
    if wanted.results is not None:
        put(wanted.results, _figures(wanted.model, losses))


def _demo_data(folder: Path) -> Path:
    """The held-out conversations with their answers as chat logs, sets and tasks mixed."""
    items = [item for number in heldout.SETS for item in heldout.read(number)]
    lines = [
        {"messages": [*item.messages, {"role": "assistant", "content": item.answer}]}
        for i in range(60)
        for item in items[i::60]
    ]
    path = folder / "held-out.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def _figures(model: str, losses: dict[Method, Loss]) -> list[Figure]:
    def figure(what: str, unit: str, measured: Sequence[float]) -> Figure:
        return Figure(
            what=f"{model}, int4 in groups of 128, by method: {what}",
            unit=unit,
            at=tuple(losses),
            measured=tuple(float(f"{value:.3g}") for value in measured),
            date=datetime.now(UTC).date().isoformat(),
            command="python -m benchmarks.quantize",
            better="lower",
            remark="calibrated on text that the model generated; measured on its held-out sets",
        )

    more = [100 * (loss.perplexity / loss.base_perplexity - 1) for loss in losses.values()]
    return [
        figure("perplexity, more than bf16", "%", more),
        figure("mean KL divergence from bf16", "nats", [loss.kl for loss in losses.values()]),
    ]


if __name__ == "__main__":
    main()

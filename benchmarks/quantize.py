"""What each method of ``galley quantize`` loses: perplexity and divergence, on text it has not seen.

    python -m benchmarks.quantize [MODEL] [--group N] [--context N] [--calibrate FILE] [--data FILE]
        [--tokens N] [--measured N] [--mixed] [--results FILE]

int4 with each method. A method calibrates on text that the model generates, or on ``--calibrate``; what is
lost is measured on ``--data``, by default the questions and answers of the bundled model's held-out sets.
The texts of a file come one after another and are cut into windows of ``--context`` tokens. No window is
in both. ``--mixed``: also mixed precision, as ``--budget`` makes it, of as many bytes as int4 in groups of
half the size takes, beside that.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from scripts.benchmarks_page import Figure

from benchmarks.results_file import machine_file, put
from galley import LLM
from galley.calibration.held_out import Texts, apart, first_texts
from galley.calibration.measures import Loss
from galley.calibration.quantize import INPUTS, METHODS, Method, Plan, Quantizer, linear_weights
from galley.calibration.sensitivity import assign, bytes_of, parts_of, schemes_of
from galley.cli.quantize_plan import kinds_of
from galley.demo import heldout
from galley.engine.read_model import Model, read_model
from galley.formats.source import resolve_model
from galley.ops.executor import choose_executor
from galley.quality.texts import Window, own_texts, read_texts
from galley.quant.grid import Scheme
from galley.settings.engine import EngineSettings

_ROUNDED: Final[tuple[Method, ...]] = tuple(m for m in METHODS if m not in INPUTS)
_WHOLE: Final = 1 << 30
_PARTS_TOKENS: Final = 1024


@dataclass(frozen=True)
class Source:
    """Where the texts come from.

    Attributes:
        calibrate: a file; None: the model generates what it is calibrated with.
        data: a file to measure on; None: the bundled model's held-out sets.
        context: tokens of a window.
        tokens: to calibrate with.
        measured: tokens to measure on.
    """

    calibrate: Path | None
    data: Path | None
    context: int
    tokens: int
    measured: int

    def told(self) -> str:
        """For people."""
        seen = "text that the model generated" if self.calibrate is None else self.calibrate.name
        unseen = "the bundled model's held-out sets" if self.data is None else self.data.name
        return f"calibrated on {self.tokens} tokens of {seen}; measured on {unseen}"


def texts_of(model: str, source: Source) -> Texts:
    """Windows to calibrate with, and others to measure on.

    A file that is both is measured on at its beginning, and calibrated with behind that.
    """
    with LLM(model) as llm:
        if source.data is None:
            unseen = _demo_windows(llm, source)
        else:
            unseen = _windows(llm, source.data, source, source.measured)
        if source.calibrate is None:
            seen = own_texts(llm, context=source.context, tokens=source.tokens).windows
        elif source.calibrate == source.data:
            whole = _windows(llm, source.calibrate, source, source.measured + source.tokens)
            seen = whole[len(unseen) :]
        else:
            seen = _windows(llm, source.calibrate, source, source.tokens)
    return apart(seen, unseen)


def _windows(llm: LLM, file: Path, source: Source, tokens: int) -> tuple[Window, ...]:
    """Texts one after another, cut into windows that are all full."""
    texts = read_texts(llm, file, context=_WHOLE, tokens=tokens + source.context).windows
    ids = [token for text in texts for token in text][:tokens]
    places = range(0, len(ids) - source.context + 1, source.context)
    return tuple(tuple(ids[at : at + source.context]) for at in places)


def _demo_windows(llm: LLM, source: Source) -> tuple[Window, ...]:
    """The held-out conversations with their answers, each by itself, sets and tasks mixed."""
    items = [item for number in heldout.SETS for item in heldout.read(number)]
    lines = [
        {"messages": [*item.messages, {"role": "assistant", "content": item.answer}]}
        for i in range(60)
        for item in items[i::60]
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "held-out.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        return read_texts(llm, file, context=source.context, tokens=source.measured).windows


def read(model: str) -> Model:
    """The model, whose keys and values are not what is measured."""
    return read_model(EngineSettings(model=model, kv_dtype="float32"), resolve_model(model))


def measure(model: Model, plan: Plan, texts: Texts, out: Path) -> tuple[Loss, float]:
    """What a plan loses, and the seconds that it took; the checkpoint is in ``out``."""
    began = time.monotonic()
    _, factory = choose_executor("auto", "cpu")
    loss = Quantizer(model, factory, out, plan, texts).run()
    return loss, time.monotonic() - began


def uniform(model: Model, method: Method, scheme: Scheme) -> Plan:
    """All linear layers alike."""
    return Plan(method, dict.fromkeys(linear_weights(model.program), scheme))


def mixed(model: Model, method: Method, texts: Texts, group: int, size: int) -> Plan:
    """What ``galley quantize --group GROUP --budget`` makes of so many bytes for the linear layers."""
    _, factory = choose_executor("auto", "cpu")
    windows = first_texts(texts.calibration, _PARTS_TOKENS)
    names, kinds = linear_weights(model.program), kinds_of(Scheme(4, group))
    asked = (model, factory, windows, names, kinds)
    parts = parts_of(*asked, method=method, calibration=texts.calibration[len(windows) :])
    return Plan(method, schemes_of(parts, assign(parts, most_bytes=size)))


def size_of(model: Model, plan: Plan) -> int:
    """Bytes of the integers and scales of the plan, and of the layers that stay as they are."""
    return sum(
        bytes_of(model, (name,), plan.schemes.get(name)) for name in linear_weights(model.program)
    )


def told(name: str, loss: Loss, bits: float, seconds: float) -> str:
    """A line for people."""
    more = loss.perplexity / loss.base_perplexity - 1
    return (
        f"{name}: {bits:.2f} bits a weight, perplexity {loss.base_perplexity:.4f} -> {loss.perplexity:.4f} "
        f"({more:+.2%}), KL {loss.kl:.3g}, 99 % {loss.kl_p99:.3g}, top-1 {loss.top1:.2%}, "
        f"{loss.tokens} tokens, {seconds:.0f} s"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Model, texts and scheme."""
    parser.add_argument("model", nargs="?", default="galley-demo")
    parser.add_argument("--group", type=int, default=128, help="columns that share a scale")
    parser.add_argument("--calibrate", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=28672, help="to calibrate with")
    parser.add_argument("--measured", type=int, default=4096, help="tokens to measure on")
    parser.add_argument("--name", default="galley-demo", help="of the model in the results")
    parser.add_argument("--results", type=machine_file)


def source_of(wanted: argparse.Namespace) -> Source:
    """Of the arguments."""
    return Source(wanted.calibrate, wanted.data, wanted.context, wanted.tokens, wanted.measured)


def main() -> None:
    """Measure all methods, and put the figures into a results file if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--mixed", action="store_true")
    wanted = parser.parse_args()
    model, source = read(wanted.model), source_of(wanted)
    texts = texts_of(wanted.model, source)
    losses: dict[str, Loss] = {}

    def run(name: str, plan: Plan) -> None:
        with tempfile.TemporaryDirectory() as folder:
            losses[name], seconds = measure(model, plan, texts, Path(folder) / "made")
        print(told(name, losses[name], bits_of(model, plan), seconds), flush=True)

    for method in _ROUNDED:
        run(method, uniform(model, method, Scheme(4, wanted.group)))
    what = f"{wanted.name}, int4 in groups of {wanted.group}"
    figures = figures_of(f"{what}, by method", losses, source, "benchmarks.quantize")
    if wanted.mixed:
        losses = {}
        finer = uniform(model, "gptq", Scheme(4, wanted.group // 2))
        run("groups of half the size", finer)
        run("mixed", mixed(model, "gptq", texts, wanted.group, size_of(model, finer)))
        command = "benchmarks.quantize --mixed"
        figures += figures_of(f"{what}, more bytes by gptq", losses, source, command)
    if wanted.results is not None:
        put(wanted.results, figures)


def bits_of(model: Model, plan: Plan) -> float:
    """Bits of a weight of the linear layers, scales included."""
    shapes = model.program.shapes
    weights = sum(shapes[n][0] * shapes[n][1] for n in linear_weights(model.program))
    return 8 * size_of(model, plan) / weights


def figures_of(what: str, losses: Mapping[str, Loss], source: Source, command: str) -> list[Figure]:
    """Perplexity, divergence and agreement by what was measured."""

    def figure(
        kind: str, unit: str, measured: Sequence[float], better: Literal["higher", "lower"]
    ) -> Figure:
        return Figure(
            what=f"{what}: {kind}",
            unit=unit,
            at=tuple(losses),
            measured=tuple(float(f"{value:.3g}") for value in measured),
            date=datetime.now(UTC).date().isoformat(),
            command=f"python -m {command}",
            better=better,
            remark=source.told(),
        )

    more = [100 * (loss.perplexity / loss.base_perplexity - 1) for loss in losses.values()]
    return [
        figure("perplexity, more than the base's", "%", more, "lower"),
        figure(
            "mean KL divergence from the base",
            "nats",
            [loss.kl for loss in losses.values()],
            "lower",
        ),
        figure(
            "same likeliest token", "%", [100 * loss.top1 for loss in losses.values()], "higher"
        ),
    ]


if __name__ == "__main__":
    main()

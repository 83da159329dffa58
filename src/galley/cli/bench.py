"""``galley bench``: the machine's peak rates, and the shares that engine and server reach."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from galley.cli.bench_serve import serve
from galley.cli.bench_voice import voice
from galley.cli.options import MODEL_HELP, Command, Flags, Group, start_logging, with_flags
from galley.cli.report import check_folders, json_option, write_json
from galley.cli.terminal import progress, table
from galley.errors import SettingsError
from galley.settings.engine import EngineSettings

if TYPE_CHECKING:
    from galley.bench.report import Machine, Point, Spread

_MEMORY_MIB: Final = 1024
_SAMPLE_MIB: Final = 256  # a sample of the read rate around each repeat

# Equal prefixes are computed each time: the measurement is of whole prompts.
_SETTINGS: Final = (
    "log_level",
    *(f.name for f in dataclasses.fields(EngineSettings) if f.name != "prefix_cache"),
)


def _count(
    *names: str, default: int | None, help: str, least: int = 1
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    kind = click.IntRange(min=least)
    return click.option(*names, type=kind, default=default, show_default=True, help=help)


@click.group("bench", cls=Group)
def bench_group() -> None:
    """Measure speed. The machine should be idle."""


bench_group.add_command(serve)
bench_group.add_command(voice)


@bench_group.command(cls=Command)
@_count("--threads", default=None, help="default: the cores this process may use")
@_count(
    "--memory-mib",
    default=_MEMORY_MIB,
    help="memory read to measure the bandwidth; should be far larger than the CPU's caches",
)
@_count("--repeats", default=7, help="measurements of each figure")
@json_option
def machine(threads: int | None, memory_mib: int, repeats: int, json_file: Path | None) -> None:
    """Measure memory bandwidth and matrix product rates, which bound every model on this machine."""
    check_folders(json=json_file)
    measured = _measure(threads, memory_mib, repeats)
    _print_machine(measured)
    write_json(json_file, {"machine": measured})


@bench_group.command(cls=Command)
@with_flags(_SETTINGS)
@click.argument("model", required=False, help=MODEL_HELP)
@_count("--prompt", default=512, help="prompt tokens of the prefill measurement")
@_count("--decode", default=64, help="decode steps of each measurement")
@_count("--context", default=64, help="context tokens of each sequence while it decodes")
@click.option(
    "--batch",
    metavar="N,N,...",
    default="1,4,8,16,32",
    show_default=True,
    help="batch sizes: how many sequences decode together",
)
@_count("--repeats", default=5, help="measurements of each figure")
@_count("--seed", default=0, least=0, help="seed of the random prompts")
@json_option
def engine(
    flags: Flags,
    model: str | None,
    prompt: int,
    decode: int,
    context: int,
    batch: str,
    repeats: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Measure prefill and decode speed at each batch size, and compare them with the machine's limits.

    Prompts are random, decoding is greedy and ignores end tokens, and the prefix cache is off.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    check_folders(json=json_file)
    from galley.bench.engine import Workload, bench_engine
    from galley.bench.machine import read_rate

    workload = Workload(
        prompt=prompt,
        decode=decode,
        context=context,
        batches=_sizes(batch),
        repeats=repeats,
        seed=seed,
    )
    _check_generates(settings)
    measured = _measure(settings.threads, _MEMORY_MIB, repeats)
    with progress("load", workload.runs) as bar:

        def on_phase(name: str) -> None:
            bar.label = name
            bar.update(1)

        def read_now() -> float:
            return read_rate(settings.threads, _SAMPLE_MIB << 20)

        info, points = bench_engine(settings, workload, measured, read_now, on_phase)
    _print_machine(measured)
    _print_points(points)
    used = {f.name: getattr(settings, f.name) for f in dataclasses.fields(EngineSettings)}
    page = {
        "machine": measured,
        "model": info,
        "settings": used | {"prefix_cache": False},
        "workload": workload,
        "points": points,
    }
    write_json(json_file, page)


def _check_generates(settings: EngineSettings) -> None:
    """Raise SettingsError for a model that makes vectors or scores of whole texts."""
    from galley.formats.source import resolve_model
    from galley.models.vector_models import makes_vectors

    folder = resolve_model(settings.model, revision=settings.revision)
    if makes_vectors(folder):
        name = settings.model or folder.name
        raise SettingsError(
            f"{name} returns vectors or scores of whole texts, so there is no prefill or decoding to "
            f"measure. `galley graph {name}` times a text of 64 tokens; `python -m benchmarks.embeddings`, "
            "in Galley's source tree, measures texts per second with the shapes of published models"
        )


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise SettingsError(f"--batch is {text!r}, expected whole numbers: 1,4,8")
    return tuple(map(int, parts))


@bench_group.command("speak", cls=Command)
@with_flags(EngineSettings)
@click.argument("model", required=True, help="the .onnx file of a voice")
@click.option("--text", default="", help="sentence to speak; default: one of twenty words")
@_count("--repeats", default=7, help="measurements of each figure")
@json_option
def speak(flags: Flags, model: str, text: str, repeats: int, json_file: Path | None) -> None:
    """Measure how soon a voice begins to speak a sentence, and its real-time factor."""
    settings = flags.settings(model=model)
    start_logging(settings)
    check_folders(json=json_file)
    from galley.bench.speech_out import SENTENCE, bench_speech_out
    from galley.llm.speaker import Speaker

    with Speaker(settings) as speaker:
        found = bench_speech_out(speaker, text or SENTENCE, repeats)
    first, factor, audio = found.first_audio_seconds, found.real_time_factor, found.audio_seconds
    rows = [
        ("first audio, ms", *_figures(first, 1e-3)),
        ("audio, s", *_figures(audio, 1)),
        ("real-time factor", f"{factor.median:.3f}", f"{factor.low:.3f} to {factor.high:.3f}"),
    ]
    print(table((f"a sentence of {found.words} words", "median", "lowest to highest"), rows))
    write_json(json_file, {"speech": found})


def _measure(threads: int | None, memory_mib: int, repeats: int) -> "Machine":
    from galley.ops.choice import executor_factory

    executor_factory("cpu")  # raises an error with the remedy if there is no native module
    from galley.bench.machine import PHASES, measure_machine
    from galley.ops.isa import naming

    with progress("machine", PHASES) as bar, naming(threads):
        return measure_machine(
            threads=threads,
            memory_bytes=memory_mib << 20,
            repeats=repeats,
            on_phase=lambda: bar.update(1),
        )


def _print_machine(m: "Machine") -> None:
    rows = [
        (f"read, {name} pages, GB/s", *_figures(rate, 1e9))
        for name, rate in (("huge", m.read_huge), ("small", m.read_small))
    ]
    rows += [
        (f"multiply {kind}, GOPS", *_figures(rate, 1e9)) for kind, rate in m.operations.items()
    ]
    caches = ", ".join(f"L{c.level} {c.type} {c.bytes >> 10} KiB" for c in m.caches)
    print(f"{m.cpu}, {m.cores} cores, {m.threads} threads, {m.isa}")
    print(caches or "caches unknown")
    print(table(("machine", "median", "lowest to highest"), rows))


def _print_points(points: "Sequence[Point]") -> None:
    header = ("work", "tokens/s", "lowest to highest", "ms a step", "Python", "GB/s", "GOPS")
    rows = [
        (
            f"prefill {p.tokens}" if p.work == "prefill" else f"decode, {p.batch} at once",
            *_figures(p.tokens_per_s, 1),
            f"{p.step_ms.median:.2f}",
            f"{p.python_ms.median:.2f}",
            f"{p.bytes_per_s.median / 1e9:.1f} ({p.read_share.median:.0%})",
            f"{p.operations_per_s.median / 1e9:.0f} ({p.operation_share:.0%})",
        )
        for p in points
    ]
    print(table(header, rows))


def _figures(spread: "Spread", unit: float) -> tuple[str, str]:
    median, low, high = (f"{v / unit:.1f}" for v in (spread.median, spread.low, spread.high))
    return median, f"{low} to {high}"

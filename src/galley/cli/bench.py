"""``galley bench``: what the machine can do, and what the engine makes of it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from galley.cli.options import EPILOG, MODEL_HELP, Flags, start_logging, with_flags
from galley.config import EngineSettings
from galley.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress

    from galley.bench.report import Machine, Point, Spread

_MEMORY_MIB: Final = 1024

# Equal prefixes are computed each time: a prompt is what is measured.
_SETTINGS: Final = (
    "log_level",
    *(f.name for f in dataclasses.fields(EngineSettings) if f.name != "prefix_cache"),
)

JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="write all figures to FILE, too")
]
bench_app = typer.Typer(help="Measure speed, on a machine that is idle.", no_args_is_help=True)


@bench_app.command()
def machine(
    threads: Annotated[
        int | None, typer.Option(min=1, help="default: the cores this process may use")
    ] = None,
    memory_mib: Annotated[
        int, typer.Option(min=1, help="streamed for the read rate; far more than the caches hold")
    ] = _MEMORY_MIB,
    repeats: Annotated[int, typer.Option(min=1, help="samples of each figure")] = 7,
    json_file: JsonOption = None,
) -> None:
    """How fast memory is read and products are computed: what bounds every model on this machine."""
    _check_folder(json_file)
    with _progress() as progress:
        measured = _measure(progress, threads, memory_mib, repeats)
    _print_machine(measured)
    _write(json_file, {"machine": measured})


@bench_app.command(epilog=EPILOG)
@with_flags(_SETTINGS)
def engine(
    flags: Flags,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL_HELP)] = None,
    prompt: Annotated[int, typer.Option(min=1, help="tokens of the prompt for prefill")] = 512,
    decode: Annotated[int, typer.Option(min=1, help="decode steps of a repeat")] = 64,
    context_tokens: Annotated[
        int, typer.Option("--context", min=1, help="tokens of a sequence when it decodes")
    ] = 64,
    batch: Annotated[
        str, typer.Option(metavar="N,N,...", help="sequences that decode together")
    ] = "1,4,8,16,32",
    repeats: Annotated[int, typer.Option(min=1, help="samples of each figure")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="of the random prompts")] = 0,
    json_file: JsonOption = None,
) -> None:
    """Prefill and decode speed at each batch size, and its share of what the machine can do.

    Prompts are random, decoding is greedy and stops nowhere, the prefix cache is off.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    _check_folder(json_file)
    from galley.bench.engine import Workload, bench_engine

    workload = Workload(
        prompt=prompt,
        decode=decode,
        context=context_tokens,
        batches=_sizes(batch),
        repeats=repeats,
        seed=seed,
    )
    with _progress() as progress:
        measured = _measure(progress, settings.threads, _MEMORY_MIB, repeats)
        bar = progress.add_task("load", total=workload.runs)
        info, points = bench_engine(
            settings,
            workload,
            measured,
            lambda name: progress.update(bar, advance=1, description=name),
        )
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
    _write(json_file, page)


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise SettingsError(f"--batch is {text!r}, expected whole numbers: 1,4,8")
    return tuple(map(int, parts))


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = [*Progress.get_default_columns(), MofNCompleteColumn()]
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _measure(progress: "Progress", threads: int | None, memory_mib: int, repeats: int) -> "Machine":
    from galley.ops.executor import executor_factory

    executor_factory("cpu")  # says what to do where there is no native module
    from galley.bench.machine import PHASES, measure_machine

    bar = progress.add_task("machine", total=PHASES)
    return measure_machine(
        threads=threads,
        memory_bytes=memory_mib << 20,
        repeats=repeats,
        on_phase=lambda: progress.advance(bar),
    )


def _print_machine(m: "Machine") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("machine", "median", "lowest to highest")
    for name, rate in (("huge", m.read_huge), ("small", m.read_small)):
        table.add_row(f"read, {name} pages, GB/s", *_figures(rate, 1e9))
    for kind, rate in m.operations.items():
        table.add_row(f"multiply {kind}, GOPS", *_figures(rate, 1e9))
    console = Console()
    caches = ", ".join(f"L{c.level} {c.type} {c.bytes >> 10} KiB" for c in m.caches)
    console.print(f"{m.cpu}, {m.cores} cores, {m.threads} threads, {m.isa}", highlight=False)
    console.print(caches or "caches unknown", highlight=False)
    console.print(table)


def _print_points(points: "Sequence[Point]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("work", "tokens/s", "lowest to highest", "ms a step", "Python", "GB/s", "GOPS")
    for p in points:
        table.add_row(
            f"prefill {p.tokens}" if p.work == "prefill" else f"decode, {p.batch} at once",
            *_figures(p.tokens_per_s, 1),
            f"{p.step_ms.median:.2f}",
            f"{p.python_ms.median:.2f}",
            f"{p.bytes_per_s.median / 1e9:.1f} ({p.read_share:.0%})",
            f"{p.operations_per_s.median / 1e9:.0f} ({p.operation_share:.0%})",
        )
    Console().print(table)


def _figures(spread: "Spread", unit: float) -> tuple[str, str]:
    median, low, high = (f"{v / unit:.1f}" for v in (spread.median, spread.low, spread.high))
    return median, f"{low} to {high}"


def _check_folder(json_file: Path | None) -> None:
    """Before minutes of work."""
    if json_file is not None and not json_file.parent.is_dir():
        raise SettingsError(f"--json {json_file}: the folder {json_file.parent} does not exist")


def _write(json_file: Path | None, page: dict[str, Any]) -> None:
    if json_file is None:
        return
    import msgspec

    json_file.write_bytes(msgspec.json.format(msgspec.json.encode(page), indent=2) + b"\n")

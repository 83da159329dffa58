"""``galley lab``: claims about inference, each measured on this machine."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from galley.cli.cpu_only import require_cpu
from galley.cli.options import Command, Flags, start_logging, with_flags
from galley.cli.report import check_folders, write_text
from galley.cli.terminal import progress, table
from galley.errors import SettingsError
from galley.formats.source import BUNDLED_SPEECH

if TYPE_CHECKING:
    from galley.lab.bench import Lab
    from galley.lab.experiment import Experiment
    from galley.lab.run import Results
    from galley.settings.config import Settings

_READ_BYTES: Final = 256 << 20
_PATH: Final = click.Path(path_type=Path)


@click.command(
    cls=Command,
    examples=("galley lab --quick", "galley lab batching prefix-cache --output batching.html"),
)
@with_flags(("model", "draft_model", "revision", "threads", "log_level"), model=True)
@click.argument("experiments", nargs=-1, metavar="[EXPERIMENT]...")
@click.option("--list", "listed", is_flag=True, help="show the experiments, and measure nothing")
@click.option("--quick", is_flag=True, help="fewer repeats and smaller loads: minutes for all")
@click.option(
    "--output",
    metavar="FILE",
    type=_PATH,
    default=Path("galley-lab.html"),
    show_default=True,
    help="file for the page",
)
@click.option(
    "--results",
    "results_file",
    metavar="FILE",
    type=_PATH,
    default=Path("galley-lab.json"),
    show_default=True,
    help="file of figures, from which an interrupted run continues",
)
@click.option(
    "--speech-model",
    metavar="MODEL",
    default=BUNDLED_SPEECH,
    show_default=True,
    help="for the experiments on speech",
)
@click.option(
    "--recordings",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='for the experiments on speech: JSON lines {"audio": "call.wav", "text": "what is said"}; '
    "default: a bundled call",
)
@click.option("--again", is_flag=True, help="measure again what the file of results already has")
def lab(
    flags: Flags,
    experiments: tuple[str, ...],
    listed: bool,
    quick: bool,
    output: Path,
    results_file: Path,
    speech_model: str,
    recordings: Path | None,
    again: bool,
) -> None:
    """Measure on this machine what people claim about inference.

    Each EXPERIMENT (default: all) has a claim with its source, a prediction from the measured limits of the
    machine, a figure, a picture, and a verdict that says so where the figure contradicts the claim. The
    machine should be idle.
    """
    from galley.lab.registry import EXPERIMENTS, experiment_of
    from galley.settings.engine import EngineSettings

    chosen = [experiment_of(name) for name in dict.fromkeys(experiments)] or [*EXPERIMENTS.values()]
    if listed:
        click.echo(table(("experiment", "title"), [(e.name, e.title) for e in chosen], left=(0, 1)))
        return
    settings = flags.settings()
    start_logging(settings)
    require_cpu(settings, "galley lab")
    check_folders(output=output, results=results_file)
    speech = (speech_model, recordings)
    results = _results(results_file, settings, quick, speech)
    if again:
        for one in chosen:
            results.outcomes.pop(one.name, None)
    from galley.lab.bench import Lab

    engine = {f.name: getattr(settings, f.name) for f in dataclasses.fields(EngineSettings)}
    lab = Lab(EngineSettings(**engine), quick, results.peaks, *speech)
    _run(chosen, lab, results, results_file)
    _report(chosen, results)
    from galley.lab.page import page

    # The page has everything that the file of results has, not only what ran now.
    known = [one for one in EXPERIMENTS.values() if one.name in results.outcomes]
    write_text(output, page(known, results))


def _results(
    file: Path, settings: "Settings", quick: bool, speech: tuple[str, Path | None]
) -> "Results":
    from galley.bench.machine import PHASES, measure_machine
    from galley.lab.run import BUNDLED_CALL, Results, read_results
    from galley.machine import cpu_and_cores
    from galley.ops.isa import naming
    from galley.settings.engine import changed_settings

    other = changed_settings(settings)
    for name in ("model", "threads"):
        other.pop(name, None)
    conditions = {
        "model": settings.model or "galley-demo",
        "machine": cpu_and_cores(),
        "threads": str(settings.threads or "all cores"),
        "other settings": json.dumps(other) if other else "defaults",
        "run": "quick" if quick else "full",
        "speech": speech[0],
        "recordings": str(speech[1].resolve()) if speech[1] else BUNDLED_CALL,
    }
    found = read_results(file, conditions)
    if found is not None:
        return found
    with progress("machine", PHASES) as bar, naming(settings.threads):
        peaks = measure_machine(
            threads=settings.threads,
            memory_bytes=_READ_BYTES >> (2 if quick else 0),
            seconds=0.05 if quick else 0.2,
            repeats=3,
            on_phase=lambda: bar.update(1),
        )
    return Results(conditions=conditions, peaks=peaks)


def _run(chosen: "Sequence[Experiment]", lab: "Lab", results: "Results", file: Path) -> None:
    from galley.lab.run import run_experiments

    with progress("lab", len(chosen)) as bar:

        def on_begin(name: str) -> None:
            bar.label = name
            bar.update(0)

        run_experiments(
            [one.name for one in chosen],
            lab,
            results,
            file=file,
            on_begin=on_begin,
            on_end=lambda name: bar.update(1),
        )


def _report(chosen: "Sequence[Experiment]", results: "Results") -> None:
    from galley.lab.page import summary

    rows = summary(chosen, results.outcomes)
    click.echo(
        table(("experiment", "confirmed by", "predicted", "measured", "verdict"), rows, left=(0, 4))
    )
    if not any(results.outcomes[one.name].finding for one in chosen):
        raise SettingsError("no experiment could be run; the table has the reasons")

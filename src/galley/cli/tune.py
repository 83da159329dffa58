"""``galley tune``: the cheapest settings that keep a goal on recorded traffic."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.cpu_only import require_cpu
from galley.cli.options import ABOVE_ZERO, MODEL_HELP, Command, Flags, start_logging, with_flags
from galley.cli.report import check_folders, write_text
from galley.cli.terminal import progress, table

if TYPE_CHECKING:
    from galley.settings.engine import EngineSettings
    from galley.traffic.trace import Turn
    from galley.tune.goal import Limit
    from galley.tune.job import Job
    from galley.tune.trials import Trial

_PATH: Final = click.Path(path_type=Path)


@click.command(
    cls=Command,
    examples=(
        "galley tune org/name --slo 'ttft p95 < 500ms, tpot p95 < 60ms' --trace traffic",
        "galley tune org/name --slo 'ttft p95 < 1s' --trace traffic --try threads=4,8",
    ),
)
@with_flags(("revision", "log_level"))
@click.argument("model", required=False, help=MODEL_HELP)
@click.option("--slo", required=True, help="the goal: 'ttft p95 < 500ms, tpot p95 < 60ms'")
@click.option(
    "--trace",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    help="the folder of galley serve --record, or a JSONL file that galley replay reads",
)
@click.option(
    "--speed", type=ABOVE_ZERO, default=1.0, show_default=True, help="times as fast as recorded"
)
@click.option(
    "--requests", type=click.IntRange(min=1), help="use only this many, from the start of the trace"
)
@click.option(
    "--texts",
    metavar="KEYFILE",
    type=_PATH,
    help="send the recorded prompts, which record_texts encrypted with this key; default: synthetic ones",
)
@click.option(
    "--try",
    "tried",
    multiple=True,
    metavar="SETTING=V,V",
    help="values of a setting to try: weight_dtype, kv_dtype, max_batch_tokens, max_running, threads, "
    "replicas, speculation; repeat for several",
)
@click.option(
    "--candidates",
    type=click.IntRange(min=1),
    default=9,
    show_default=True,
    help="most combinations to measure in the first round; it ends earlier if no other may be cheaper",
)
@click.option(
    "--quality-gate",
    "gate",
    help="leave out types that lose more; default: kl=0.02,top1=0.97; empty: keep all",
)
@click.option(
    "--data", type=_PATH, metavar="FILE", help="texts for the loss; default: the model's own"
)
@click.option(
    "--price-per-hour", type=ABOVE_ZERO, help="price of the machine in dollars, to compute the cost"
)
@click.option(
    "--results",
    "results_file",
    type=_PATH,
    metavar="FILE",
    default=Path("galley-tune.json"),
    show_default=True,
    help="file of figures, from which an interrupted run continues",
)
@click.option(
    "--output",
    type=_PATH,
    metavar="FILE",
    default=Path("galley.yaml"),
    show_default=True,
    help="file for the settings; an existing one is not replaced",
)
@click.option(
    "--html",
    "html_file",
    type=_PATH,
    metavar="FILE",
    default=Path("galley-tune.html"),
    show_default=True,
    help="page with all trials",
)
def tune(flags: Flags, model: str | None, **options: Any) -> None:
    """Find the cheapest settings of a model that keep a goal on recorded traffic.

    All combinations of the values to try are predicted as in galley plan. Those that may be the best, by
    the predictions and by what was measured before, serve a ninth of the trace, the best third of these a
    third of it, and the best third of these all of it. Cost is the CPU time of the server's processes. The
    machine should be idle.
    """
    settings = flags.settings(model=model)
    start_logging(settings)
    require_cpu(settings, "galley tune")
    output, html_file = options["output"], options["html_file"]
    check_folders(results=options["results_file"], output=output, html=html_file)
    from galley.errors import SettingsError
    from galley.settings.engine import EngineSettings
    from galley.traffic.trace import read_trace
    from galley.tune.goal import parse_goal

    if output.exists():
        raise SettingsError(f"--output {output} exists; name another file, or remove it")
    goal = parse_goal(options["slo"])
    turns = read_trace(options["trace"])[: options["requests"]]
    own = {f.name: getattr(settings, f.name) for f in dataclasses.fields(EngineSettings)}
    job = _job(EngineSettings(**own), goal, turns, options)
    best = _search(job, options["candidates"])
    _report(job, best, options)


def _job(
    settings: "EngineSettings",
    goal: "list[Limit]",
    turns: "list[Turn]",
    options: dict[str, Any],
) -> "Job":
    from galley.bench.machine import PHASES
    from galley.bench.serve.replay import RecordedTexts
    from galley.quality.verdict import LIMITS
    from galley.settings.quality_gate import QualityGate
    from galley.traffic.texts import TextCipher
    from galley.tune.job import Job, Wanted

    recorded = None
    if options["texts"] is not None:
        recorded = RecordedTexts(turns, TextCipher(options["texts"], "--texts"))
    gate = options["gate"]
    with progress("machine and losses", PHASES) as bar:
        wanted = Wanted(
            settings=settings,
            goal=goal,
            turns=turns,
            trace=str(options["trace"]),
            speed=options["speed"],
            tried=options["tried"],
            gate=LIMITS if gate is None else QualityGate.parse(gate),
            data=options["data"],
            recorded=recorded,
        )
        return Job.prepare(wanted, options["results_file"], lambda: bar.update(1))


def _search(job: "Job", most: int) -> "Trial":
    from galley.tune.advice import figures

    rows: list[tuple[str, ...]] = []

    def on_trial(trial: "Trial") -> None:
        rows.append((str(trial.candidate), str(trial.turns), figures(trial, job.wanted.goal)))

    count = min(most, len(job.tuning.considered))
    with progress("tune", job.size(count)) as bar:
        best = job.search(count, on_end=lambda: bar.update(1), on_trial=on_trial)
    click.echo(table(("candidate", "requests", "measured"), rows, left=(0, 2)))
    return best


def _report(job: "Job", best: "Trial", options: dict[str, Any]) -> None:
    from galley.errors import EngineError
    from galley.machine import available_cores
    from galley.tune.advice import Prices, figures, settings_file, what_it_takes
    from galley.tune.forecast import Traffic
    from galley.tune.page import page

    if best.problem:
        raise EngineError(f"no candidate could be measured; {best.candidate}: {best.problem}")
    prices = Prices(options["price_per_hour"], available_cores())
    takes: list[str] = []
    if best.factor(job.wanted.goal) > 1:
        traffic = Traffic.of(job.wanted.turns, options["speed"])
        takes = what_it_takes(best, job.wanted.goal, job.model, job.tuning.peaks, traffic)
        click.echo("The goal is not met. " + " ".join(takes))
    else:
        click.echo(
            f"Best: {best.candidate}: {figures(best, job.wanted.goal)}, {prices.text(best.cost)}"
        )
    text = settings_file(job.wanted.settings, job.tuning, best, job.wanted.goal, prices)
    write_text(options["html_file"], page(job.tuning, best, job.wanted.goal, prices, text, takes))
    write_text(options["output"], text)

"""``galley plan cluster``: how many replicas some traffic needs, by simulation."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import ABOVE_ZERO, MODEL_HELP, Choice, Command, Flags, with_flags
from galley.cli.planned import (
    is_of_whole_texts,
    kv_dtype_of,
    limits,
    plan_options,
    read_program,
)
from galley.cli.report import check_folders, write_json, write_text
from galley.cli.terminal import table
from galley.errors import SettingsError
from galley.types.weight_dtypes import SPELLINGS, WEIGHT_DTYPES

if TYPE_CHECKING:
    from galley.plan.cluster.answer import Target
    from galley.plan.cluster.compare import Answer, Query
    from galley.plan.cluster.engine import Engine
    from galley.plan.cluster.scalers import Bounds
    from galley.plan.cluster.simulate import Outcome
    from galley.plan.cluster.traffic import Traffic
    from galley.settings.config import Settings

_COUNT: Final = click.IntRange(min=1)
_PATH: Final = click.Path(path_type=Path)
_QUANTILES: Final = ("p50", "p90", "p95", "p99")
_ROUTERS: Final = ("galley", "round-robin", "power-of-two", "affinity")
_SCALERS: Final = ("galley", "ray-requests", "hpa-requests", "hpa-first-token")
_DRAWN: Final = (
    "rate",
    "peak",
    "period",
    "seconds",
    "prompt",
    "output",
    "prefixes",
    "prefix_tokens",
    "seed",
)
_LENGTHS: Final = "512, 64-256, normal:512,128 (mean, deviation) or lognormal:256,0.8"


@click.command(
    "cluster",
    cls=Command,
    examples=(
        "galley plan cluster org/name --machine L4 --rate 20 --ttft 1 --tpot 0.05",
        "galley plan cluster org/name --machine L4 --machine H100 --trace record --ttft 1 --lose 2",
        "galley plan cluster org/name --machine L4 --rate 9 --prefixes 8 --prefix-tokens 900 --replicas 6",
        "galley plan cluster org/name --machine L4 --rate 2 --peak 20 --scaler galley --ttft 1",
    ),
)
@with_flags(("revision", "kv_dtype", "max_running", "max_batch_tokens"))
@click.argument("model", required=False, help=f"{MODEL_HELP}. A config.json is enough")
@click.option(
    "--machine",
    "names",
    metavar="NAME",
    multiple=True,
    required=True,
    help="machine of each replica, such as L4; repeat to compare several",
)
@plan_options
@click.option(
    "--weight-dtype",
    "precision",
    type=Choice(tuple(WEIGHT_DTYPES), SPELLINGS),
    default="bf16",
    show_default=True,
    help="weight type",
)
@click.option(
    "--measured",
    metavar="FILE",
    type=_PATH,
    multiple=True,
    help="calibrate on one replica: the JSON of galley bench serve --concurrency, on that --machine; "
    "repeat with short and long prompts",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, path_type=Path),
    help="traffic: the folder of galley serve --record, or a JSONL file of Mooncake, AIPerf or GuideLLM",
)
@click.option("--speed", type=ABOVE_ZERO, help="with --trace: times as fast as recorded")
@click.option(
    "--unit",
    type=click.Choice(["auto", "ms", "s"]),
    help="with --trace: unit of its times; auto, the default: ms if it has hash_ids or session_id, else s",
)
@click.option("--rate", type=ABOVE_ZERO, help="traffic: requests a second, Poisson arrivals")
@click.option(
    "--peak",
    type=ABOVE_ZERO,
    help="with --rate: the rate rises to this and falls again, as a cosine",
)
@click.option(
    "--period",
    type=ABOVE_ZERO,
    help="with --peak: seconds from one trough to the next; default: 300",
)
@click.option("--seconds", type=ABOVE_ZERO, help="with --rate: how long; default: 300")
@click.option("--prompt", metavar="LENGTHS", help=f"with --rate: {_LENGTHS}; default: 512")
@click.option("--output", metavar="LENGTHS", help="with --rate: as --prompt; default: 128")
@click.option("--prefixes", type=_COUNT, help="with --rate: how many prefixes prompts share")
@click.option(
    "--prefix-tokens", type=_COUNT, help="with --prefixes: tokens of each, in addition to --prompt"
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="with --rate: of the random numbers; default: 0"
)
@click.option(
    "--quantile",
    type=click.Choice(_QUANTILES),
    default="p95",
    show_default=True,
    help="quantile of all requests that has to meet the goal",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1000),
    help="simulate this many; default: the fewest that meet the goal",
)
@click.option(
    "--router",
    "routers",
    type=click.Choice(_ROUTERS),
    multiple=True,
    help="galley is the one of galley serve; repeat to compare several; default: all, or galley with "
    "--scaler",
)
@click.option(
    "--scaler",
    "scalers",
    type=click.Choice(_SCALERS),
    multiple=True,
    help="autoscaler that changes the number of replicas, from --replicas (default: 1) up to "
    "--most-replicas; galley is the one of galley cluster, which aims at --ttft (default: 2) as "
    "hpa-first-token does; repeat to compare several",
)
@click.option(
    "--most-replicas",
    type=click.IntRange(1, 1000),
    help="with --scaler: the most replicas; default: 100",
)
@click.option(
    "--start-seconds",
    type=ABOVE_ZERO,
    help="with --scaler: seconds until a new replica serves; default: 60",
)
@click.option(
    "--lose",
    type=click.IntRange(1, 999),
    help="replicas (of a node or a zone) lost after half of the requests; the goal has to be met even so",
)
@click.option(
    "--json", "json_file", metavar="FILE", type=_PATH, help="also write all figures to FILE"
)
@click.option("--html", "html_file", metavar="FILE", type=_PATH, help="write a report with charts")
def plan_cluster(flags: Flags, model: str | None, **options: Any) -> None:
    """Simulate replicas of a model, and find how many some traffic needs.

    Replicas are simulated request by request, with the router of galley serve and three others. Times of
    steps are those of galley plan: a roofline of the machine, or of a measured replica (--measured). The
    traffic is a trace, or drawn from distributions (--rate). --scaler changes the number of replicas on
    the way, as autoscalers do.
    """
    json_file, html_file = options["json_file"], options["html_file"]
    check_folders(json=json_file, html=html_file)
    settings = flags.settings(model=model)
    from galley.bench.cluster_page import page
    from galley.plan.cluster.compare import answer

    query = _query(options)
    engines = _engines(settings, options)
    traffic = _trace(options) if options["trace"] is not None else _drawn(options)
    answers = []
    for engine in engines:
        for router in options["routers"] or (("galley",) if query.bounds else _ROUTERS):
            for scaler in options["scalers"] or ("",):
                what = " ".join(filter(None, (engine.machine.name + ",", router, scaler)))
                click.echo(f"simulating {what}", err=True)
                answers.append(answer(engine, router, traffic, query, scaler))
    facts = _facts(settings, options, traffic)
    _print_answers(answers, query)
    write_json(json_file, {"traffic": facts, "goal": query.target, "answers": answers})
    write_text(html_file, page(answers, query, facts) if html_file is not None else "")


def _query(options: dict[str, Any]) -> "Query":
    """Return the goal and the counts.

    Raises:
        SettingsError: there is neither a goal nor a count, or all replicas would be lost.
    """
    from galley.plan.cluster.answer import Target
    from galley.plan.cluster.compare import Query

    goal = limits(options)
    replicas, lose = options["replicas"], options["lose"] or 0
    bounds = _bounds(options, goal.get("ttft"))
    if replicas is None and not goal and bounds is None:
        raise SettingsError(
            "the number of replicas is not determined: give a goal (--ttft, --tpot), or --replicas"
        )
    least = replicas if bounds is None else bounds.least
    if least is not None and lose >= least:
        raise SettingsError(f"--lose {lose} of --replicas {least} leaves none; lose fewer")
    return Query(Target(**goal, quantile=options["quantile"]), replicas, lose, bounds)


def _bounds(options: dict[str, Any], ttft: float | None) -> "Bounds | None":
    """Return the bounds of autoscalers; None if there are none.

    Raises:
        SettingsError: their options are given without one, or contradict each other.
    """
    from galley.plan.cluster.scalers import Bounds

    if not options["scalers"]:
        _refuse(options, ("most_replicas", "start_seconds"), "there is no --scaler; leave out")
        return None
    least, most = options["replicas"] or 1, options["most_replicas"] or 100
    if most < least:
        raise SettingsError(f"--most-replicas {most} is less than --replicas {least}")
    return Bounds(least, most, options["start_seconds"] or 60.0, ttft or 2.0)


def _engines(settings: "Settings", options: dict[str, Any]) -> "list[Engine]":
    from galley.plan.cluster.engine import Engine
    from galley.plan.hardware import TABLE, choose_machines, read_machines
    from galley.plan.sizes import ModelSizes

    machines = read_machines(options["hardware"] or TABLE)
    machines = choose_machines(machines, options["names"], options["gpus"])
    config, fields, program = read_program(settings)
    whole_texts = is_of_whole_texts(config, fields)
    if program.encoder is not None or not program.kv or whole_texts:
        raise SettingsError(f"{config}: galley plan cluster is for models that generate text")
    sizes = ModelSizes.of(program, options["precision"], kv_dtype_of(settings))
    for machine in machines:
        if machine.executor(gpu=sizes.gpu_kernels) is None:
            click.echo(f"{machine.name}: Galley has no executor for it yet", err=True)
    seats, tokens = settings.running_limit, settings.max_batch_tokens
    engines = [Engine.of(sizes, machine, seats, tokens) for machine in machines]
    if options["measured"]:
        engines = [_calibrated(engines, options["measured"])]
    return engines


def _calibrated(engines: "Sequence[Engine]", files: Sequence[Path]) -> "Engine":
    """Return the engine with the times of a measured replica.

    Raises:
        SettingsError: there are several machines, or a file has no use for this.
    """
    from galley.bench.cluster_measured import measured_points
    from galley.plan.cluster.calibrate import calibrate

    if len(engines) > 1:
        raise SettingsError("--measured is for the machine that was measured; give one --machine")
    runs = [run for file in files for run in measured_points(file)]
    engine = calibrate(engines[0], runs)
    click.echo(
        f"measured: decoding takes {engine.decode_factor:.2f} times as long as by the roofline, prompts "
        f"{engine.prompt_factor:.2f} times; each request adds {1000 * engine.overhead:.1f} ms",
        err=True,
    )
    return engine


def _trace(options: dict[str, Any]) -> "Traffic":
    """Read the trace.

    Raises:
        SettingsError: options of drawn traffic are given, too, or the trace is wrong.
    """
    import dataclasses

    from galley.plan.cluster.traffic import Traffic
    from galley.traffic.trace import read_trace

    _refuse(options, _DRAWN, "--trace has requests of its own; leave out")
    speed = options["speed"] or 1.0
    turns = read_trace(options["trace"], options["unit"] or "auto")
    return Traffic(
        [dataclasses.replace(t, due=t.due / speed, pause=t.pause / speed) for t in turns]
    )


def _drawn(options: dict[str, Any]) -> "Traffic":
    """Draw the traffic.

    Raises:
        SettingsError: there is no rate, options of traces are given, or a distribution is wrong.
    """
    import numpy as np

    from galley.bench.serve.arrivals import poisson, waves
    from galley.bench.serve.lengths import Lengths
    from galley.plan.cluster.traffic import MOST_REQUESTS, synthetic

    _refuse(options, ("speed", "unit"), "there is no --trace; leave out")
    rate, seconds, prefixes = options["rate"], options["seconds"] or 300.0, options["prefixes"]
    peak, period = options["peak"], options["period"]
    if rate is None:
        raise SettingsError("there is no traffic: give --trace or --rate")
    if period is not None and peak is None:
        raise SettingsError("--period needs --peak; give both")
    if peak is not None and peak < rate:
        raise SettingsError(f"--peak {peak:g} is less than --rate {rate:g}")
    if (peak or rate) * seconds > MOST_REQUESTS:
        raise SettingsError(
            f"{peak or rate:g} requests a second for {seconds:g} s are {(peak or rate) * seconds:,.0f}; "
            f"a simulation takes {MOST_REQUESTS:,} at most"
        )
    if (prefixes is None) != (options["prefix_tokens"] is None):
        raise SettingsError("--prefixes and --prefix-tokens are given together, or neither")
    prompt = Lengths.parse(options["prompt"] or "512", "--prompt")
    output = Lengths.parse(options["output"] or "128", "--output")
    seed = options["seed"] or 0
    random = np.random.default_rng(seed)
    if peak is None:
        times = poisson(rate, seed=seed, seconds=seconds)
    else:
        times = waves(rate, peak, period=period or 300.0, seconds=seconds, seed=seed)
    return synthetic(
        times,
        lambda: prompt.draw(random),
        lambda: output.draw(random),
        prefix=None if prefixes is None else lambda: int(random.integers(prefixes)),
        prefix_tokens=options["prefix_tokens"] or 0,
    )


def _refuse(options: dict[str, Any], names: Sequence[str], why: str) -> None:
    for name in names:
        if options[name] is not None:
            raise SettingsError(f"{why} --{name.replace('_', '-')}")


def _facts(settings: "Settings", options: dict[str, Any], traffic: "Traffic") -> dict[str, str]:
    """Return what was simulated, in words."""
    peak = "" if options["peak"] is None else f" to {options['peak']:g}"
    source = (
        options["trace"]
        or f"{options['rate']:g}{peak} requests a second, seed {options['seed'] or 0}"
    )
    return {
        "model": f"{settings.model}, {options['precision']} weights",
        "traffic": f"{source}: {len(traffic):,} requests",
        "tokens": f"prompts of {traffic.mean_prompt:.0f}, answers of {traffic.mean_output:.0f} on average",
    }


def _print_answers(answers: "Sequence[Answer]", query: "Query") -> None:
    rows = [
        _row(outcome, query.target)
        for answer in answers
        for outcome in (answer.without_loss, answer.chosen)
        if outcome is not None
    ]
    header = (
        *("machine", "router", "scaler", "replicas", "mean", "lost"),
        *(f"TTFT {name.upper()}" for name in _QUANTILES),
        *(f"TPOT {name.upper()}" for name in _QUANTILES),
        *("cached", "tokens/s", "refused", "moved", "$/h", "goal"),
    )
    if rows:
        click.echo(table(header, rows, left=(0, 1, 2, len(header) - 1)))
        click.echo("TTFT in s, TPOT in ms, over all requests")
    from galley.plan.cluster.compare import sentences

    for line in sentences(answers, query):
        click.echo(line)


def _row(outcome: "Outcome", target: "Target") -> tuple[str, ...]:
    price = outcome.price_per_hour
    return (
        outcome.machine,
        outcome.router,
        outcome.scaler,
        str(outcome.replicas),
        f"{outcome.mean_replicas:.1f}",
        str(outcome.lost),
        *(f"{outcome.ttft_s[name]:.3f}" for name in _QUANTILES),
        *(f"{1e3 * outcome.tpot_s[name]:.1f}" for name in _QUANTILES),
        f"{outcome.cached_share:.0%}",
        f"{outcome.output_tokens_per_s:.0f}",
        str(outcome.refused),
        str(outcome.moved),
        "" if price is None else f"{price:.2f}",
        target.verdict(outcome),
    )

"""``galley plan``: the requirements of serving a model, on machines that need not be at hand."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from galley.cli.options import MODEL_HELP, Choice, CommandWithOthers, Flags, with_flags
from galley.cli.plan_cluster import plan_cluster
from galley.cli.plan_tables import print_choice, print_predictions, print_sizes
from galley.cli.planned import is_of_whole_texts, kv_dtype_of, limits, plan_options, read_program
from galley.cli.report import check_folders, write_json
from galley.cli.terminal import progress, table
from galley.errors import SettingsError
from galley.settings.config import Settings
from galley.types.weight_dtypes import COMPARED, RUNNABLE, SPELLINGS, WEIGHT_DTYPES

if TYPE_CHECKING:
    from galley.graph.program import Program
    from galley.plan.hardware import Machine
    from galley.plan.predict import Goal, Prediction
    from galley.plan.sizes import ModelSizes
    from galley.plan.steps import Load

_COUNT: Final = click.IntRange(min=1)
_PATH: Final = click.Path(path_type=Path)
_READ_BYTES: Final = 256 << 20
"""Bytes read at a time when the memory's bandwidth is measured."""


@click.command(
    cls=CommandWithOthers,
    examples=(
        "galley plan org/name --prompt 1000 --output 200 --concurrency 16 --ttft 2 --tpot 0.05",
        "galley plan config.json --weight-dtype fp8 --machine H100 --gpus 4",
        "galley plan org/name --measure --weight-dtype int4",
    ),
)
@with_flags(("revision", "kv_dtype", "threads", "experts", "expert_cache_bytes", "tensor_parallel"))
@click.argument("model", required=False, help=f"{MODEL_HELP}. A config.json is enough")
@click.option("--prompt", type=_COUNT, help="tokens of a prompt; default: 512, with --measure 128")
@click.option("--output", type=_COUNT, help="tokens of an answer; default: 128, with --measure 32")
@click.option(
    "--concurrency", type=_COUNT, help="concurrent requests; default: 8, with --measure 1, 8 and 32"
)
@click.option(
    "--weight-dtype",
    "--precision",
    "precisions",
    multiple=True,
    type=Choice(tuple(WEIGHT_DTYPES), SPELLINGS),
    help="weight type; repeat for several; default: bf16, int8 and int4",
)
@click.option(
    "--machine",
    "names",
    metavar="NAME",
    multiple=True,
    help="machine of the table, such as L4; repeat for several; default: all",
)
@plan_options
@click.option(
    "--measure",
    is_flag=True,
    help="run the model here for some minutes, and print predictions next to measurements",
)
@click.option("--json", "json_file", metavar="FILE", type=_PATH, help="also write the plan to FILE")
def plan(
    flags: Flags,
    model: str | None,
    precisions: tuple[str, ...],
    names: tuple[str, ...],
    gpus: int,
    hardware: Path | None,
    json_file: Path | None,
    measure: bool,
    **load_options: Any,
) -> None:
    """Predict memory, latency, throughput and cost of a model, from its config.json alone.

    Predicts how each machine of the table handles --concurrency requests, each started when another ends:
    how many concurrent requests meet the goal (--ttft, --tpot), which machine is the cheapest that does,
    and why the cheaper ones do not. The estimate is a roofline: a step reads its bytes at 80 % of the
    bandwidth, or computes at 60 % of the peak, whichever takes longer. --measure compares predictions with
    measurements on this machine instead, and needs the model's weights. --experts disk and
    --tensor-parallel compare machines without a GPU, which alone can leave experts on disk or divide a
    model among ranks. For embedding models and rerankers, the load is whole texts of --prompt tokens:
    latency is the time to a text's result, throughput counts tokens of texts.
    """
    check_folders(json=json_file)
    settings = flags.settings(model=model)
    from galley.models.whole_texts import over_whole_texts
    from galley.plan.hardware import TABLE, choose_machines, read_machines
    from galley.plan.predict import Goal

    machines = choose_machines(read_machines(hardware or TABLE), names, gpus)
    config, fields, program = read_program(settings)
    whole_texts = is_of_whole_texts(config, fields)
    if whole_texts:
        _check_whole_texts(settings, measure, load_options)
        program = over_whole_texts(program, program.shapes, all_rows=True)
    if program.encoder is not None:
        raise SettingsError(
            f"{config} is a speech model; galley plan supports language, embedding and reranking models"
        )
    chosen = precisions or COMPARED
    if measure:
        _check_measurable(chosen, names, gpus)
        if settings.experts == "disk":
            raise SettingsError(
                "--measure runs with all experts in memory; leave out --experts disk"
            )
        _measure(settings, program, chosen, load_options, json_file)
        return
    output, prompt = (0, min(512, program.max_positions)) if whole_texts else (128, 512)
    load = _load(program, load_options, prompt=prompt, output=output, concurrency=8)
    load = dataclasses.replace(load, expert_cache_bytes=settings.expert_cache_bytes)
    _plan(program, chosen, settings, load, machines, Goal(**limits(load_options)), json_file)


def _check_measurable(precisions: Sequence[str], names: Sequence[str], gpus: int) -> None:
    """Raise SettingsError for options that a measurement on this machine does not support."""
    for precision in precisions:
        if precision not in RUNNABLE:
            raise SettingsError(f"--measure: the native executor has no {precision} weights")
    if names or gpus != 1:
        raise SettingsError("--measure runs on this machine; leave out --machine and --gpus")


def _check_whole_texts(settings: Settings, measure: bool, load_options: Mapping[str, Any]) -> None:
    """Raise SettingsError, with the name, for options that only a generating model supports."""
    given = {
        "--measure": measure,
        "--output": load_options["output"],
        "--tpot": load_options["tpot"],
        "--experts disk": settings.experts == "disk",
    }
    for name, value in given.items():
        if value:
            raise SettingsError(
                f"{name} is for models that generate text; this one returns vectors or scores of whole "
                "texts. Leave it out"
            )


def _load(program: "Program", load_options: Mapping[str, Any], **defaults: int) -> "Load":
    """Return the requested load, with defaults for the rest.

    Raises:
        SettingsError: a request exceeds the model's context.
    """
    from galley.plan.steps import Load

    load = Load(**{name: load_options[name] or default for name, default in defaults.items()})
    if load.prompt + load.output > program.max_positions:
        raise SettingsError(
            f"a prompt of {load.prompt} and an output of {load.output} tokens exceed the model's context "
            f"of {program.max_positions}"
        )
    return load


def _plan(
    program: "Program",
    precisions: "Sequence[str]",
    settings: Settings,
    load: "Load",
    machines: "Sequence[Machine]",
    goal: "Goal",
    json_file: Path | None,
) -> None:
    from galley.plan.divided import sizes_of_ranks
    from galley.plan.predict import predict

    kv_dtype, ranks = kv_dtype_of(settings), settings.tensor_parallel
    sizes = [
        sizes_of_ranks(program, precision, kv_dtype, experts=settings.experts, ranks=ranks)
        for precision in precisions
    ]
    if ranks > 1:
        machines = _of_cpus(machines, f"tensor_parallel is {ranks}", "divide a model among ranks")
    if settings.experts == "disk":
        machines = _of_cpus(machines, "experts is disk", "leave experts on disk")
        _check_expert_cache(sizes, load)
    predictions = [
        found
        for machine in machines
        for size in sizes
        if (found := predict(size, machine, load)) is not None
    ]
    print_sizes(sizes, kv_dtype, load)
    print_predictions(predictions, goal)
    print_choice(predictions, goal)
    _write_predictions(json_file, predictions, goal)


def _of_cpus(machines: "Sequence[Machine]", given: str, what: str) -> "Sequence[Machine]":
    """Return the machines without a GPU, whose executor alone can do ``what`` the setting asks for."""
    found = [machine for machine in machines if machine.kind == "cpu"]
    if not found:
        raise SettingsError(f"{given}, but no machine of kind cpu is chosen, and only these {what}")
    return found


def _check_expert_cache(sizes: "Sequence[ModelSizes]", load: "Load") -> None:
    """Raise SettingsError, with the precision, where the cache does not hold the experts of a layer."""
    for size in sizes:
        try:
            size.on_disk.cache_bytes(load.expert_cache_bytes, 0)
        except SettingsError as error:
            raise SettingsError(f"with {size.precision} weights: {error}") from error


def _measure(
    settings: Settings,
    program: "Program",
    precisions: "Sequence[str]",
    load_options: Mapping[str, Any],
    json_file: Path | None,
) -> None:
    """Print predictions for this machine next to measurements on it."""
    from galley.bench.machine import PHASES, measure_machine
    from galley.bench.predicted import BATCHES, OUTPUT, PROMPT, Measuring, compare
    from galley.ops.isa import naming
    from galley.plan.divided import sizes_of_ranks

    ranks = settings.tensor_parallel
    batches = BATCHES if load_options["concurrency"] is None else (load_options["concurrency"],)
    load = _load(program, load_options, prompt=PROMPT, output=OUTPUT, concurrency=max(batches))
    kv_dtype = kv_dtype_of(settings)
    with progress("machine", PHASES) as bar, naming(settings.threads):
        peaks = measure_machine(
            threads=None if settings.threads is None else settings.threads * ranks,
            memory_bytes=_READ_BYTES,
            repeats=3,
            on_phase=lambda: bar.update(1),
        )
    sizes = [sizes_of_ranks(program, p, kv_dtype, peaks.isa, ranks=ranks) for p in precisions]
    print_sizes(sizes, kv_dtype, load)
    measuring = Measuring(
        settings=settings,
        kv_dtype=kv_dtype,
        prompt=load.prompt,
        output=load.output,
        batches=batches,
        peaks=peaks,
    )
    with progress("measure", len(sizes)) as bar:
        compared = compare(measuring, sizes, on_precision=lambda name: bar.update(1))
    print(
        f"{peaks.cpu}, {peaks.threads} threads, {peaks.isa}: {peaks.read_huge.median / 1e9:.0f} GB/s; "
        f"prompts of {load.prompt} and answers of {load.output} tokens"
    )
    header = ("weights", "concurrency", "figure", "predicted", "measured", "off by")
    rows = [
        (
            c.precision,
            str(c.batch),
            c.quantity,
            *map(c.text, (c.predicted, c.measured)),
            f"{c.error:+.0%}",
        )
        for c in compared
    ]
    print(table(header, rows, left=(0, 2)))
    write_json(json_file, {"machine": peaks, "load": load, "compared": compared})


def _write_predictions(
    json_file: Path | None, predictions: "Sequence[Prediction]", goal: "Goal"
) -> None:
    import msgspec

    rows = [
        {
            **msgspec.to_builtins(p),
            "memory_needed": p.memory.total,
            "fits": p.memory.fits,
            "missed": goal.missed(p),
            "executor": p.executor,
        }
        for p in predictions
    ]
    goals = {k: v for k, v in dataclasses.asdict(goal).items() if v < float("inf")}
    write_json(json_file, {"goal": goals, "predictions": rows})


plan.others["cluster"] = plan_cluster

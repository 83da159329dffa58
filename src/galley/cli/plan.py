"""``galley plan``: what serving a model takes, on machines that one may not have yet."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from galley.cli.options import MODEL_HELP, Command, Flags, with_flags
from galley.cli.terminal import table
from galley.errors import SettingsError

if TYPE_CHECKING:
    from galley.plan.predict import Goal, Load, Prediction
    from galley.plan.sizes import ModelSizes

_COUNT: Final = click.IntRange(min=1)
_SECONDS: Final = click.FloatRange(min=0, min_open=True)
_PATH: Final = click.Path(path_type=Path)
_PRECISIONS: Final = ("float32", "bf16", "int8", "int4")


@click.command(cls=Command)
@with_flags(("revision", "kv_dtype"))
@click.argument("model", required=False, help=f"{MODEL_HELP}. A config.json will do")
@click.option("--prompt", type=_COUNT, default=512, show_default=True, help="tokens of a prompt")
@click.option("--output", type=_COUNT, default=128, show_default=True, help="tokens of an answer")
@click.option("--concurrency", type=_COUNT, default=8, show_default=True, help="requests at a time")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(_PRECISIONS),
    help="of the weights; repeat for several; default: bf16, int8 and int4",
)
@click.option("--ttft", type=_SECONDS, help="goal: seconds to the first token")
@click.option("--tpot", type=_SECONDS, help="goal: seconds between tokens")
@click.option("--hardware", metavar="FILE", type=_PATH, help="another table of machines")
@click.option("--json", "json_file", metavar="FILE", type=_PATH, help="also write FILE")
def plan(
    flags: Flags,
    model: str | None,
    prompt: int,
    output: int,
    concurrency: int,
    precisions: tuple[str, ...],
    hardware: Path | None,
    json_file: Path | None,
    **limits: float | None,
) -> None:
    """Memory, latency, throughput and cost of a model, from its config.json alone.

    Each machine of the table is asked what it makes of so many requests at a time, each begun when another
    ends. The plan then says how many at a time meet the goal (--ttft, --tpot), which machine is the
    cheapest that does, and what stands in the way of the cheaper ones. By roofline: a step reads its bytes
    at 80 % of the bandwidth, or computes at 60 % of the peak, whichever takes longer.
    """
    if json_file is not None and not json_file.parent.is_dir():
        raise SettingsError(f"--json {json_file}: the folder {json_file.parent} does not exist")
    settings = flags.settings(model=model)
    from galley.formats.json_file import read_json
    from galley.formats.source import resolve_config
    from galley.models.registry import build_program
    from galley.plan.hardware import TABLE, read_machines
    from galley.plan.predict import Goal, Load, predict
    from galley.plan.sizes import ModelSizes

    machines = read_machines(hardware or TABLE)
    config = resolve_config(settings.model, revision=settings.revision)
    program = build_program(read_json(config))
    if program.encoder is not None:
        raise SettingsError(f"{config}: galley plan knows language models; this one hears")
    load = Load(prompt=prompt, output=output, concurrency=concurrency)
    if prompt + output > program.max_positions:
        raise SettingsError(
            f"a prompt of {prompt} and an output of {output} tokens exceed the model's context of "
            f"{program.max_positions}"
        )
    kv_dtype = "bfloat16" if settings.kv_dtype == "auto" else settings.kv_dtype
    goal = Goal(**{name: limit for name, limit in limits.items() if limit is not None})
    sizes = [ModelSizes.of(program, p, kv_dtype) for p in precisions or _PRECISIONS[1:]]
    predictions = [
        found
        for machine in machines
        for size in sizes
        if (found := predict(size, machine, load)) is not None
    ]
    _print_sizes(sizes, kv_dtype, load)
    _print_predictions(predictions, goal)
    _print_choice(predictions, goal)
    _write(json_file, predictions, goal)


def _print_sizes(sizes: "Sequence[ModelSizes]", kv_dtype: str, load: "Load") -> None:
    first = sizes[0]
    tokens = load.prompt + load.output
    print(f"{first.parameters / 1e6:,.1f} million parameters, context {first.max_positions} tokens")
    print(
        f"KV cache in {kv_dtype}: {_bytes(first.kv_per_token)} a token, "
        f"{_bytes(first.kv_bytes(tokens))} for a request of {tokens} tokens"
    )
    rows = [(s.precision, _bytes(s.weights), _bytes(s.step_weights)) for s in sizes]
    print(table(("weights", "held", "read a step"), rows) + "\n")


def _print_predictions(predictions: "Sequence[Prediction]", goal: "Goal") -> None:
    from galley.plan.predict import most_users

    header = (
        "machine",
        "weights",
        "GiB of",
        "TTFT s",
        "TPOT ms",
        "bound by",
        "tokens/s",
        "$/M",
        "most",
    )
    rows = []
    for p in predictions:
        used = f"{p.memory.total / 2**30:.1f} of {p.machine.memory:g}"
        figures = [
            f"{p.ttft:.2f}",
            f"{1e3 * p.tpot:.1f}",
            p.bound,
            f"{p.tokens_per_second:.0f}",
            "" if p.cost is None else f"{p.cost:.2f}",
        ]
        if not p.memory.fits:
            figures = ["does not fit", "", "", "", ""]
        most = most_users(p.sizes, p.machine, p.load, goal)
        rows.append((p.machine.name, p.sizes.precision, used, *figures, str(most)))
    print(table(header, rows, left=(0, 1, 5)))
    print("most: requests at a time that fit and meet the goal\n")


def _print_choice(predictions: "Sequence[Prediction]", goal: "Goal") -> None:
    from galley.plan.predict import cheapest

    best = cheapest(predictions, goal)
    if best is None:
        print("No machine of the table holds this load and meets the goal:")
    else:
        print(
            f"The cheapest that meets it: {best.machine.name} with {best.sizes.precision} weights, "
            f"{best.machine.price:g} $ an hour, {best.cost:.2f} $ for a million output tokens"
        )
    price = float("inf") if best is None else best.machine.price or 0.0
    for p in _obstacles(predictions, goal, below=price):
        print(f"  {p.machine.name}, {p.sizes.precision}: {goal.missed(p)}")


def _obstacles(
    predictions: "Sequence[Prediction]", goal: "Goal", *, below: float
) -> "list[Prediction]":
    """Of each machine with a lower price the precision that comes closest, the dearest machine first."""
    closest: dict[str, Prediction] = {}
    for p in predictions:
        if p.machine.price is None or p.machine.price >= below:
            continue
        best = closest.get(p.machine.name)
        if best is None or goal.distance(p) < goal.distance(best):
            closest[p.machine.name] = p
    return sorted(closest.values(), key=lambda p: -(p.machine.price or 0.0))


def _bytes(count: float) -> str:
    """For people: at least one digit before the point."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def _write(json_file: Path | None, predictions: "Sequence[Prediction]", goal: "Goal") -> None:
    if json_file is None:
        return
    import msgspec

    rows = [
        {
            **msgspec.to_builtins(p),
            "memory_needed": p.memory.total,
            "fits": p.memory.fits,
            "missed": goal.missed(p),
        }
        for p in predictions
    ]
    page = {"goal": {k: v for k, v in dataclasses.asdict(goal).items() if v < float("inf")}}
    data = msgspec.json.encode(page | {"predictions": rows})
    json_file.write_bytes(msgspec.json.format(data, indent=2) + b"\n")

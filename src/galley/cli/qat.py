"""``galley qat``: a model trained with the rounding that it will be served with."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from galley.cli.options import MODEL_HELP, Command, Flags, start_logging, with_flags
from galley.cli.terminal import progress
from galley.cli.training import (
    DATA_HELP,
    SETTINGS,
    examples_of,
    need_torch,
    summary,
    training_options,
)
from galley.errors import SettingsError
from galley.types.weight_dtypes import SIZES, WEIGHT_DTYPES

if TYPE_CHECKING:
    from galley.quant.grid import Scheme


@click.command(cls=Command)
@with_flags(SETTINGS, extra=("log_level",))
@click.argument("model", help=MODEL_HELP)
@click.argument("out", type=click.Path(path_type=Path, file_okay=False), help="the new folder")
@click.option(
    "--weight-dtype",
    "--quantize",
    "weight_dtype",
    type=click.Choice(SIZES[::-1]),
    default="int4",
    show_default=True,
    help="type of the trained weights",
)
@click.option(
    "--packed/--floats",
    default=True,
    show_default=True,
    help="--packed: write the linear layers as integers, as galley quantize does; --floats: write floats, "
    "which become the same integers, embeddings included, when served with --weight-dtype",
)
@click.option(
    "--group",
    type=click.IntRange(min=0),
    help="--packed: columns that share a scale, a multiple of 16; 0: whole rows  [default: 128]",
)
@click.option("--zero-points", is_flag=True, help="--packed: each group has a zero point (int4)")
@click.option(
    "--ignore",
    metavar="NAME",
    multiple=True,
    help="--packed: do not quantize layers whose name contains this; repeat for several",
)
@click.option("--data", metavar="FILE", type=click.Path(path_type=Path), help=DATA_HELP)
@training_options(learning_rate=1e-4)
def qat(
    flags: Flags,
    model: str,
    out: Path,
    *,
    weight_dtype: Literal["int4", "int8"],
    data: Path | None,
    tokens: int,
    context: int,
    answers_only: bool,
    **how: Any,
) -> None:
    """Train a model with int4 or int8 weights to match its unrounded outputs, and write a checkpoint.

    Weights are rounded in each step exactly as they will be served (quantization-aware training); the
    teacher is the original model. Start an interrupted run again to resume it.
    """
    rounded = {name: how.pop(name) for name in ("packed", "group", "zero_points")}
    ignore: tuple[str, ...] = how.pop("ignore")
    scheme = _scheme(weight_dtype, ignore, **rounded)
    need_torch()
    from galley.engine.read_model import read_model
    from galley.formats.source import resolve_model
    from galley.machine import available_cores
    from galley.train.run import Task, on_device, qat_student, train
    from galley.train.trainer import Options

    settings = flags.settings(model=model)
    start_logging(settings)
    began = time.monotonic()
    read = read_model(settings, resolve_model(settings.model, revision=settings.revision))
    student = qat_student(read, weight_dtype, scheme=scheme, ignore=ignore)
    made = on_device(student, settings.device, settings.threads or available_cores())
    size = {"tokens": tokens, "context": context}
    examples, source = examples_of(settings, read, data, **size, answers_only=answers_only)
    served = settings if scheme else replace(settings, weight_dtype=weight_dtype)
    report = train(Task(read, settings, made, served), examples, Options(**how), out, progress)
    print(summary(out, report, source, time.monotonic() - began))


def _scheme(
    weight_dtype: str,
    ignore: tuple[str, ...],
    *,
    packed: bool,
    group: int | None,
    zero_points: bool,
) -> "Scheme | None":
    """Return the scheme of the integers in the checkpoint; None where it has floats."""
    from galley.quant.grid import Scheme

    if not packed and (group is not None or zero_points or ignore):
        raise SettingsError("--group, --zero-points and --ignore need --packed")
    if zero_points and not WEIGHT_DTYPES[weight_dtype].zero_points:
        raise SettingsError("--zero-points are for int4; integers of 8 bits are symmetric")
    if group is not None and group % 16:
        raise SettingsError(f"--group {group}: expected a multiple of 16, or 0 for whole rows")
    if not packed:
        return None
    return Scheme(
        4 if WEIGHT_DTYPES[weight_dtype].bits == 4 else 8,
        128 if group is None else group,
        not zero_points,
    )

"""``galley distill``: a smaller model that learns to generate a larger one's answers."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from galley.engine.read_model import Model
    from galley.train.student import Student


@click.command(cls=Command)
@with_flags((*SETTINGS, "weight_dtype"), extra=("log_level",))
@click.argument("teacher", help=MODEL_HELP)
@click.argument("student", type=click.Path(path_type=Path, file_okay=False), help="the new folder")
@click.argument("data", required=False, type=click.Path(path_type=Path), help=DATA_HELP)
@click.option(
    "--layers",
    metavar="0,2,5",
    help="build the student from these layers of the teacher, whose weights must be bf16, f16 or f32",
)
@click.option(
    "--student-config",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="build a new student from this config.json, with the teacher's vocabulary",
)
@click.option(
    "--student-model",
    metavar="MODEL",
    help="train this model further: a smaller one of the teacher's family",
)
@training_options(learning_rate=1e-3)
def distill(
    flags: Flags,
    teacher: str,
    student: Path,
    data: Path | None,
    *,
    layers: str | None,
    student_config: Path | None,
    student_model: str | None,
    **how: Any,
) -> None:
    """Train a student model to imitate a teacher, and write it as a checkpoint for galley serve.

    The student keeps the teacher's tokenizer and chat template, so it can be served, or used as a draft
    model for the teacher. --weight-dtype and --executor apply to the teacher. Start an interrupted run
    again to resume it.
    """
    if [layers, student_config, student_model].count(None) != 2:
        raise SettingsError(
            "give exactly one of --layers, --student-config and --student-model, to define the student"
        )
    need_torch()
    from dataclasses import replace

    from galley.engine.read_model import read_model
    from galley.formats.source import resolve_model
    from galley.machine import available_cores
    from galley.train.run import Task, on_device, train
    from galley.train.student import from_model
    from galley.train.trainer import Options

    settings = flags.settings(model=teacher)
    start_logging(settings)
    began = time.monotonic()
    read = read_model(settings, resolve_model(settings.model, revision=settings.revision))
    text = {name: how.pop(name) for name in ("tokens", "context", "answers_only")}
    options = Options(**how)
    if student_model is not None:
        new = from_model(read_model(settings, resolve_model(student_model)), read)
    else:
        new = _student(read, layers, student_config, options.seed)
    made = on_device(new, settings.device, settings.threads or available_cores())
    examples, source = examples_of(settings, read, data, **text)
    task = Task(read, settings, made, replace(settings, weight_dtype="auto"))
    report = train(task, examples, options, student, progress)
    print(summary(student, report, source, time.monotonic() - began))


def _student(read: "Model", layers: str | None, config: Path | None, seed: int) -> "Student":
    from galley.calibration.matrices import check_dense
    from galley.train.student import from_config, from_layers

    if config is not None:
        return from_config(config, read, seed)
    assert layers is not None
    check_dense(read)
    try:
        numbers = [int(part) for part in layers.split(",")]
    except ValueError as error:
        raise SettingsError(f"--layers {layers}: expected numbers such as 0,2,5") from error
    return from_layers(read, numbers)

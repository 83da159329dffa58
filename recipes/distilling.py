"""Shared code of the recipes that distil the demo model into smaller ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from galley.cli.terminal import progress
from galley.demo import MODEL_DIR
from galley.engine.read_model import Model, read_model
from galley.settings.engine import EngineSettings
from galley.train.run import Report, Task, train
from galley.train.student import Student, from_config
from galley.train.trainer import Example, Options

from .training import Optimizers, write_json

EMBEDDING = "model.embed_tokens.weight"


def kept_texts(work: Path, make: Callable[[], Iterable[Example]]) -> list[Example]:
    """Return the result of `make`, cached in `work`."""
    path = work / "texts.jsonl"
    if not path.exists():
        partial = path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            for row in make():
                file.write(json.dumps(row) + "\n")
        partial.rename(path)
    with path.open(encoding="utf-8") as file:
        return [Example(*json.loads(line)) for line in file]


def random_student(shape: Any, teacher: Model, work: Path, seed: int) -> Student:
    """Return a model with random weights: the teacher's config, changed by the fields of `shape`."""
    own = {field.name: getattr(shape, field.name) for field in fields(shape)}
    path = work / "config.json"
    write_json(path, {**teacher.checkpoint.config, **own})
    return from_config(path, teacher, seed)


def distil(
    new_student: Callable[[Model], Student],
    examples: Sequence[Example],
    options: Options,
    output: Path,
    *,
    muon_rate: float,
    adam_rate: float,
    threads: int,
) -> Report:
    """Train a student of the demo model in float32, or continue from `output`."""
    torch.set_num_threads(threads)
    settings = EngineSettings(dtype="float32", threads=threads)
    teacher = read_model(settings, MODEL_DIR)

    def make_optimizer(parameters: Sequence[tuple[str, Tensor]], rate: float) -> Optimizers:
        return Optimizers(parameters, muon_rate, adam_rate)

    task = Task(teacher, settings, new_student(teacher), settings)
    return train(task, examples, options, output, progress, make_optimizer)

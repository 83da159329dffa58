"""Small training runs, without progress output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from galley.calibration.forward import TeacherForced
from galley.cli.terminal import progress
from galley.engine.read_model import Model, read_model
from galley.settings.engine import EngineSettings
from galley.train.run import Report, Task, train
from galley.train.student import Student
from galley.train.trainer import Example, Options
from tests.checkpoints import random_ids

EXACT = EngineSettings(dtype="float32", kv_dtype="float32", threads=1, executor="reference")
TEXTS = [Example(random_ids(seed, 24 + seed % 9)) for seed in range(48)]


def read(folder: Path) -> Model:
    return read_model(EXACT, folder, "reference")


def options(**changes: Any) -> Options:
    return Options(**{"steps": 12, "batch_tokens": 192, "learning_rate": 3e-3, **changes})


def run(
    teacher: Model,
    student: Student,
    out: Path,
    serve: EngineSettings = EXACT,
    texts: Sequence[Example] = TEXTS,
    **changes: Any,
) -> Report:
    return train(Task(teacher, EXACT, student, serve), texts, options(**changes), out, progress)


def served(folder: Path, text: Sequence[int], settings: EngineSettings = EXACT) -> Any:
    """Return the logits of the reference executor."""
    with TeacherForced(settings, folder, longest=len(text)) as forced:
        return np.concatenate([logits.copy() for _, logits in forced.logits(text)])

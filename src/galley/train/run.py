"""From a teacher and texts to a checkpoint, in a folder in which an interrupted run continues."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from galley.calibration.compressed import quantization_config
from galley.calibration.forward import TeacherForced
from galley.calibration.held_out import HELD_OUT
from galley.calibration.matrices import check_dense, linear_names, linear_weights
from galley.calibration.measures import Divergence, following
from galley.calibration.measures import Loss as Divergences
from galley.engine.read_model import Model
from galley.errors import RequestError, SettingsError, UnsupportedModel
from galley.formats.json_file import read_json
from galley.formats.quantization import QUANTIZED_KEY
from galley.quant.grid import Scheme
from galley.settings.engine import EngineSettings
from galley.train.fake_quantize import Rounding, at_load, on_grid
from galley.train.student import Student, begin, read_parameters
from galley.train.teacher import TeacherCache
from galley.train.trainer import AdamW, Example, Loss, MakeOptimizer, Options, Trainer, fingerprint

_STATE_FOLDER: Final = ".galley-train"
_SMOOTH: Final = 0.95
_MEASURED_TOKENS: Final = 16384
"""Tokens of the held-out texts."""


class Bar(Protocol):
    """A progress display.

    Attributes:
        label: label of the work.
    """

    label: str

    def update(self, n: int) -> None:
        """Record that ``n`` more steps are done."""
        ...


class Progress(Protocol):
    """Creates a progress display."""

    def __call__(self, label: str, total: int, *, done: int) -> AbstractContextManager[Bar]:
        """Return the display for a label, the total number of steps, and those that were done before."""
        ...


@dataclass(frozen=True)
class Report:
    """The results of a run on held-out texts.

    Attributes:
        before, after: the student's loss against its teacher at the first and the last step.
        served: the written checkpoint as the engine runs it, compared with the teacher at temperature 1.
    """

    before: Loss
    after: Loss
    served: Divergences


@dataclass(frozen=True)
class Task:
    """A training task: the student, its teacher, and how both are run.

    Attributes:
        teacher: the teacher as read from its checkpoint.
        settings: settings with which the teacher runs.
        student: the student before its first step, the same for each run.
        serve: settings with which the student is to be served.
    """

    teacher: Model
    settings: EngineSettings
    student: Student
    serve: EngineSettings


def qat_student(
    model: Model, weight_dtype: str, *, scheme: Scheme | None, ignore: Sequence[str] = ()
) -> Student:
    """Return a student that computes with the values that its matrices will have as integers.

    Args:
        model: a model with dense weights.
        weight_dtype: "int8" or "int4".
        scheme: scheme of the linear layers' integers in the checkpoint; None: the checkpoint has floats,
            and all matrices become integers when it is served with ``--weight-dtype``.
        ignore: parts of names of layers that stay floats; only with a scheme.

    Raises:
        UnsupportedModel: the model is quantized already, or cannot be trained.
    """
    check_dense(model)
    parameters, types = read_parameters(model)
    config = dict(model.checkpoint.config)
    if scheme is None:
        roundings = {
            name: at_load(weight_dtype, types[name]) for name in sorted(model.program.matrices)
        }
        return Student(config, model.program, parameters, types, roundings)
    linears = linear_weights(model.program)
    names = [name for name in linears if not any(part in name for part in ignore)]
    if not names:
        raise SettingsError(
            f"--ignore {' '.join(ignore)} excludes every layer; nothing is left to quantize"
        )
    grids: dict[str, Rounding] = dict.fromkeys(names, on_grid(scheme))
    fitting = {name: scheme.fitting(model.program.shapes[name][1]) for name in names}
    everything = (
        n for op in model.program.ops if op.name == "linear" for n in op.weights["weight"]
    )
    others = [each for name in everything if name not in grids for each in linear_names(name)]
    config["quantization_config"] = quantization_config(fitting, others)
    return Student(config, model.program, parameters, types, grids, packed=True)


def train(
    task: Task,
    examples: Sequence[Example],
    options: Options,
    out: Path,
    progress: Progress,
    make_optimizer: MakeOptimizer = AdamW,
) -> Report:
    """Train a student and write its checkpoint; one text in eight is held out for measurement.

    Args:
        task: the training task.
        examples: texts.
        options: how to train.
        out: a new folder, or one in which an equal run was interrupted.
        progress: displays the progress.
        make_optimizer: creates the optimizer of the parameters.

    Raises:
        SettingsError: the folder holds something else.
        RequestError: there is no text to train with, or one is too long for the student.
        UnsupportedModel: the teacher is a speech model, or has no tokenizer files for the student.
        OSError: the folder cannot be written to.
    """
    texts = [example.tokens for example in examples]
    _check(task, texts)
    state = out / _STATE_FOLDER
    begin(out, state, _digest(task, examples, options))
    cache = TeacherCache(
        state,
        texts,
        vocab_size=min(m.program.vocab_size for m in (task.teacher, task.student)),
        k=options.top_k,
        temperature=options.temperature,
    )
    folder, longest = task.teacher.checkpoint.folder, max(map(len, texts))
    if cache.done < len(texts):
        with (
            TeacherForced(task.settings, folder, longest=longest) as teacher,
            progress("teacher", len(texts), done=cache.done) as bar,
        ):
            cache.fill(teacher, lambda: bar.update(1))
    held_out = _within(texts, list(range(0, len(texts), HELD_OUT)), _MEASURED_TOKENS)
    training = [i for i in range(len(texts)) if i % HELD_OUT] or held_out
    before = _first_loss(state, task.student, examples, cache, options, held_out)
    trainer = Trainer(task.student, examples, cache, options, state, make_optimizer)
    with progress("steps", options.steps, done=trainer.step) as bar:
        trainer.run(training, _shown(bar))
    after = trainer.loss(held_out)
    task.student.write(out, task.teacher)
    served = _served(task, out, [texts[i] for i in held_out])
    if task.student.packed:
        receipt = {"method": "qat", "calibration": _text_digest(examples)[:16]}
        figures = {"kl": served.kl, "kl99": served.kl_p99, "top1": served.top1}
        task.student.write_config(out, {QUANTIZED_KEY: {**receipt, **figures}})
    shutil.rmtree(state)
    return Report(before, after, served)


def _check(task: Task, texts: Sequence[Sequence[int]]) -> None:
    folder = task.teacher.checkpoint.folder
    if task.teacher.speech is not None:
        raise UnsupportedModel("training supports text models only; the teacher is a speech model")
    if not folder.is_dir():
        raise UnsupportedModel(
            f"{folder}: the teacher must be a folder in Hugging Face's layout, because the student gets "
            "its "
            "tokenizer files"
        )
    if not texts or min(map(len, texts)) < 2:
        raise RequestError("training needs texts of at least two tokens")
    highest, known = max(map(max, texts)), task.student.program.vocab_size
    if highest >= known:
        raise RequestError(
            f"a text has token {highest}, but the student's vocabulary has {known} tokens"
        )
    longest, most = max(map(len, texts)), task.student.program.max_positions
    if longest > most:
        raise RequestError(
            f"a text has {longest} tokens, but the student's context is {most}; lower --context"
        )


def _shown(bar: Bar) -> Callable[[float], None]:
    """Return a function that displays each step and the mean of the latest losses."""
    mean: float | None = None

    def show(loss: float) -> None:
        nonlocal mean
        mean = loss if mean is None else _SMOOTH * mean + (1 - _SMOOTH) * loss
        bar.label = f"loss {mean:.4g}, steps"
        bar.update(1)

    return show


def _first_loss(
    state: Path,
    student: Student,
    examples: Sequence[Example],
    cache: TeacherCache,
    options: Options,
    held_out: Sequence[int],
) -> Loss:
    """Return the loss of the student before its first step, which is stored for a continued run."""
    path = state / "first-loss.json"
    if not path.exists():
        loss = Trainer(student, examples, cache, options, state).loss(held_out)
        path.write_text(json.dumps(loss._asdict()))
    return Loss(**read_json(path))


def _within(texts: Sequence[Sequence[int]], chosen: Sequence[int], tokens: int) -> list[int]:
    """Return the first of the chosen texts with at most ``tokens`` tokens together; at least one."""
    found: list[int] = []
    for i in chosen:
        tokens -= len(texts[i])
        if found and tokens < 0:
            break
        found.append(i)
    return found


def _served(task: Task, out: Path, texts: Sequence[Sequence[int]]) -> Divergences:
    """Return the divergences of the checkpoint from the teacher, both as the engine runs them."""
    longest = max(map(len, texts))
    divergence = Divergence()
    with (
        TeacherForced(task.settings, task.teacher.checkpoint.folder, longest=longest) as teacher,
        TeacherForced(replace(task.serve, weight_cache=False), out, longest=longest) as student,
    ):
        for text in texts:
            after = following([text])
            pairs = zip(teacher.logits(text), student.logits(text), strict=True)
            for (first, p), (_, q) in pairs:
                known = min(p.shape[1], q.shape[1])
                divergence.add(p[:, :known], q[:, :known], after[first : first + len(p)])
    return divergence.loss()


def _text_digest(examples: Sequence[Example]) -> str:
    return hashlib.sha256(json.dumps(examples).encode()).hexdigest()


def _digest(task: Task, examples: Sequence[Example], options: Options) -> str:
    """Return a digest of everything that the result depends on."""
    student = hashlib.sha256()
    for name, values in task.student.parameters.items():
        student.update(name.encode())
        student.update(values.detach().cpu().numpy().tobytes())
    known: Mapping[str, Any] = {
        "teacher": task.teacher.checkpoint.state(),
        "weight_dtype": [task.settings.weight_dtype, task.serve.weight_dtype],
        "config": dict(task.student.config),
        "rounded": sorted(task.student.roundings),
        "student": student.hexdigest(),
        "texts": _text_digest(examples),
        "options": fingerprint(options),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def on_device(student: Student, device: str, threads: int) -> Student:
    """Return the student on the device where it is trained.

    Raises:
        SettingsError: torch has no such device.
    """
    torch.set_num_threads(threads)
    try:
        moved = {name: p.detach().to(device) for name, p in student.parameters.items()}
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"cannot use device {device!r}: {error}") from error
    return replace(student, parameters=moved)

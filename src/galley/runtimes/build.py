"""Steps of loading that all engines of tensors share."""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from galley.engine.step_meter import StepMeter
from galley.errors import CheckpointError, SettingsError
from galley.runtimes.compute import Compute
from galley.runtimes.tensor_engine import TensorEngine
from galley.runtimes.tensor_model import BatchOptions, TensorModel
from galley.runtimes.trial import Trial, examine, keeps_places
from galley.settings.engine import EngineSettings
from galley.types import OnPhase, TensorSpec
from galley.types.model_info import ModelInfo, TensorInfo

log = logging.getLogger("galley.runtimes")

_OF_TEXT: Final = {
    "dtype": "auto",
    "quantize": "auto",
    "activations": "auto",
    "kv_dtype": "auto",
    "executor": "auto",
    "device": "cpu",
    "experts": "memory",
    "quality_gate": "",
    "draft_model": None,
    "max_adapters": None,
    "batching": "continuous",
    "system_prompt": "",
    "sampling_defaults": (),
}
"""Settings of Galley's own engine that have no meaning here, with the values that they have if left out."""


def build(
    settings: EngineSettings,
    path: Path,
    options: BatchOptions,
    load: Callable[[], TensorModel],
    *,
    executor: str,
    platform: str,
    on_phase: OnPhase | None,
    shares_cores: bool = False,
) -> TensorEngine:
    """Load a model, try it with random inputs, and return its engine.

    Args:
        settings: the settings; those of Galley's own engine are refused.
        path: the model's file or folder.
        options: options of batching.
        load: loads the model.
        executor: name of the library.
        platform: name of the library and format in the Open Inference Protocol's metadata.
        on_phase: called with "load" and "warm-up", and their seconds.
        shares_cores: whether steps wait for other engines on the same cores.

    Raises:
        ModelError, SettingsError: the model or the settings cannot be used.
    """
    check_settings(settings, executor)
    began = time.monotonic()
    model = load()
    _check_declared(path, "input", options.declared_inputs, model.inputs)
    _check_declared(path, "output", options.declared_outputs, model.outputs)
    loaded = time.monotonic()
    trial = examine(model, options)
    fixed = _fixed_rows(model, options, trial)
    batched = trial.batched
    _report(settings.model or path.name, options, trial)
    if on_phase is not None:
        on_phase("load", loaded - began)
        on_phase("warm-up", time.monotonic() - loaded)
    info = ModelInfo(
        name=settings.model or path.name,
        path=str(path),
        family=platform,
        tasks=("predict",),
        executor=executor,
        tensors=TensorInfo(
            inputs=model.inputs,
            outputs=model.outputs,
            batched=batched,
            max_batch_size=options.max_batch_size if options.limit_rows else 0,
            platform=platform,
        ),
    )
    compute = Compute(model, batched=batched, fixed_rows=fixed)
    # Waits for the cores are between steps: a library does not yield them within one.
    meter = StepMeter(_no_pause if shares_cores else None)
    return TensorEngine(compute, info, options, priority_steps=settings.priority_steps, meter=meter)


def _no_pause() -> float:
    return 0.0


def check_settings(settings: EngineSettings, executor: str) -> None:
    """Raise SettingsError for a setting of Galley's own engine, which the library would ignore."""
    for name, unset in _OF_TEXT.items():
        value = getattr(settings, name)
        if value != unset:
            raise SettingsError(
                f"{name} is {value!r}, but {settings.model} is a model of tensors, which {executor} "
                "computes: leave it out for this model; engine_options has the settings of such models"
            )


def _check_declared(
    path: Path, kind: str, declared: Sequence[TensorSpec], actual: Sequence[TensorSpec]
) -> None:
    """Raise CheckpointError for a declared tensor that the model does not have."""
    known = {spec.name: spec for spec in actual}
    for wanted in declared:
        found = known.get(wanted.name)
        if found is None:
            names = ", ".join(map(repr, known))
            raise CheckpointError(
                f"no {kind} {wanted.name!r}, which is declared; it has {names}", file=str(path)
            )
        fits = len(wanted.shape) == len(found.shape) and all(
            -1 in pair or pair[0] == pair[1] for pair in zip(wanted.shape, found.shape, strict=True)
        )
        if wanted.datatype != found.datatype or not fits:
            raise CheckpointError(
                f"{kind} {wanted.name!r} is declared as {wanted.datatype} {list(wanted.shape)}, and is "
                f"{found.datatype} {list(found.shape)}",
                file=str(path),
            )


def _fixed_rows(model: TensorModel, options: BatchOptions, trial: Trial) -> int | None:
    """Return the rows of every batch of a model whose rows must not depend on other requests.

    Raises:
        SettingsError: not even batches of one size keep the bits of a row.
    """
    if not options.batch_invariant or not trial.batched:
        return None
    if not keeps_places(model, options.max_batch_size):
        raise SettingsError(
            "batch_invariant is true, but a row's bits depend on its place in a batch of "
            f"{options.max_batch_size}: set batching to off instead"
        )
    return options.max_batch_size


def _report(name: str, options: BatchOptions, trial: Trial) -> None:
    if not trial.batched:
        log.info("%s: requests are computed one by one: %s", name, trial.reason)
    elif not trial.exact and not options.batch_invariant:
        log.info(
            "%s: the last bits of a row depend on how many rows are computed with it; "
            "batch_invariant: true in engine_options avoids that",
            name,
        )

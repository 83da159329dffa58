"""Loading, which all engines of tensors share."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from galley.errors import CheckpointError, SettingsError
from galley.machine import available_cores
from galley.runtimes.compute import Compute
from galley.runtimes.library import OF_TEXT, model_file, refuse_settings, step_meter
from galley.runtimes.library_memory import planned_ledger
from galley.runtimes.padding import Padding, padding_of
from galley.runtimes.tensor_engine import TensorEngine
from galley.runtimes.tensor_memory import MeasuredMemory
from galley.runtimes.tensor_model import BatchOptions, LoadSettings, TensorModel
from galley.runtimes.trial import Trial, examine, keeps_places
from galley.runtimes.warmup import warm_up
from galley.settings.engine import EngineSettings
from galley.settings.engine_choice import ENGINE_OF_SUFFIX
from galley.types import OnPhase, TensorSpec
from galley.types.model_info import Ledger, ModelInfo, OnLedger, TensorInfo

log = logging.getLogger("galley.runtimes")

Options = TypeVar("Options", bound=BatchOptions)

_STRICT: Final = 1 << 40
"""Arrivals by which a level of priority delays a request where levels are strict."""


@dataclass(frozen=True, kw_only=True)
class TensorLoader(Generic[Options]):
    """The loader of an engine of tensors; see :class:`galley.service.protocol.EngineLoader`.

    Attributes:
        engine: name of the engine; :data:`ENGINE_OF_SUFFIX` has the suffixes of its files.
        executor: name of the library.
        platform: name of the library and format in the Open Inference Protocol's metadata.
        options: the engine's own options.
        load: loads the model in a file, with its options and the server's settings.
        least_bytes: returns the least memory in bytes that the model in a file takes.
    """

    engine: str
    executor: str
    platform: str
    options: type[Options]
    load: Callable[[Path, Options, LoadSettings], TensorModel]
    least_bytes: Callable[[Path], int] = lambda file: file.stat().st_size

    def __call__(
        self,
        settings: EngineSettings,
        folder: Path,
        on_phase: OnPhase | None = None,
        pause: Callable[[], None] | None = None,
        on_ledger: OnLedger | None = None,
    ) -> TensorEngine:
        """Load a file, or the only one in a folder, try it with random inputs, and return its engine.

        The memory is measured, so ``on_ledger`` is called when the model has been loaded and tried.

        Raises:
            ModelError, SettingsError: the file or the settings cannot be used.
            NotEnoughMemory: the model does not fit in memory.
        """
        options = settings.options_as(self.options)
        refuse_settings(
            settings,
            f"is a tensor model, which {self.executor} computes: leave it out for this model; "
            "engine_options has the settings of such models",
            OF_TEXT,
        )
        began = time.monotonic()
        suffixes = [suffix for suffix, engine in ENGINE_OF_SUFFIX.items() if engine == self.engine]
        threads = max(1, (settings.threads or available_cores()) // options.instances)
        file = model_file(folder, suffixes)
        name = settings.model or folder.name
        memory = MeasuredMemory(name, self._expected(file, options, threads), options.instances)
        means = LoadSettings(threads, settings.weight_cache)
        instances = [self.load(file, options, means) for _ in range(options.instances)]
        model = instances[0]
        _check_declared(folder, "input", options.declared_inputs, model.inputs)
        _check_declared(folder, "output", options.declared_outputs, model.outputs)
        loaded = time.monotonic()
        memory.loaded()
        trial = examine(model, options)
        fixed = _fixed_rows(model, options, trial)
        padding = _padding(model, options, trial)
        for instance in instances:
            warm_up(instance, options.warmup, file)
        ledger = memory.ledger()
        if on_ledger is not None:
            on_ledger(ledger)
        _report(name, options, trial)
        if on_phase is not None:
            on_phase("load", loaded - began)
            on_phase("warm-up", time.monotonic() - loaded)
        compute = Compute(instances, batched=trial.batched, fixed_rows=fixed, padding=padding)
        return TensorEngine(
            compute,
            self._info(name, folder, model, options, trial, ledger),
            options,
            priority_steps=_STRICT if options.priority_levels else settings.priority_steps,
            padding=padding,
            meter=step_meter(pause),
        )

    def _info(
        self,
        name: str,
        folder: Path,
        model: TensorModel,
        options: Options,
        trial: Trial,
        ledger: Ledger,
    ) -> ModelInfo:
        return ModelInfo(
            name=name,
            path=str(folder),
            family=self.platform,
            tasks=("predict",),
            executor=self.executor,
            ledger=ledger,
            tensors=TensorInfo(
                inputs=model.inputs,
                outputs=model.outputs,
                batched=trial.batched,
                max_batch_size=options.max_batch_size if options.limit_rows else 0,
                platform=self.platform,
                priority_levels=options.priority_levels,
                default_priority=options.default_priority,
                timeout=options.timeout,
            ),
        )

    def _expected(self, file: Path, options: Options, threads: int) -> Ledger:
        """Return the ledger before the file is loaded."""
        return planned_ledger(
            family=self.platform,
            executor=self.executor,
            device=options.device,
            threads=threads * options.instances,
            step_tokens=options.max_batch_size,
            weights=self.least_bytes(file) * options.instances,
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


def _padding(model: TensorModel, options: BatchOptions, trial: Trial) -> Padding | None:
    """Return the padding that the options ask for.

    Raises:
        SettingsError: the model, or another option, does not permit it.
    """
    if options.padding is None:
        return None
    if options.batch_invariant:
        raise SettingsError(
            "padding and batch_invariant are both set, but the last bits of a padded row depend on the "
            "longest row of its batch: leave one of them out"
        )
    if not trial.batched:
        raise SettingsError(f"padding is set, but requests are computed one by one: {trial.reason}")
    return padding_of(model, options.padding)


def _report(name: str, options: BatchOptions, trial: Trial) -> None:
    if not trial.batched:
        log.info("%s: requests are computed one by one: %s", name, trial.reason)
    elif not trial.exact and not options.batch_invariant:
        log.info(
            "%s: the last bits of a row depend on how many rows are computed with it; "
            "batch_invariant: true in engine_options avoids that",
            name,
        )

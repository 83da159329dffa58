"""Loading steps common to all types of models: the traced model, its executor and its description."""

import dataclasses
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from galley.engine.read_model import Model, read_for_executor
from galley.engine.step_meter import Pauses, StepMeter
from galley.engine.weight_receipt import held_kinds, weight_receipt
from galley.graph.program import Program
from galley.ops.choice import choose_executor, executor_factory
from galley.ops.executor import Executor, ExecutorFactory, ExecutorOptions
from galley.ops.rows import check_isa
from galley.settings.engine import EngineSettings
from galley.types import OnPhase
from galley.types.model_info import Ledger, ModelInfo, OnLedger, ProgramInfo, TextInfo


class StartPhases:
    """Times the phases of an engine's start, one after the other.

    Attributes:
        seconds: phase -> its duration.
    """

    def __init__(self, on_phase: OnPhase | None) -> None:
        self.seconds: dict[str, float] = {}
        self._on_phase = on_phase
        self._last = time.monotonic()

    def end(self, name: str) -> None:
        """Record that the phase of that name is over."""
        now = time.monotonic()
        self.seconds[name] = now - self._last
        self._last = now
        if self._on_phase:
            self._on_phase(name, self.seconds[name])

    def ready(self) -> dict[str, float]:
        """Return the phases with their sum, "ready"."""
        return {**self.seconds, "ready": sum(self.seconds.values())}


@dataclass(frozen=True)
class Loading:
    """A model on its way from a checkpoint to an engine.

    Attributes:
        settings: sizes and choices; ``settings.model`` is only the name here.
        folder: the checkpoint.
        executor_name: name of the executor that runs the model.
        factory: creates the executor.
        model: the traced model, with mapped weights.
        clock: times the phases of the start.
        pauses: yields the cores to another engine between two ops; None where this engine has them alone.
        on_ledger: called with the memory that the model will take, before its weights are loaded.
    """

    settings: EngineSettings
    folder: Path
    executor_name: str
    factory: ExecutorFactory
    model: Model
    clock: StartPhases
    pauses: Pauses | None
    on_ledger: OnLedger | None

    @classmethod
    def begin(
        cls,
        settings: EngineSettings,
        folder: Path,
        clock: StartPhases,
        pauses: Pauses | None,
        on_ledger: OnLedger | None,
    ) -> "Loading":
        """Choose the executor, trace the model and map its weights.

        Raises:
            ModelError, SettingsError: the checkpoint or the settings cannot be used.
        """
        chosen = choose_executor(settings.executor, settings.device)
        check_isa()
        clock.end("import")
        model, name, factory = read_for_executor(settings, folder, chosen)
        if settings.tensor_parallel > 1:
            executor_factory("cpu")  # raises an error with the remedy if there is no native module
            from galley.engine.parallel.factory import parallel_factory

            factory = parallel_factory(factory, name, settings, folder)
        return cls(settings, folder, name, factory, model, clock, pauses, on_ledger)

    @property
    def name(self) -> str:
        """The model's name for display."""
        return self.settings.model or self.folder.name

    @property
    def family(self) -> str:
        """The checkpoint's ``model_type``."""
        return str(self.model.checkpoint.config["model_type"])

    @cached_property
    def meter(self) -> StepMeter:
        """The meter of the engine's steps, which excludes pauses."""
        pauses = self.pauses
        return StepMeter(None if pauses is None else lambda: pauses.seconds)

    def announce(self, ledger: Ledger) -> None:
        """Report the memory that the model will take."""
        if self.on_ledger is not None:
            self.on_ledger(ledger)

    def executor(self, program: Program, options: ExecutorOptions) -> Executor:
        """Load the weights into an executor, and end the phase "load"."""
        options = dataclasses.replace(options, pause=self.pauses)
        made = self.factory(program, self.model.weights, options)
        self.clock.end("load")
        return made

    def info(
        self,
        executor: Executor,
        program: Program,
        options: ExecutorOptions,
        ledger: Ledger,
        text: TextInfo,
        **own: Any,
    ) -> ModelInfo:
        """Return the engine's description of itself, after its last phase.

        Args:
            executor: the executor that runs the model.
            program: the program that it runs.
            options: the options that it was created with.
            ledger: the memory ledger.
            text: limits of texts, without what the checkpoint and the settings say.
            own: the fields of :class:`ModelInfo` that depend on the type of model.
        """
        checkpoint, weights = self.model.checkpoint, self.model.weights
        kinds = held_kinds(self.executor_name, program, weights, options)
        return ModelInfo(
            name=self.name,
            path=str(self.folder),
            family=self.family,
            executor=self.executor_name,
            program=ProgramInfo(
                dtype=options.dtype,
                weight_dtype=options.weight_dtype,
                activations=executor.activations,
                kv_dtype=options.kv_dtype,
                costs=executor.step_costs(),
            ),
            text=msgspec.structs.replace(
                text,
                eos_token_ids=checkpoint.eos_token_ids,
                defaults=self.settings.with_own(checkpoint.defaults),
            ),
            phases=self.clock.ready(),
            ledger=ledger,
            weights=weight_receipt(checkpoint, program, kinds),
            **own,
        )

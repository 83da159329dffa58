"""The means of experiments: this machine's rates, engines with changed settings, and repeats."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from galley.bench.engine import EngineBench
from galley.bench.predicted import machine_for
from galley.bench.report import Machine as Peaks
from galley.bench.report import Spread
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.read_model import Model, read_model
from galley.formats.source import BUNDLED_SPEECH, resolve_model
from galley.llm.llm import LLM
from galley.plan.hardware import Machine
from galley.plan.predict import Prediction, predict
from galley.plan.sizes import ModelSizes
from galley.plan.steps import Load
from galley.quality.texts import Window, own_texts
from galley.settings.engine import EngineSettings


@dataclass(frozen=True)
class Lab:
    """The model and the machine on which experiments run.

    Attributes:
        settings: of the engine, which experiments change.
        quick: fewer repeats and smaller loads.
        peaks: measured rates of the machine.
        speech_model: folder, hub id or bundled model for the experiments on speech.
        recordings: JSON lines of recordings and what is said; None: the bundled call.
    """

    settings: EngineSettings
    quick: bool
    peaks: Peaks
    speech_model: str = BUNDLED_SPEECH
    recordings: Path | None = None

    @property
    def repeats(self) -> int:
        """Measurements of each figure."""
        return 3 if self.quick else 7

    def with_(self, **changes: Any) -> EngineSettings:
        """Return the settings without prefix cache and speculation, so that each token is computed alone.

        Args:
            changes: settings by the names of their fields.
        """
        plain: dict[str, Any] = {
            "prefix_cache": False,
            "prefix_cache_dir": "",
            "speculation": "off",
            "draft_model": None,
        }
        return dataclasses.replace(self.settings, **(plain | changes))

    def bench(self, **changes: Any) -> EngineBench:
        """Return a loaded engine that is measured step by step."""
        return EngineBench(self.with_(**changes))

    def engine(self, **changes: Any) -> Engine:
        """Return a loaded engine."""
        return load_engine(self.with_(**changes), self.folder)

    @functools.cached_property
    def folder(self) -> Path:
        """The model's folder or file."""
        return resolve_model(self.settings.model, revision=self.settings.revision)

    @functools.cached_property
    def model(self) -> Model:
        """The model's program and weights, which are mapped."""
        return read_model(self.settings, self.folder)

    @property
    def context(self) -> int:
        """Most tokens of a request."""
        limit = self.model.program.max_positions
        return min(limit, self.settings.max_model_len or limit)

    def sizes(self, weights: str, kv_dtype: str = "bfloat16") -> ModelSizes:
        """Return the model's bytes and operations with these types."""
        return ModelSizes.of(self.model.program, weights, kv_dtype, self.peaks.isa)

    def machine(self, sizes: ModelSizes) -> Machine:
        """Return this machine's rates for a plan; weights that fit the caches are read from there."""
        return machine_for(self.peaks, sizes, self.settings.threads)

    def predict(self, sizes: ModelSizes, **load: int) -> Prediction:
        """Return the roofline's prediction of a load on this machine."""
        prediction = predict(sizes, self.machine(sizes), Load(**load))
        assert prediction is not None  # float32 is always measured
        return prediction

    def prompts(self, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
        """Return random prompts, none of which begins like another."""
        random = np.random.default_rng(seed)
        vocab = self.model.program.vocab_size
        return [[int(token) for token in random.integers(vocab, size=n)] for n in lengths]

    def windows(self, context: int, tokens: int) -> list[Window]:
        """Return texts that the model samples, on which losses are measured.

        Args:
            context: most tokens of each.
            tokens: of all.
        """
        with LLM.from_settings(self.with_()) as llm:
            return [*own_texts(llm, context=min(context, self.context), tokens=tokens).windows]

    def spread(self, measure: Callable[[], float]) -> Spread:
        """Measure several times after a warm-up, which is not counted."""
        measure()
        return Spread.of([measure() for _ in range(self.repeats)])

    def ratio(self, one: Callable[[], float], other: Callable[[], float]) -> Spread:
        """Return how many times ``one`` is as much as ``other``, measured in turns.

        In turns, because the speed of a shared machine changes from minute to minute.
        """
        one(), other()
        return Spread.of([one() / other() for _ in range(self.repeats)])

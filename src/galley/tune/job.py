"""A tuning from its settings to its best trial."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from galley.bench.kept import keep, read_kept
from galley.bench.machine import measure_machine
from galley.bench.serve.replay import RecordedTexts
from galley.calibration.gate import figures_of
from galley.engine.read_model import Model, read_model
from galley.errors import SettingsError
from galley.formats.source import resolve_model
from galley.llm.llm import LLM
from galley.machine import available_cores, cpu_and_cores
from galley.ops.isa import naming
from galley.quality.compare import unrounded
from galley.quality.losses import losses
from galley.quality.texts import Texts, own_texts, read_texts
from galley.settings.engine import EngineSettings
from galley.settings.quality_gate import QualityGate
from galley.traffic.trace import Turn
from galley.tune.advice import loss_key, other_settings
from galley.tune.forecast import Forecaster, Traffic
from galley.tune.goal import Limit
from galley.tune.search import VERSION, Considered, Search, Tuning, ranked, rounds
from galley.tune.space import Candidate, Value, candidates, default_space, parse_space
from galley.tune.trials import Bench, Trial

_READ_BYTES: Final = 128 << 20
_CONTEXT: Final = 128
_TOKENS: Final = 1024
"""Tokens of the texts on which losses are measured, and of each of them."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The arguments of a tuning job.

    Attributes:
        settings: of the engine, whose other values stay as they are.
        goal: what is to be met.
        turns: of the trace.
        trace: its name.
        speed: how many times as fast as recorded.
        tried: values of settings to try, see :func:`parse_space`.
        gate: candidates whose types lose more are left out.
        data: texts for the losses; None: the model's own.
        recorded: the prompts of the turns; None: synthetic ones.
    """

    settings: EngineSettings
    goal: Sequence[Limit]
    turns: Sequence[Turn]
    trace: str
    speed: float
    tried: Sequence[str]
    gate: QualityGate
    data: Path | None = None
    recorded: RecordedTexts | None = None


@dataclass(frozen=True)
class Job:
    """A tuning that can be measured.

    Attributes:
        wanted: what is tuned, on what.
        model: its program.
        bench: measures candidates.
        tuning: the figures so far.
        file: keeps them.
    """

    wanted: Wanted
    model: Model
    bench: Bench
    tuning: Tuning
    file: Path

    @classmethod
    def prepare(
        cls, wanted: Wanted, file: Path, on_phase: Callable[[], None] = lambda: None
    ) -> Self:
        """Measure the machine and the losses, and predict all candidates, unless the file has them.

        Args:
            wanted: what is to be tuned.
            file: keeps the figures.
            on_phase: called :data:`galley.bench.machine.PHASES` times.

        Raises:
            ModelError, SettingsError: the model or a setting cannot be used, or no type passes the gate.
        """
        settings = wanted.settings
        folder = resolve_model(settings.model, revision=settings.revision)
        model = read_model(settings, folder)
        _check(wanted, model)
        quantized = _is_quantized(model)
        cores = available_cores()
        space = parse_space(default_space(cores, quantized=quantized), wanted.tried)
        conditions = _conditions(wanted, space)
        tuning = read_kept(file, Tuning, VERSION, conditions, "galley tune")
        if tuning is None:
            with naming(None):
                peaks = measure_machine(
                    memory_bytes=_READ_BYTES, seconds=0.1, repeats=3, on_phase=on_phase
                )
            tuning = Tuning(conditions=conditions, peaks=peaks)
            found = _passing(candidates(space, settings, cores), wanted, tuning)
            forecaster = Forecaster(model, peaks)
            traffic = Traffic.of(wanted.turns, wanted.speed)
            considered = [
                Considered(candidate=one, forecast=forecaster.forecast(one, traffic))
                for one in found
            ]
            tuning.considered = ranked(considered, wanted.goal)
            keep(file, tuning)
        bench = Bench(
            settings,
            wanted.turns,
            wanted.speed,
            wanted.goal,
            texts=wanted.recorded,
        )
        return cls(wanted, model, bench, tuning, file)

    def size(self, count: int) -> int:
        """Return the most requests of all rounds, with this many candidates in the first."""
        return sum(number * part for number, part in rounds(count, len(self.wanted.turns)))

    def search(
        self, count: int, *, on_end: Callable[[], None], on_trial: Callable[[Trial], None]
    ) -> Trial:
        """Measure candidates, and return the best trial on the whole trace.

        Args:
            count: the most candidates of the first round.
            on_end: called at the end of each request.
            on_trial: called with each trial.
        """

        def measure(candidate: Candidate, turns: int) -> Trial:
            return self.bench.measure(candidate, turns, on_end)

        def done(trial: Trial) -> None:
            keep(self.file, self.tuning)
            on_trial(trial)

        return Search(
            tuning=self.tuning,
            goal=self.wanted.goal,
            count=count,
            turns=len(self.wanted.turns),
            measure=measure,
            on_trial=done,
        ).best()


def _check(wanted: Wanted, model: Model) -> None:
    """Raise SettingsError if the model writes no text, or the trace has nothing to measure for a limit."""
    if model.program.encoder is not None or model.head is not None:
        raise SettingsError(
            f"{wanted.settings.model} does not generate text; galley tune is for models that do"
        )
    for limit in wanted.goal:
        if limit.metric == "tpot" and all(turn.line.output_length < 2 for turn in wanted.turns):
            raise SettingsError(
                f"--slo: {limit}: no request of {wanted.trace} has a second token, so there is no tpot; "
                "leave the limit out"
            )


def _is_quantized(model: Model) -> bool:
    info = model.weights.info
    return not all(info(name).kind.is_dense for name in model.program.matrices)


def _space_text(space: Mapping[str, Sequence[Value]]) -> str:
    return "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in space.items())


def _conditions(wanted: Wanted, space: Mapping[str, Sequence[Value]]) -> dict[str, str]:
    turns = msgspec.json.encode(
        [(turn.due, turn.after, turn.pause, turn.line) for turn in wanted.turns]
    )
    digest = hashlib.sha256(turns).hexdigest()[:12]
    other = other_settings(wanted.settings)
    return {
        "model": wanted.settings.model or "galley-demo",
        "other settings": json.dumps(other) if other else "defaults",
        "trace": f"{wanted.trace} ({digest}), {len(wanted.turns)} requests, {wanted.speed:g} times as "
        f"fast, {'recorded' if wanted.recorded else 'synthetic'} prompts",
        "texts of the losses": str(wanted.data) if wanted.data else "the model's own",
        "goal": ", ".join(map(str, wanted.goal)),
        "space": _space_text(space),
        "quality gate": str(wanted.gate) or "none",
        "machine": cpu_and_cores(),
    }


def _passing(found: Sequence[Candidate], wanted: Wanted, tuning: Tuning) -> list[Candidate]:
    """Measure the loss of each pair of types, and return the candidates whose types pass the gate."""
    gate, settings = wanted.gate, wanted.settings
    if not gate.limits:
        return [*found]
    pairs = {loss_key(one): one for one in found}
    with LLM.from_settings(settings) as llm:
        texts = _texts(llm, wanted.data)
    models = [one.settings(settings) for one in pairs.values()]
    for name, loss in zip(pairs, losses(unrounded(settings), models, texts.windows), strict=True):
        tuning.losses[name] = figures_of(loss)
    passing = [one for one in found if not gate.misses(tuning.losses[loss_key(one)])]
    if not passing:
        least = min(tuning.losses, key=lambda name: tuning.losses[name]["kl"])
        raise SettingsError(
            f"no types of weights and of keys and values pass the quality gate {gate}; {least} lose "
            f"least: {'; '.join(gate.misses(tuning.losses[least]))}. Try wider types (--try "
            "weight_dtype=bf16), or a wider --quality-gate"
        )
    return passing


def _texts(llm: LLM, data: Path | None) -> Texts:
    context = min(_CONTEXT, llm.info.max_request_tokens)
    if data is not None:
        return read_texts(llm, data, context=context, tokens=_TOKENS)
    return own_texts(llm, context=context, tokens=_TOKENS)

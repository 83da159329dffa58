"""The chosen settings as a settings file whose lines have reasons, and what an unmet goal would take."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from galley.bench.report import Machine as Peaks
from galley.engine.read_model import Model
from galley.ops.triton.supported import has_kernels
from galley.plan.hardware import read_machines
from galley.settings.engine import EngineSettings, changed_settings
from galley.tune.forecast import Forecast, Forecaster, Traffic, slower
from galley.tune.goal import Limit
from galley.tune.search import Tuning
from galley.tune.space import TUNED, Candidate, Value
from galley.tune.trials import Trial

_MOST_SERVERS: Final = 64
_TYPES: Final = ("weight_dtype", "kv_dtype")
"""Settings that lose quality, in the order of :func:`loss_key`."""


@dataclass(frozen=True)
class Prices:
    """The price of CPU time: US dollars an hour for all ``cores`` of the machine; None: not known."""

    per_hour: float | None
    cores: int

    def text(self, cost: float) -> str:
        """Return a cost, given in CPU seconds for a thousand output tokens, for people."""
        if not math.isfinite(cost):
            return "no cost: it failed"
        if self.per_hour is None:
            return f"{cost:.3g} CPU s per 1,000 tokens"
        return f"${self.per_hour / self.cores / 3600 * cost * 1000:.3g} per million tokens"


def other_settings(settings: EngineSettings) -> dict[str, Any]:
    """Return the engine's settings that are neither tuned nor their defaults, except for the model."""
    known = (*TUNED, "model")
    return {name: v for name, v in changed_settings(settings).items() if name not in known}


def settings_file(
    settings: EngineSettings, tuning: Tuning, best: Trial, goal: Sequence[Limit], prices: Prices
) -> str:
    """Return the text of a ``galley.yaml`` with the settings of the best trial.

    Args:
        settings: that were tuned.
        tuning: all trials.
        best: the chosen one.
        goal: limits of latencies.
        prices: of CPU time.
    """
    conditions = ", ".join(f"{name} {value}" for name, value in tuning.conditions.items())
    head = [
        f"# galley tune: {_line(conditions)}",
        f"# Measured: {figures(best, goal)}, {prices.text(best.cost)}.",
    ]
    if best.factor(goal) > 1:
        head.append(
            "# The goal is NOT met; these settings come nearest of those that were measured."
        )
    lines = [f"model: {_yaml(settings.model)}"] if settings.model else []
    lines += [
        f"{name}: {value}  # {_line(_reason(name, tuning, best, goal, prices))}"
        for name, value in best.candidate.values.items()
    ]
    lines += [
        f"{name}: {_yaml(value)}  # not tuned" for name, value in other_settings(settings).items()
    ]
    return "\n".join([*head, *lines]) + "\n"


def _line(text: str) -> str:
    """Return a text as a comment can have it: in one line."""
    return " ".join(text.split())


def _yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def figures(trial: Trial, goal: Sequence[Limit]) -> str:
    """Return the latencies of a trial, each with its limit."""
    if trial.problem:
        return f"could not be measured: {trial.problem}"
    return ", ".join(
        f"{limit.name} {_milliseconds(trial.latencies.get(limit.name))} of {1e3 * limit.seconds:g} ms"
        for limit in goal
    )


def _milliseconds(seconds: float | None) -> str:
    return "unanswered" if seconds is None else f"{1e3 * seconds:.3g}"


def _reason(name: str, tuning: Tuning, best: Trial, goal: Sequence[Limit], prices: Prices) -> str:
    """Compare the chosen value of a setting with the other values that were considered."""
    chosen = best.candidate.values[name]
    others = {one.candidate.values[name] for one in tuning.considered} - {chosen}
    parts = [
        _compared(name, other, tuning, best, goal, prices) for other in sorted(others, key=str)
    ]
    if name in _TYPES:
        place = _TYPES.index(name)
        lossy = {key.split(", ")[place] for key in tuning.losses} - others - {str(chosen)}
        parts += [f"{other}: loses more than the quality gate allows" for other in sorted(lossy)]
    loss = _loss(best.candidate, tuning) if name == "weight_dtype" else ""
    return "; ".join(filter(None, [loss, *parts])) or "the only value"


def _loss(candidate: Candidate, tuning: Tuning) -> str:
    loss = tuning.losses.get(loss_key(candidate))
    return "" if loss is None else f"KL {loss['kl']:.2g}, top-1 {loss['top1']:.1%}"


def _compared(
    name: str, other: Value, tuning: Tuning, best: Trial, goal: Sequence[Limit], prices: Prices
) -> str:
    trials = [trial for trial in tuning.latest() if trial.candidate.values[name] == other]
    if trials:
        trial = min(trials, key=lambda one: (-one.turns, one.rank(goal)))
        part = "" if trial.turns == best.turns else f" on {trial.turns} requests"
        if trial.factor(goal) > 1:
            return f"{other}: {figures(trial, goal)}{part}"
        return f"{other}: {prices.text(trial.cost)}{part}"
    forecasts = [
        one.forecast
        for one in tuning.considered
        if one.candidate.values[name] == other and one.forecast is not None
    ]
    own = _forecast_of(best.candidate, tuning)
    if not forecasts or own is None:
        return f"{other}: not measured"
    return f"{other}: predicted {min(f.cost for f in forecasts) / own.cost:.2g} times the cost"


def _forecast_of(candidate: Candidate, tuning: Tuning) -> Forecast | None:
    found = (one.forecast for one in tuning.considered if one.candidate == candidate)
    return next(found, None)


def loss_key(candidate: Candidate) -> str:
    """Return the name of the loss of a candidate's types."""
    return f"{candidate.weight_dtype}, {candidate.kv_dtype}"


def what_it_takes(
    best: Trial, goal: Sequence[Limit], model: Model, peaks: Peaks, traffic: Traffic
) -> list[str]:
    """Return sentences about the goal that even the nearest trial misses.

    Predictions are scaled by how far the measured times of this trial were from the predicted ones.
    """
    said = [f"Nearest: {best.candidate}: {figures(best, goal)}."]
    forecaster = Forecaster(model, peaks)
    own = forecaster.forecast(best.candidate, traffic)
    if own is None:
        return said
    if any(best.latencies.get(limit.name) is None for limit in goal):
        return [*said, "More servers are not predicted: too many requests had no answer."]
    servers = next(
        (
            n
            for n in range(2, _MOST_SERVERS + 1)
            if _meets(forecaster.forecast(best.candidate, slower(traffic, n)), own, best, goal)
        ),
        None,
    )
    if servers is not None:
        said.append(
            f"{servers} servers like this one, each with 1/{servers} of the requests, are predicted to "
            "meet it (replicas)."
        )
    else:
        said.append(f"Not even {_MOST_SERVERS} such servers are predicted to meet it.")
    said.append(_machine(best, goal, model, peaks, traffic, own))
    return said


def _machine(
    best: Trial,
    goal: Sequence[Limit],
    model: Model,
    peaks: Peaks,
    traffic: Traffic,
    own: Forecast,
) -> str:
    """Return the cheapest machine of the plan's table that is predicted to meet the goal."""
    priced = [machine for machine in read_machines() if machine.price is not None]
    for machine in sorted(priced, key=lambda one: one.price or 0.0):
        if machine.executor(gpu=has_kernels(model.program)) is None:
            continue
        found = Forecaster(model, peaks, machine).forecast(best.candidate, traffic)
        if _meets(found, own, best, goal):
            return (
                f"The cheapest machine of the table that is predicted to meet it: {machine.name} "
                f"({machine.what}), ${machine.price:g} an hour."
            )
    return "No machine of galley plan's table is predicted to meet it."


def _meets(forecast: Forecast | None, own: Forecast, best: Trial, goal: Sequence[Limit]) -> bool:
    if forecast is None or not forecast.fits or not forecast.keeps_up:
        return False
    for limit in goal:
        measured = best.latencies.get(limit.name)
        if measured is None:
            return False
        now, then = _time(own, limit, best), _time(forecast, limit, best)
        if measured * then / now > limit.seconds:
            return False
    return True


def _time(forecast: Forecast, limit: Limit, best: Trial) -> float:
    """Return the predicted mean of a limit's metric."""
    if limit.metric == "ttft":
        return forecast.ttft
    if limit.metric == "tpot":
        return forecast.tpot
    answers = max(1, best.output_tokens // max(1, best.turns))
    return forecast.ttft + answers * forecast.tpot


def candidate_row(
    trial: Trial, forecast: Forecast | None, goal: Sequence[Limit], prices: Prices
) -> list[str]:
    """Return a row of the table of trials: settings, predicted and measured figures."""
    times = {} if forecast is None else {"ttft": forecast.ttft, "tpot": forecast.tpot}
    row = [*map(str, trial.candidate.values.values()), str(trial.turns)]
    for limit in goal:
        predicted = times.get(limit.metric)
        row.append("" if predicted is None else f"{1e3 * predicted:.3g}")
        row.append("failed" if trial.problem else _milliseconds(trial.latencies.get(limit.name)))
    row.append("" if forecast is None else prices.text(forecast.cost))
    row.append(prices.text(trial.cost))
    row.append("yes" if trial.factor(goal) <= 1 else "no")
    return row


def candidate_header(goal: Sequence[Limit]) -> list[str]:
    """Return the header of these rows."""
    header = [*TUNED, "requests"]
    for limit in goal:
        header += [f"{limit.metric} predicted, ms", f"{limit.name}, ms"]
    return [*header, "cost predicted", "cost", "meets the goal"]

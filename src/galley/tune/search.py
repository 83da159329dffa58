"""Successive halving: many candidates on a small part of the trace, the best of them on more of it.

Jamieson and Talwalkar 2016 (arXiv:1502.07943). Candidates are those that the plan predicts to be the best.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from galley import __version__
from galley.bench.report import Machine as Peaks
from galley.tune.forecast import Forecast
from galley.tune.goal import Limit
from galley.tune.space import Candidate
from galley.tune.trials import Trial

VERSION: Final = 1
ETA: Final = 3
"""In each round, a third of the candidates continue, on three times as much of the trace."""

ROUNDS: Final = 3


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and what the plan predicts; None: it predicts nothing for its types."""

    candidate: Candidate
    forecast: Forecast | None


class Tuning(msgspec.Struct, kw_only=True):
    """All figures of a tuning, kept in its file.

    Attributes:
        conditions: see :class:`galley.bench.kept.Kept`.
        peaks: measured rates of the machine.
        losses: "weight type, KV type" -> loss against the unrounded model, by the quality gate's names.
        considered: all candidates that pass the gate, the best first.
        trials: in the order in which they were measured.
    """

    version: int = VERSION
    galley: str = __version__
    conditions: dict[str, str]
    peaks: Peaks
    losses: dict[str, dict[str, float]] = {}
    considered: list[Considered] = []
    trials: list[Trial] = []

    def trial(self, candidate: Candidate, turns: int) -> Trial | None:
        """Return the trial of a candidate on this many turns; None: there is none, or it failed."""
        found = (t for t in self.trials if t.candidate == candidate and t.turns == turns)
        return next((trial for trial in found if not trial.problem), None)

    def add(self, trial: Trial) -> None:
        """Add a trial in place of a failed one."""
        self.trials = [
            one
            for one in self.trials
            if (one.candidate, one.turns) != (trial.candidate, trial.turns)
        ]
        self.trials.append(trial)

    def latest(self) -> list[Trial]:
        """Return each candidate's trial on the most turns."""
        best: dict[Candidate, Trial] = {}
        for trial in self.trials:
            known = best.get(trial.candidate)
            if known is None or trial.turns > known.turns:
                best[trial.candidate] = trial
        return list(best.values())


Measure = Callable[[Candidate, int], Trial]


def ranked(considered: Sequence[Considered], goal: Sequence[Limit]) -> list[Considered]:
    """Return candidates, the best first: those that fit and are predicted to meet the goal, by cost."""

    def key(one: Considered) -> tuple[bool, float, float]:
        forecast = one.forecast
        if forecast is None:
            return True, math.inf, math.inf
        factor = max(1.0, forecast_factor(forecast, goal))
        return not forecast.fits, factor if forecast.keeps_up else math.inf, forecast.cost

    return sorted(considered, key=key)


def forecast_factor(forecast: Forecast, goal: Sequence[Limit]) -> float:
    """Return the largest ratio of a predicted time to its limit; latency is not predicted by itself."""
    times = {"ttft": forecast.ttft, "tpot": forecast.tpot}
    return max(
        (times[limit.metric] / limit.seconds for limit in goal if limit.metric in times),
        default=0.0,
    )


def rounds(count: int, turns: int) -> list[tuple[int, int]]:
    """Return (candidates, turns) of each round for this total number of candidates and turns.

    A round after which all of its candidates would continue decides nothing, and is left out.
    """
    sizes = [max(1, count // ETA**number) for number in range(ROUNDS)]
    parts = [math.ceil(turns / ETA ** (ROUNDS - 1 - number)) for number in range(ROUNDS)]
    return [
        (size, part)
        for size, part, following in zip(sizes, parts, [*sizes[1:], 0], strict=True)
        if size > following
    ]


def search(
    tuning: Tuning,
    goal: Sequence[Limit],
    *,
    count: int,
    turns: int,
    measure: Measure,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> Trial:
    """Measure the best candidates in rounds, and return the best trial on the whole trace.

    If the last candidate misses the goal on the whole trace, those of the round before are measured on it,
    too.

    Args:
        tuning: what it considers is ranked; trials that it has are not measured again, new ones are added.
        goal: what is to be met.
        count: candidates of the first round.
        turns: of the whole trace.
        measure: measures a candidate on this many turns.
        on_trial: called with each trial, measured now or before.
    """

    def tried(candidate: Candidate, part: int) -> Trial:
        trial = tuning.trial(candidate, part)
        if trial is None:
            trial = measure(candidate, part)
            tuning.add(trial)
        on_trial(trial)
        return trial

    going = [one.candidate for one in tuning.considered[:count]]
    before = going
    trials: list[Trial] = []
    for keep, part in rounds(count, turns):
        before, going = going, going[:keep]
        trials = sorted((tried(one, part) for one in going), key=lambda t: t.rank(goal))
        going = [trial.candidate for trial in trials]
    best = trials[0]
    for candidate in before:
        if best.factor(goal) <= 1:
            break
        if candidate not in going:
            best = min(best, tried(candidate, turns), key=lambda trial: trial.rank(goal))
    return best


def pareto(trials: Sequence[Trial], goal: Sequence[Limit]) -> list[Trial]:
    """Return the trials than which none is both cheaper and nearer to the goal, the cheapest first."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (t.cost, t.factor(goal))):
        if not front or trial.factor(goal) < front[-1].factor(goal):
            front.append(trial)
    return front

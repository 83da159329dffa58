"""Successive halving: many candidates on a small part of the trace, the best of them on more of it.

Jamieson and Talwalkar 2016 (arXiv:1502.07943). The first round measures one candidate after another: each
is the one with the best optimistic estimate, by the plan's prediction and all trials so far. It ends when
no estimate is better than the best trial (an upper confidence bound, Srinivas et al. 2010,
arXiv:0912.3995).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from galley import __version__
from galley.bench.report import Machine as Peaks
from galley.tune.belief import Belief, Rank
from galley.tune.forecast import Forecast
from galley.tune.goal import Limit
from galley.tune.space import Candidate
from galley.tune.trials import Trial

VERSION: Final = 2
ETA: Final = 3
"""In each round, a third of the candidates continue, on three times as much of the trace."""

ROUNDS: Final = 3

_WORTH: Final = 0.05
"""Candidates that can save no more than this share of the best one's cost are not measured."""

_APART: Final = 1.3
"""Candidates that cost this many times what the best one does are left behind: runs of one candidate differ
by up to 10 %, so on more of the trace the order stays."""


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
    predicted = ((forecast.seconds(limit.metric), limit) for limit in goal)
    return max((time / limit.seconds for time, limit in predicted if time is not None), default=0.0)


def rounds(count: int, turns: int) -> list[tuple[int, int]]:
    """Return (candidates, turns) of each round for at most this many candidates and turns in all.

    A round after which all of its candidates would continue decides nothing, and is left out.
    """
    sizes = [max(1, count // ETA**number) for number in range(ROUNDS)]
    parts = [math.ceil(turns / ETA ** (ROUNDS - 1 - number)) for number in range(ROUNDS)]
    return [
        (size, part)
        for size, part, following in zip(sizes, parts, [*sizes[1:], 0], strict=True)
        if size > following
    ]


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search for the best candidate.

    Attributes:
        tuning: has the candidates; its trials are not measured again, new ones are added.
        goal: what is to be met.
        count: the most candidates of the first round.
        turns: of the whole trace.
        measure: measures a candidate on this many turns.
        on_trial: called with each trial, measured now or before.
    """

    tuning: Tuning
    goal: Sequence[Limit]
    count: int
    turns: int
    measure: Measure
    on_trial: Callable[[Trial], None] = lambda trial: None

    def best(self) -> Trial:
        """Measure candidates in rounds, and return the best trial on the whole trace.

        If the last candidate misses the goal on the whole trace, those of the round before are measured on
        it, too.
        """
        first, *later = rounds(self.count, self.turns)
        trials = self._first_round(*first)
        before = trials
        for keep, part in later:
            going = self._going_on(trials, keep)
            if len(going) == 1 and part < self.turns:
                continue  # nothing to choose from: it continues with the whole trace
            before, trials = trials, self._measured(going, part)
        best = trials[0]
        for trial in before[:ETA]:
            if best.factor(self.goal) <= 1:
                break
            if trial.candidate not in [one.candidate for one in trials]:
                again = self._tried(trial.candidate, self.turns)
                best = min(best, again, key=self._rank)
        return best

    def _first_round(self, count: int, part: int) -> list[Trial]:
        """Measure candidates as long as one may be better than the best; return the trials, best first."""
        forecasts = {one.candidate: one.forecast for one in self.tuning.considered}
        trials: list[Trial] = []
        while len(trials) < min(count, len(forecasts)):
            measured = {trial.candidate for trial in trials}
            cases = zip(forecasts, Belief(forecasts, trials, self.goal).best_cases(), strict=True)
            # Among equals, the first is the one that is predicted to be the best.
            candidate, rank = min(
                (case for case in cases if case[0] not in measured), key=lambda case: case[1]
            )
            if trials and not _is_worth(rank, min(map(self._rank, trials))):
                break
            trials.append(self._tried(candidate, part))
        return sorted(trials, key=self._rank)

    def _going_on(self, trials: Sequence[Trial], keep: int) -> list[Candidate]:
        """Return the candidates of the best trials, without those that are far behind."""
        factor, cost = self._rank(trials[0])
        best = [
            trial.candidate
            for trial in trials[:keep]
            if factor > 1 or self._rank(trial) <= (1.0, _APART * cost)
        ]
        return best or [trials[0].candidate]

    def _measured(self, going: Sequence[Candidate], part: int) -> list[Trial]:
        return sorted((self._tried(one, part) for one in going), key=self._rank)

    def _tried(self, candidate: Candidate, part: int) -> Trial:
        trial = self.tuning.trial(candidate, part)
        if trial is None:
            trial = self.measure(candidate, part)
            self.tuning.add(trial)
        self.on_trial(trial)
        return trial

    def _rank(self, trial: Trial) -> Rank:
        return trial.rank(self.goal)


def _is_worth(rank: Rank, best: Rank) -> bool:
    """Return whether a candidate that may reach a rank may be notably better than the best."""
    if best[0] > 1:
        return rank < best
    return rank[0] <= 1 and rank[1] < (1 - _WORTH) * best[1]


def pareto(trials: Sequence[Trial], goal: Sequence[Limit]) -> list[Trial]:
    """Return the trials than which none is both cheaper and nearer to the goal, the cheapest first."""
    front: list[Trial] = []
    for trial in sorted(trials, key=lambda t: (t.cost, t.factor(goal))):
        if not front or trial.factor(goal) < front[-1].factor(goal):
            front.append(trial)
    return front

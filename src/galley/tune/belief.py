"""Estimates of candidates from the plan's predictions and from the candidates measured so far.

The plan's predictions are right up to a factor at best: the plan knows neither the hit rate of the caches
nor the cost of the server itself. So the logarithm of measured to predicted is modeled as a sum of one term
for each value of a setting (Bayesian linear regression, Bishop 2006, 3.3). The term of a value that has
been measured, with whatever other settings, is known; the others are uncertain, and may turn out better
than predicted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.tune.forecast import Forecast
from galley.tune.goal import Limit
from galley.tune.space import Candidate
from galley.tune.trials import Trial

Rank = tuple[float, float]
"""(Largest ratio of a latency to its limit, at least 1; cost); less is better. See :meth:`Trial.rank`."""

_SCALE: Final = 3.0
"""Standard deviation of the logarithm of measured to predicted, for all candidates together."""
_VALUE: Final = 0.3
"""The same for the value of a setting: the plan errs by about a third in what one gains."""
_RUNS: Final = 0.1
"""The same for two runs of a candidate."""


class Belief:
    """Estimates of candidates from the plan's predictions and the trials so far."""

    def __init__(
        self,
        forecasts: Mapping[Candidate, Forecast | None],
        trials: Sequence[Trial],
        goal: Sequence[Limit],
    ) -> None:
        """Fit the predictions to the trials.

        Args:
            forecasts: of all candidates, in the order of their estimates.
            trials: on equally many turns of the trace; failed ones say nothing.
            goal: whose latencies are estimated.
        """
        self._goal = goal
        self._forecasts = list(forecasts.values())
        names = sorted({name for one in forecasts for name in _values(one)})
        self._columns = {name: column for column, name in enumerate(names, 1)}
        self._rows = np.array([self._row(one) for one in forecasts])
        self._places = {one: place for place, one in enumerate(forecasts)}
        self._trials = [one for one in trials if not one.problem and one.output_tokens]

    def best_cases(self) -> list[Rank]:
        """Return an optimistic rank of each candidate: with a probability of five in six, it is worse.

        A candidate that does not fit in memory reaches none. One that the plan knows nothing of is expected
        to cost as much as the worst.
        """
        known = [one for one in self._forecasts if one is not None]
        worst = max((one.cost for one in known), default=1.0)
        costs = np.array([worst if one is None else one.cost for one in self._forecasts])
        cheaper = self._least_ratios(costs, [trial.cost for trial in self._trials])
        loads = np.array([0.0 if one is None else one.load for one in self._forecasts])
        factors = np.maximum(1.0, loads / self._most_load())
        for limit in self._goal:
            times = [None if f is None else f.seconds(limit.metric) for f in self._forecasts]
            predicted = np.array([math.nan if time is None else time for time in times])
            measured = [trial.latencies.get(limit.name) for trial in self._trials]
            least = predicted * self._least_ratios(predicted, measured)
            factors = np.fmax(factors, least / limit.seconds)
        fits = [one is None or one.fits for one in self._forecasts]
        factors[~np.array(fits)] = math.inf
        return list(zip(factors.tolist(), (costs * cheaper).tolist(), strict=True))

    def _most_load(self) -> float:
        """Return the most predicted load with which a candidate may keep up, judged by those that did."""
        met = [one.candidate for one in self._trials if one.factor(self._goal) <= 1]
        known = [self._forecasts[self._places[one]] for one in met]
        return math.exp(_VALUE) * max([1.0, *(one.load for one in known if one is not None)])

    def _least_ratios(
        self, predicted: NDArray[np.float64], measured: Sequence[float | None]
    ) -> NDArray[np.float64]:
        """Return how many times its prediction each candidate may be: one deviation below the mean.

        Args:
            predicted: of each candidate; NaN: nothing is.
            measured: in each trial; None, or infinite: too many requests failed.
        """
        rows, targets = [], []
        for trial, value in zip(self._trials, measured, strict=True):
            place = self._places[trial.candidate]
            if value and math.isfinite(value) and predicted[place] > 0:
                rows.append(self._rows[place])
                targets.append(math.log(value / predicted[place]))
        size = self._rows.shape[1]
        precision = np.full(size, _VALUE**-2)
        precision[0] = _SCALE**-2
        matrix = np.array(rows).reshape(len(rows), size)
        covariance = np.linalg.inv(np.diag(precision) + matrix.T @ matrix / _RUNS**2)
        mean = covariance @ matrix.T @ np.array(targets) / _RUNS**2
        deviations = np.sqrt(np.einsum("ij,jk,ik->i", self._rows, covariance, self._rows))
        least: NDArray[np.float64] = np.exp(self._rows @ mean - deviations)
        return least

    def _row(self, candidate: Candidate) -> NDArray[np.float64]:
        row = np.zeros(1 + len(self._columns))
        row[[0, *(self._columns[name] for name in _values(candidate))]] = 1.0
        return row


def _values(candidate: Candidate) -> Iterator[str]:
    return (f"{name} {value}" for name, value in candidate.values.items())

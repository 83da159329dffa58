"""What measured candidates say about the others.

The plan's predictions are right in proportion at best: it knows neither the caches' share nor what the
server itself takes. So the logarithm of measured to predicted is taken as a sum of one term for each value
of a setting (Bayesian linear regression, Bishop 2006, 3.3). A value that has been measured with other
settings is known; one that has not is uncertain, and may be better than predicted.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
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
_COST: Final = "cost"


class Belief:
    """Estimates of candidates from the plan's predictions and the trials so far."""

    def __init__(
        self,
        forecasts: dict[Candidate, Forecast | None],
        trials: Iterable[Trial],
        goal: Sequence[Limit],
    ) -> None:
        """Fit the predictions to the trials.

        Args:
            forecasts: of all candidates.
            trials: on parts of the trace of any length; failed ones say nothing.
            goal: whose latencies are estimated.
        """
        self._forecasts = forecasts
        self._goal = goal
        self._worst = max((f.cost for f in forecasts.values() if f is not None), default=1.0)
        values = {name for one in forecasts for name in _values(one)}
        used = [trial for trial in trials if not trial.problem and trial.output_tokens]
        names = sorted(values | {_part(trial.turns) for trial in used})
        self._places = {name: place for place, name in enumerate(names, 1)}
        self._fits = {name: self._fit(name, used) for name in (_COST, *(x.name for x in goal))}

    def best_case(self, candidate: Candidate, turns: int) -> Rank:
        """Return the rank that a candidate may reach on so many turns; five of six are worse.

        A candidate that does not fit in memory reaches none.
        """
        forecast = self._forecasts[candidate]
        if forecast is not None and not forecast.fits:
            return math.inf, math.inf
        factors = [1.0, *self._factors(candidate, forecast, turns)]
        return max(factors), self._least(_COST, candidate, turns, self._predicted_cost(forecast))

    def _factors(
        self, candidate: Candidate, forecast: Forecast | None, turns: int
    ) -> Iterator[float]:
        if forecast is None:
            return
        # What a token costs is time of the cores that no other token gets.
        yield self._least(_COST, candidate, turns, forecast.load)
        for limit in self._goal:
            predicted = forecast.seconds(limit.metric)
            if predicted is not None:
                seconds = self._least(limit.name, candidate, turns, predicted)
                yield seconds / limit.seconds

    def _predicted_cost(self, forecast: Forecast | None) -> float:
        return self._worst if forecast is None else forecast.cost

    def _predicted(self, name: str, forecast: Forecast | None) -> float | None:
        if name == _COST:
            return self._predicted_cost(forecast)
        return None if forecast is None else forecast.seconds(name.split()[0])

    def _fit(
        self, name: str, trials: Sequence[Trial]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean and the covariance of the terms of one quantity."""
        rows, targets = [], []
        for trial in trials:
            measured = trial.cost if name == _COST else trial.latencies.get(name)
            predicted = self._predicted(name, self._forecasts.get(trial.candidate))
            if measured and predicted:
                rows.append(self._row(trial.candidate, trial.turns))
                targets.append(math.log(measured / predicted))
        size = 1 + len(self._places)
        precision = np.full(size, _VALUE**-2)
        precision[0] = _SCALE**-2
        matrix = np.array(rows).reshape(len(rows), size)
        covariance = np.linalg.inv(np.diag(precision) + matrix.T @ matrix / _RUNS**2)
        return covariance @ matrix.T @ np.array(targets) / _RUNS**2, covariance

    def _row(self, candidate: Candidate, turns: int) -> NDArray[np.float64]:
        row = np.zeros(1 + len(self._places))
        row[0] = 1.0
        for name in (*_values(candidate), _part(turns)):
            if name in self._places:
                row[self._places[name]] = 1.0
        return row

    def _least(self, name: str, candidate: Candidate, turns: int, predicted: float) -> float:
        """Return a quantity's predicted value, corrected, less one standard deviation."""
        mean, covariance = self._fits[name]
        row = self._row(candidate, turns)
        return predicted * math.exp(row @ mean - math.sqrt(row @ covariance @ row))


def _values(candidate: Candidate) -> Iterator[str]:
    return (f"{name} {value}" for name, value in candidate.values.items())


def _part(turns: int) -> str:
    return f"{turns} turns"

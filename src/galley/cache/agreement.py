"""The cosine from which two answers say the same, from pairs of answers that people have labeled.

A checked hit counts as false if the stored answer and the generated one do not say the same. Two kinds of
mistakes are possible. An alarm is a right hit that counts as false: too many turn the semantic cache off
without a reason. A miss is a false hit that is not noticed. A higher cosine means more alarms and fewer
misses, so the highest one is chosen whose alarms stay within the budget for false hits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from galley.cache.facts import same_facts
from galley.cache.tuning import Pair, is_below

_STEPS: Final = 1000
"""Cosines tried between 0 and 1."""


@dataclass(frozen=True)
class Agreement:
    """The mistakes of one cosine.

    Attributes:
        threshold: least cosine of answers that say the same.
        alarms: pairs that say the same, but are not taken to.
        same: pairs that say the same.
        missed: pairs that say different things, but are taken to say the same.
        different: pairs that say different things.
    """

    threshold: float
    alarms: int
    same: int
    missed: int
    different: int

    @property
    def alarm_rate(self) -> float:
        """Alarms as a share of the pairs that say the same."""
        return self.alarms / max(1, self.same)

    @property
    def missed_rate(self) -> float:
        """Misses as a share of the pairs that say different things."""
        return self.missed / max(1, self.different)

    def keeps(self, budget: float) -> bool:
        """Return whether the share of alarms is below the budget, with 95 % certainty."""
        return is_below(self.alarms, self.same, budget)


def agreements(pairs: Sequence[Pair], similarity: Callable[[str, str], float]) -> list[Agreement]:
    """Return the mistakes of each cosine above 0, ascending.

    Args:
        pairs: of answers.
        similarity: returns the cosine of two texts.
    """
    # Pairs by the step of their cosine: those of a step agree at this cosine and below.
    same, different = [0] * (_STEPS + 1), [0] * (_STEPS + 1)
    for pair in pairs:
        agreeing = same if pair.same else different
        agreeing[_step(pair, similarity)] += 1
    all_same, all_different = sum(same), sum(different)
    alarms, missed = 0, all_different
    found = []
    for step in range(1, _STEPS + 1):
        alarms, missed = alarms + same[step - 1], missed - different[step - 1]
        found.append(Agreement(step / _STEPS, alarms, all_same, missed, all_different))
    return found


def _step(pair: Pair, similarity: Callable[[str, str], float]) -> int:
    """Return the highest step at which the two agree by :meth:`galley.cache.semantic.Semantic.agree`."""
    if pair.first.split() == pair.second.split():
        return _STEPS
    if not same_facts(pair.first, pair.second):
        return 0
    cosine = similarity(pair.first, pair.second)
    return max(0, min(_STEPS, math.floor(cosine * _STEPS + 1e-9)))


def chosen_agreement(found: Sequence[Agreement], budget: float) -> Agreement | None:
    """Return the highest cosine whose alarms keep the budget; None if there is none."""
    return next((one for one in reversed(found) if one.keeps(budget)), None)

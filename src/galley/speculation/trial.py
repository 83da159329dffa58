"""Whether to look for draft tokens at all: looking takes time, which is scarce in a small model's steps.

The tokens per second of steps that look for draft tokens are compared with those of steps that do not.
The slower choice is retried from time to time. Each magnitude of the number of sequences is tracked
separately.
"""

from dataclasses import dataclass
from typing import Final

_PART: Final = 0.1
"""Weight of one step in the running averages."""

_CLEARLY_BETTER: Final = 1.3
"""Above this ratio, steps without lookup are no longer tried."""

_SOON: Final = 8
"""Number of steps before the slower choice is tried."""

_SELDOM: Final = 512
"""The same after many unsuccessful trials."""

_LOOKING: Final = 6
_RESTING: Final = 2
"""Number of steps per trial."""


@dataclass(slots=True)
class _Paces:
    """The paces for one magnitude of the number of sequences.

    Attributes:
        looking, resting: tokens per second; 0 before the first step.
        steps: number of steps since the last try.
        tried: number of steps left in a try.
        interval: number of steps until the next try.
    """

    looking: float = 0.0
    resting: float = 0.0
    steps: int = 0
    tried: int = 0
    interval: int = _SOON

    @property
    def worth(self) -> bool:
        """Whether looking is no slower than resting, as far as known."""
        return not self.looking or not self.resting or self.looking >= self.resting


class Trial:
    """The trials of one engine."""

    def __init__(self) -> None:
        self._paces: dict[int, _Paces] = {}

    def looks(self, sequences: int) -> bool:
        """Return whether to look for draft tokens in a step that decodes ``sequences`` sequences."""
        paces = self._paces.setdefault(sequences.bit_length(), _Paces())
        if paces.tried:
            paces.tried -= 1
            if not paces.tried:
                paces.interval = min(2 * paces.interval, _SELDOM)
            return not paces.worth
        paces.steps += 1
        sure = paces.resting and paces.looking > _CLEARLY_BETTER * paces.resting
        if paces.steps >= paces.interval and not sure:
            paces.steps, paces.tried = 0, (_RESTING if paces.worth else _LOOKING) - 1
            return not paces.worth
        return paces.worth

    def learn(self, sequences: int, looked: bool, tokens: int, seconds: float) -> None:
        """Record the tokens and seconds of a step that only decoded."""
        paces = self._paces.setdefault(sequences.bit_length(), _Paces())
        worth = paces.worth
        pace = tokens / max(seconds, 1e-9)
        if looked:
            paces.looking += (_PART if paces.looking else 1.0) * (pace - paces.looking)
        else:
            paces.resting += (_PART if paces.resting else 1.0) * (pace - paces.resting)
        if paces.worth is not worth:
            paces.steps, paces.tried, paces.interval = 0, 0, _SOON

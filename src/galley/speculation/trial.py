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

_SPECULATING: Final = 6
_PLAIN: Final = 2
"""Number of steps per trial."""


@dataclass(slots=True)
class _Paces:
    """The paces for one magnitude of the number of sequences.

    Attributes:
        speculating, plain: tokens per second; 0 before the first step.
        steps: number of steps since the last try.
        tried: number of steps left in a try.
        interval: number of steps until the next try.
    """

    speculating: float = 0.0
    plain: float = 0.0
    steps: int = 0
    tried: int = 0
    interval: int = _SOON

    @property
    def pays(self) -> bool:
        """Whether looking for draft tokens is not slower than resting, as far as known."""
        return not self.speculating or not self.plain or self.speculating >= self.plain


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
            return not paces.pays
        paces.steps += 1
        sure = paces.plain and paces.speculating > _CLEARLY_BETTER * paces.plain
        if paces.steps >= paces.interval and not sure:
            paces.steps, paces.tried = 0, (_PLAIN if paces.pays else _SPECULATING) - 1
            return not paces.pays
        return paces.pays

    def learn(self, sequences: int, looked: bool, tokens: int, seconds: float) -> None:
        """Record the tokens and seconds of a step that only decoded."""
        paces = self._paces.setdefault(sequences.bit_length(), _Paces())
        pays = paces.pays
        pace = tokens / max(seconds, 1e-9)
        if looked:
            paces.speculating += (_PART if paces.speculating else 1.0) * (pace - paces.speculating)
        else:
            paces.plain += (_PART if paces.plain else 1.0) * (pace - paces.plain)
        if paces.pays is not pays:
            paces.steps, paces.tried, paces.interval = 0, 0, _SOON

"""Whether to look for guesses at all: looking takes time, too, of which a small model's steps have little.

Steps in which guesses are looked for are held against steps in which they are not, by the tokens a second
of each. What is worse is tried again from time to time. Magnitudes of the number of sequences are apart.
"""

from dataclasses import dataclass
from typing import Final

_PART: Final = 0.1
"""How much one step changes what is known."""

_CLEARLY_BETTER: Final = 1.3
"""Above, steps without are not tried any more."""

_SOON: Final = 8
"""Steps before what is worse is tried."""

_SELDOM: Final = 512
"""The same, after many tries in vain."""

_LOOKING: Final = 6
_RESTING: Final = 2
"""Steps of a try."""


@dataclass(slots=True)
class _Paces:
    """Of one magnitude of the number of sequences.

    Attributes:
        looking, resting: tokens a second; 0 before the first step.
        steps: since the last try.
        tried: steps that are left of a try.
        interval: steps until the next.
    """

    looking: float = 0.0
    resting: float = 0.0
    steps: int = 0
    tried: int = 0
    interval: int = _SOON

    @property
    def worth(self) -> bool:
        """Whether looking is no worse than resting, as far as known."""
        return not self.looking or not self.resting or self.looking >= self.resting


class Trial:
    """Of one engine."""

    def __init__(self) -> None:
        self._paces: dict[int, _Paces] = {}

    def looks(self, sequences: int) -> bool:
        """Whether to look for guesses in the step at hand, which decodes so many sequences."""
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
        """A step that did nothing but decode took so long for so many tokens."""
        paces = self._paces.setdefault(sequences.bit_length(), _Paces())
        worth = paces.worth
        pace = tokens / max(seconds, 1e-9)
        if looked:
            paces.looking += (_PART if paces.looking else 1.0) * (pace - paces.looking)
        else:
            paces.resting += (_PART if paces.resting else 1.0) * (pace - paces.resting)
        if paces.worth is not worth:
            paces.steps, paces.tried, paces.interval = 0, 0, _SOON

"""How likely a guess is right, learned from those that were verified."""

from typing import Final

from galley.speculation.proposer import MOST_MATCH

BUCKETS: Final = MOST_MATCH.bit_length() + 1
"""Matches of 1, 2-3, 4-7, ... tokens are told apart."""

_ENGINE_WEIGHT: Final = 256.0
_SEQUENCE_WEIGHT: Final = 12.0
_PRIOR: Final = 0.8
"""Of what was never tried: high, so that it is tried where guesses pay only when they are mostly right."""
_PRIOR_WEIGHT: Final = 4.0
_ENGINE_FADING: Final = 0.999
_SEQUENCE_FADING: Final = 0.97

LEAST_PROBABILITY: Final = 0.02
MOST_PROBABILITY: Final = 0.98
"""Nothing is believed more surely than this, so that everything can be unlearned."""


def bucket_of(match: int) -> int:
    """The bucket of a match of so many tokens."""
    return min(match, MOST_MATCH).bit_length()


class Rate:
    """Share of guesses that were right, of those that stood behind right ones alone.

    Older guesses weigh less, so that no more than ``most`` weigh together.
    """

    __slots__ = ("_fading", "_most", "_right", "_tried")

    def __init__(self, most: float, fading: float) -> None:
        self._most = most
        self._fading = fading
        self._right = self._tried = 0.0

    def beside(self, prior: float) -> float:
        """The share, where ``prior`` weighs as much as a few guesses."""
        return (self._right + _PRIOR_WEIGHT * prior) / (self._tried + _PRIOR_WEIGHT)

    def add(self, right: int, tried: int) -> None:
        """So many more were tried."""
        self._right += right
        self._tried += tried
        if self._tried > self._most:
            scale = self._most / self._tried
            self._right *= scale
            self._tried *= scale

    def fade(self) -> None:
        """Nothing was tried: what is known grows old, so that it is tried again some time."""
        self._right *= self._fading
        self._tried *= self._fading


class Acceptance:
    """Of one proposer in all sequences of an engine, for each bucket of matches."""

    def __init__(self) -> None:
        self._rates = [Rate(_ENGINE_WEIGHT, _ENGINE_FADING) for _ in range(BUCKETS)]

    def of_sequence(self) -> "SequenceAcceptance":
        """What is known of a sequence that begins."""
        return SequenceAcceptance(self._rates)


class SequenceAcceptance:
    """Of one proposer in one sequence; where little is known of it, that of all sequences."""

    def __init__(self, common: list[Rate]) -> None:
        self._common = common
        self._own: dict[int, Rate] = {}

    def probability(self, bucket: int) -> float:
        """That a guess is right if all before it are."""
        p = self._common[bucket].beside(_PRIOR)
        if own := self._own.get(bucket):
            p = own.beside(p)
        return min(max(p, LEAST_PROBABILITY), MOST_PROBABILITY)

    def learn(self, bucket: int, right: int, wrong: int) -> None:
        """Of the guesses that counted so many were right; ``wrong``: 1 if one ended them, else 0."""
        self._common[bucket].add(right, right + wrong)
        own = self._own.setdefault(bucket, Rate(_SEQUENCE_WEIGHT, _SEQUENCE_FADING))
        own.add(right, right + wrong)

    def fade(self, bucket: int) -> None:
        """A proposal was not worth its cost."""
        self._common[bucket].fade()
        if own := self._own.get(bucket):
            own.fade()

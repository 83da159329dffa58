"""The acceptance probability of draft tokens, learned from those that were verified."""

from typing import Final

from galley.speculation.proposer import MOST_MATCH

BUCKETS: Final = MOST_MATCH.bit_length() + 1
"""Matches of 1, 2-3, 4-7, ... tokens have separate rates."""

_ENGINE_WEIGHT: Final = 256.0
_SEQUENCE_WEIGHT: Final = 12.0
_PRIOR: Final = 0.8
"""Assumed rate before the first trial: high, so that it is tried even if drafts must mostly be accepted."""
_PRIOR_WEIGHT: Final = 4.0
_ENGINE_FADING: Final = 0.999
_SEQUENCE_FADING: Final = 0.97

LEAST_PROBABILITY: Final = 0.02
MOST_PROBABILITY: Final = 0.98
"""Bounds of all estimates, so that any estimate can be unlearned."""


def bucket_of(match: int) -> int:
    """Return the bucket of a match of ``match`` tokens."""
    return min(match, MOST_MATCH).bit_length()


class Rate:
    """The share of draft tokens that were accepted, among those whose predecessors were all accepted.

    Older draft tokens weigh less, so that all of them together weigh at most ``most``.
    """

    __slots__ = ("_fading", "_most", "_right", "_tried")

    def __init__(self, most: float, fading: float) -> None:
        self._most = most
        self._fading = fading
        self._right = self._tried = 0.0

    def smoothed(self, prior: float) -> float:
        """Return the share, where ``prior`` weighs as much as a few draft tokens."""
        return (self._right + _PRIOR_WEIGHT * prior) / (self._tried + _PRIOR_WEIGHT)

    def add(self, right: int, tried: int) -> None:
        """Count ``tried`` more draft tokens, of which ``right`` were accepted."""
        self._right += right
        self._tried += tried
        if self._tried > self._most:
            scale = self._most / self._tried
            self._right *= scale
            self._tried *= scale

    def decay(self) -> None:
        """Age the estimate when nothing was tried, so that it is eventually tried again."""
        self._right *= self._fading
        self._tried *= self._fading


class Acceptance:
    """The acceptance of one proposer in all sequences of an engine, for each bucket of matches."""

    def __init__(self) -> None:
        self._rates = [Rate(_ENGINE_WEIGHT, _ENGINE_FADING) for _ in range(BUCKETS)]

    def of_sequence(self) -> "SequenceAcceptance":
        """Return the acceptance for a new sequence."""
        return SequenceAcceptance(self._rates)


class SequenceAcceptance:
    """The acceptance of one proposer in one sequence; with few samples, mostly that of all sequences."""

    def __init__(self, common: list[Rate]) -> None:
        self._common = common
        self._own: dict[int, Rate] = {}

    def probability(self, bucket: int) -> float:
        """Return the probability that a draft token is accepted if all before it are."""
        p = self._common[bucket].smoothed(_PRIOR)
        if own := self._own.get(bucket):
            p = own.smoothed(p)
        return min(max(p, LEAST_PROBABILITY), MOST_PROBABILITY)

    def learn(self, bucket: int, right: int, wrong: int) -> None:
        """Record ``right`` accepted draft tokens; ``wrong`` is 1 if a rejected one ended them, else 0."""
        self._common[bucket].add(right, right + wrong)
        own = self._own.setdefault(bucket, Rate(_SEQUENCE_WEIGHT, _SEQUENCE_FADING))
        own.add(right, right + wrong)

    def decay(self, bucket: int) -> None:
        """Age the estimates, because a proposal was not worth its cost."""
        self._common[bucket].decay()
        if own := self._own.get(bucket):
            own.decay()

"""What a proposer is: where guesses come from."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias


class Proposal(NamedTuple):
    """Guesses of the tokens that come next.

    Attributes:
        tokens: in order; empty if the proposer has no idea.
        match: how many of the sequence's last tokens the guesses rest on; the longest match is believed.
    """

    tokens: Sequence[int]
    match: int


NO_PROPOSAL: Final = Proposal((), 0)


Forced: TypeAlias = Callable[[], Sequence[int]]
"""The tokens for what a sequence's grammar leaves no choice about next; mostly none."""


class Follower(Protocol):
    """A proposer's view of one sequence."""

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """At most ``most`` guesses, at least 1, of what follows ``tokens``: all that the sequence has.

        Between two calls the sequence only grows.
        """


class Proposer(Protocol):
    """One for each engine.

    Attributes:
        name: in settings and metrics.
    """

    name: str

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """A sequence begins; only what has the same ``salt`` may show in its guesses.

        ``forced`` is of its grammar, if it has one.
        """

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """A sequence has ended; the first ``prompt`` of its ``tokens`` were given."""


MOST_MATCH: Final = 32
"""Matches are not followed further back."""


def common_suffix(one: Sequence[int], end: int, other: Sequence[int]) -> int:
    """How many tokens before ``one[end]`` are those that ``other`` ends with, up to :data:`MOST_MATCH`."""
    most = min(end, len(other), MOST_MATCH)
    for i in range(1, most + 1):
        if one[end - i] != other[-i]:
            return i - 1
    return most

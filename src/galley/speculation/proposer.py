"""The interface of a proposer, a source of draft tokens."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias


class Proposal(NamedTuple):
    """Draft tokens that may come next.

    Attributes:
        tokens: the draft tokens in order; empty if the proposer has none.
        match: number of the sequence's last tokens that the proposal is based on; the longest match wins.
    """

    tokens: Sequence[int]
    match: int


NO_PROPOSAL: Final = Proposal((), 0)


Forced: TypeAlias = Callable[[], Sequence[int]]
"""Returns the next tokens that a sequence's grammar forces; mostly none."""


class Follower(Protocol):
    """A proposer's view of one sequence."""

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """Return at most ``most`` (at least 1) draft tokens after ``tokens``, the whole sequence.

        Between two calls the sequence only grows.
        """


class Proposer(Protocol):
    """A source of draft tokens; one instance per engine.

    Attributes:
        name: its name in settings and metrics.
    """

    name: str

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """Begin a sequence; only content with the same ``salt`` may appear in its draft tokens.

        ``forced`` belongs to its grammar, if it has one.
        """

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Record the end of a sequence; the first ``prompt`` of its ``tokens`` are its prompt."""


MOST_MATCH: Final = 32
"""Maximum length of a match, counted backwards from the last token."""


def common_suffix(one: Sequence[int], end: int, other: Sequence[int]) -> int:
    """Return how many tokens before ``one[end]`` match the end of ``other``, up to :data:`MOST_MATCH`."""
    most = min(end, len(other), MOST_MATCH)
    for i in range(1, most + 1):
        if one[end - i] != other[-i]:
            return i - 1
    return most

"""Prompt lookup: proposes what followed an earlier occurrence of the sequence's last tokens.

Source: A. Saxena, "Prompt Lookup Decoding" (2023); outputs count as well as prompts.
"""

from collections.abc import Sequence
from typing import Final

from galley.speculation.proposer import NO_PROPOSAL, Follower, Forced, Proposal, common_suffix

LENGTHS: Final = (8, 4, 2)
"""Lengths of the n-grams that are looked up, the longest first."""

KEPT_TOKENS: Final = 4096
"""Minimum number of a sequence's last tokens in its index; the maximum is twice as many."""


class PromptLookup:
    """Looks up earlier occurrences: see :class:`galley.speculation.proposer.Proposer`."""

    name = "prompt"

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """Return a follower with a new index, one for each sequence."""
        return _Follower()

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Do nothing: no state outlives a sequence."""


class _Follower:
    """An index from each n-gram of the sequence to the latest position after it.

    Each token is entered once, when its successor is known. Entries are hashes, so a match is checked
    against the tokens themselves.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._first = self._end = 0
        """The positions from ``_first`` up to but excluding ``_end`` are in the index."""

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """Return the tokens after a match: see :meth:`galley.speculation.proposer.Follower.propose`.

        Where a proposal would extend beyond the end of the sequence, it starts again at the match, as if
        the text repeated itself.
        """
        self._enter(tokens)
        for length in LENGTHS:
            place = self._places.get(hash(tuple(tokens[-length:])))
            if place is None:
                continue
            match = common_suffix(tokens, place, tokens)
            if match >= length:
                period = len(tokens) - place
                if most <= period:
                    return Proposal(tokens[place : place + most], match)
                return Proposal([tokens[place + i % period] for i in range(most)], match)
        return NO_PROPOSAL

    def _enter(self, tokens: Sequence[int]) -> None:
        if len(tokens) - self._first > 2 * KEPT_TOKENS:
            self._places.clear()
            self._first = self._end = len(tokens) - KEPT_TOKENS
        places = self._places
        for place in range(max(self._end, 1), len(tokens)):
            for length in LENGTHS:
                if place >= length:
                    places[hash(tuple(tokens[place - length : place]))] = place
        self._end = len(tokens)

"""Forced tokens: what a grammar leaves no choice about, such as the keys of a JSON schema."""

from collections.abc import Sequence

from galley.speculation.proposer import MOST_MATCH, NO_PROPOSAL, Follower, Forced, Proposal


class ForcedTokens:
    """Proposes what the grammar forces: see :class:`galley.speculation.proposer.Proposer`.

    A grammar forces bytes; its tokens for them are only draft tokens, because the model may tokenize the
    bytes differently.
    """

    name = "grammar"

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """Return a follower of the sequence's grammar."""
        return _Follower(forced)

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Do nothing: no state outlives a sequence."""


class _Follower:
    def __init__(self, forced: Forced | None) -> None:
        self._forced = forced

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """Return forced tokens: see :meth:`galley.speculation.proposer.Follower.propose`."""
        forced = self._forced() if self._forced is not None else ()
        return Proposal(forced[:most], MOST_MATCH + 1) if forced else NO_PROPOSAL

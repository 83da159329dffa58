"""Decides which draft tokens a step verifies: those that maximize its tokens per second.

A step with S decoding sequences produces S tokens in T(S) seconds. A draft token adds a row, and another
token with the probability that it and those before it are accepted. Draft tokens are taken in order of
probability, as many as maximize the expected tokens divided by the seconds that the step takes with them.
Where rows cost as much as they yield, as in large batches, none are taken.

Looking up draft tokens costs almost nothing. A drafter's steps cost time, so the number of its draft
tokens is decided in advance, for the sequences for which it is likelier to be right than the lookup.
Whether looking for draft tokens pays at all is found by trial (``trial.py``).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from galley.speculation.acceptance import (
    MOST_PROBABILITY,
    Acceptance,
    SequenceAcceptance,
    bucket_of,
)
from galley.speculation.drafter import Candidate, Drafter, Wanted, draft_length
from galley.speculation.proposer import NO_PROPOSAL, Follower, Forced, Proposal, Proposer
from galley.speculation.row_costs import RowCosts
from galley.speculation.trial import Trial

MOST_DRAFT_TOKENS: Final = 16
"""Maximum number of draft tokens for one sequence in one step."""

_clock: Final = time.perf_counter

_DRAFT_MATCH: Final = 1
_DRAFT_BUCKET: Final = bucket_of(_DRAFT_MATCH)
"""Match length of a draft model, which needs no match."""

_MARGIN: Final = 1.03
"""Minimum ratio of the expected pace with draft tokens to that without them."""


@dataclass(slots=True)
class _Tries:
    """One proposer's view of a sequence, and its acceptance there."""

    place: int
    follower: Follower
    acceptance: SequenceAcceptance


@dataclass(slots=True)
class SequenceDrafts:
    """The speculator's state for one sequence.

    Attributes:
        proposed, accepted: draft tokens that were verified, and those of them that were accepted.
    """

    tries: Sequence[_Tries]
    proposed: int = 0
    accepted: int = 0
    _paused_steps: int = 0
    _failed_lookups: int = 0
    _chosen: "tuple[_Tries, int, Sequence[int], int] | None" = None
    """Whose draft tokens are being verified, their bucket, the tokens, and the sequence's length before."""


@dataclass(slots=True)
class Counts:
    """Draft tokens of one proposer that were verified, and those of them that were accepted."""

    proposed: int = 0
    accepted: int = 0


@dataclass(slots=True, frozen=True)
class DraftRequest:
    """A sequence that has caught up: at most ``most`` draft tokens may follow its ``tokens``."""

    drafts: SequenceDrafts
    tokens: Sequence[int]
    most: int
    sequence: Any = None
    """The sequence, as passed to the drafter."""


class _Draft:
    """Represents the drafter among the proposers; the drafter runs once for all sequences of a step."""

    name = "draft"

    def follow(self, salt: bytes, forced: Forced | None) -> Follower:
        """Return the same follower for all sequences."""
        return self

    def propose(self, tokens: Sequence[int], most: int) -> Proposal:
        """Return no proposal."""
        return NO_PROPOSAL

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Do nothing."""


class Speculator:
    """Chooses the draft tokens of one engine's steps.

    Attributes:
        counts: verified and accepted draft tokens by proposer.
    """

    def __init__(
        self, proposers: Sequence[Proposer], costs: RowCosts, drafter: Drafter[Any] | None = None
    ) -> None:
        self._drafter = drafter
        proposers = [*proposers, *([_Draft()] if drafter is not None else [])]
        self._proposers = proposers
        self._acceptance = [Acceptance() for _ in proposers]
        self._costs = costs
        self._trial = Trial()
        self._step: tuple[int, int] | None = None
        self._looked, self._gained = False, 0
        self._lookup_seconds = 0.0
        """Seconds spent on lookups in steps that also computed prompts, and on texts that had ended."""
        self.counts = {proposer.name: Counts() for proposer in proposers}

    def follow(self, salt: bytes, forced: Forced | None = None) -> SequenceDrafts:
        """Begin a sequence; only sequences with the same ``salt`` may appear in its draft tokens.

        ``forced`` belongs to its grammar, if it has one.
        """
        return SequenceDrafts(
            [
                _Tries(place, proposer.follow(salt, forced), acceptance.of_sequence())
                for place, (proposer, acceptance) in enumerate(
                    zip(self._proposers, self._acceptance, strict=True)
                )
            ]
        )

    def remember(self, salt: bytes, tokens: Sequence[int], prompt: int) -> None:
        """Record the end of a sequence; the first ``prompt`` of its ``tokens`` are its prompt."""
        began = _clock()
        for proposer in self._proposers:
            proposer.remember(salt, tokens, prompt)
        self._lookup_seconds += _clock() - began

    def least(self, decoding: int, rows: int) -> float:
        """Return the probability below which no draft token is worth its row; 1 if none can be.

        It is called first in each step.

        Args:
            decoding, rows: as for :meth:`propose_drafts`.
        """
        self._step = (decoding, 0) if rows == decoding else None
        self._looked, self._gained = False, 0
        if not self._trial.looks(decoding):
            return 1.0
        alone = self._costs.plain(decoding)
        least, draft_tokens = 1.0, 1
        while draft_tokens <= decoding * MOST_DRAFT_TOKENS:
            ratio = _MARGIN * self._costs.with_drafts(decoding, rows, draft_tokens) / alone
            least = min(least, decoding * (ratio - 1) / draft_tokens)
            draft_tokens *= 2
        return least if least <= MOST_PROBABILITY else 1.0

    def propose_drafts(
        self,
        requests: Sequence[DraftRequest],
        *,
        decoding: int,
        rows: int,
        budget: int,
        least: float,
    ) -> list[Sequence[int]]:
        """Return the draft tokens of each of the sequences; mostly none.

        Args:
            requests: the sequences that may get draft tokens.
            decoding: number of sequences that get a token in the step, at least 1.
            rows: rows of the step so far; more than ``decoding`` if prompts are computed in it.
            budget: maximum number of draft tokens in total.
            least: the result of :meth:`least`.
        """
        self._looked = True
        began = _clock()
        draft_tokens: list[Sequence[int]] = [()] * len(requests)
        chains: list[tuple[float, int]] = []  # (probability that all up to it are accepted, index)
        found = [self._longest(one, decoding) for one in requests]
        if self._drafter is not None:
            self._draft(self._drafter, requests, found, decoding, rows, budget, least)
        for i, (tries, proposal) in enumerate(found):
            p = tries.acceptance.probability(bucket_of(proposal.match))
            value = 1.0
            for _ in proposal.tokens if p >= least else ():
                value *= p
                chains.append((value, i))
        chains.sort(reverse=True)
        lengths = [0] * len(requests)
        for _, i in chains[: self._best_count(chains[:budget], decoding, rows)]:
            lengths[i] += 1
        for i, (tries, proposal) in enumerate(found):
            if proposal.tokens:
                draft_tokens[i] = self._choose(requests[i], tries, proposal, lengths[i], decoding)
        if self._step is not None:
            self._step = (decoding, sum(map(len, draft_tokens)))
        else:
            self._lookup_seconds += _clock() - began
        return draft_tokens

    def settle(self, drafts: SequenceDrafts, tokens: Sequence[int]) -> None:
        """Record the verified draft tokens of a sequence, whose ``tokens`` include the accepted ones."""
        assert drafts._chosen is not None
        (tries, bucket, draft_tokens, known), drafts._chosen = drafts._chosen, None
        drawn = tokens[known : known + len(draft_tokens)]
        right = 0
        while right < len(drawn) and drawn[right] == draft_tokens[right]:
            right += 1
        # At the end of a text, no token was sampled for the next draft token.
        tries.acceptance.learn(bucket, right, int(right < len(drawn)))
        drafts.proposed += len(draft_tokens)
        drafts.accepted += right
        counts = self.counts[self._proposers[tries.place].name]
        counts.proposed += len(draft_tokens)
        counts.accepted += right
        self._gained += right
        if right:
            drafts._failed_lookups = drafts._paused_steps = 0

    def observe(self, seconds: float, drafting: float = 0.0) -> None:
        """Record the seconds of the step, of which the drafter took ``drafting``."""
        step, self._step = self._step, None
        if step is not None:
            decoding, draft_tokens = step
            self._costs.observe(decoding, draft_tokens, seconds - drafting)
            if self._looked:
                seconds, self._lookup_seconds = seconds + self._lookup_seconds, 0.0
            self._trial.learn(decoding, self._looked, decoding + self._gained, seconds)

    def _longest(self, one: DraftRequest, decoding: int) -> tuple[_Tries, Proposal]:
        """Return the view that has the proposal with the longest match, and this proposal."""
        drafts = one.drafts
        best, chosen = NO_PROPOSAL, drafts.tries[0]
        if drafts._paused_steps:
            drafts._paused_steps -= 1
            return chosen, best
        most = min(one.most, MOST_DRAFT_TOKENS)
        for tries in drafts.tries:
            proposal = tries.follower.propose(one.tokens, most)
            if proposal.tokens and proposal.match > best.match:
                best, chosen = proposal, tries
        if not best.tokens:
            self._pause(drafts, decoding)
        return chosen, best

    def _draft(
        self,
        drafter: Drafter[Any],
        requests: Sequence[DraftRequest],
        found: list[tuple[_Tries, Proposal]],
        decoding: int,
        rows: int,
        budget: int,
        least: float,
    ) -> None:
        """Replace less likely proposals with the drafter's draft tokens, if that is worth its cost."""
        chosen: dict[int, Candidate] = {}
        for i, (one, (tries, proposal)) in enumerate(zip(requests, found, strict=True)):
            p = one.drafts.tries[-1].acceptance.probability(_DRAFT_BUCKET)
            other = (
                tries.acceptance.probability(bucket_of(proposal.match)) if proposal.tokens else 0.0
            )
            if p > other and (backlog := drafter.backlog(one.sequence)):
                chosen[i] = Candidate(p, one.most, backlog)
        unlikely = [i for i, one in chosen.items() if one.probability < least]
        likely = {i: one for i, one in chosen.items() if one.probability >= least}
        length = 0
        if likely:
            most = min(MOST_DRAFT_TOKENS, budget // len(likely))
            length, pace = draft_length(
                list(likely.values()),
                drafter.costs,
                self._costs,
                decoding=decoding,
                rows=rows,
                most=most,
            )
            if pace <= _MARGIN * decoding / self._costs.plain(decoding):
                length = 0
        for i in [*unlikely, *(likely if not length else ())]:
            requests[i].drafts.tries[-1].acceptance.decay(_DRAFT_BUCKET)
        if not length:
            return
        wanted = [Wanted(requests[i].sequence, min(length, requests[i].most)) for i in likely]
        for i, tokens in zip(likely, drafter.draft(wanted), strict=True):
            if tokens:
                found[i] = (requests[i].drafts.tries[-1], Proposal(tokens, _DRAFT_MATCH))

    def _choose(
        self, one: DraftRequest, tries: _Tries, proposal: Proposal, length: int, decoding: int
    ) -> Sequence[int]:
        bucket = bucket_of(proposal.match)
        if not length:
            tries.acceptance.decay(bucket)
            self._pause(one.drafts, decoding)
            return ()
        draft_tokens = proposal.tokens[:length]
        one.drafts._chosen = (tries, bucket, draft_tokens, len(one.tokens))
        return draft_tokens

    @staticmethod
    def _pause(drafts: SequenceDrafts, decoding: int) -> None:
        """Pause lookups for some steps: unsuccessful ones would cost a large batch more than they save."""
        drafts._failed_lookups += 1
        drafts._paused_steps = min(drafts._failed_lookups, decoding // 2)

    def _best_count(self, chains: Sequence[tuple[float, int]], decoding: int, rows: int) -> int:
        """Return how many of the draft tokens, likeliest first, maximize the tokens per second."""
        expected = float(decoding)
        best, chosen = _MARGIN * decoding / self._costs.plain(decoding), 0
        for count, (value, _) in enumerate(chains, start=1):
            expected += value
            pace = expected / self._costs.with_drafts(decoding, rows, count)
            if pace > best:
                best, chosen = pace, count
        return chosen

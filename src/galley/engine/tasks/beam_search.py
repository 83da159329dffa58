"""Beam search: several hypotheses of one request advance together, one token per step.

It follows transformers (``early_stopping`` false, ``renormalize_logits`` true): scores are sums of
log-probabilities among the tokens that lists and rules leave. A finished hypothesis counts with its sum
divided by its length to the power of ``length_penalty``, if it is among the best ``num_beams``
continuations of its step. The search ends when no running hypothesis would beat the worst of
``num_beams`` finished ones at its present length.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from galley.engine.token_rules import TokenRules
from galley.ops.sampling import Candidate
from galley.types import SamplingParams
from galley.types.audio import NO_RULES, SpeechRules


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Output tokens and the log-probability of each; ``total`` is the sum of these."""

    tokens: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    total: float = 0.0
    rules: TokenRules | None = None

    def extended(self, token: int, score: float) -> "Hypothesis":
        """Return the hypothesis extended by one token."""
        rules = copy.copy(self.rules)
        if rules is not None:
            rules.accept(token)
        tokens, scores = (*self.tokens, token), (*self.scores, score)
        return Hypothesis(tokens, scores, self.total + score, rules)


class Continuation(NamedTuple):
    """Hypothesis ``parent`` with one more ``token`` of log-probability ``score``; ``total`` is the sum."""

    total: float
    score: float
    parent: int
    token: int


class BeamSearch:
    """The search of one request.

    Attributes:
        running: hypotheses to continue, best first; at the beginning, one without tokens.
        finished: (score, hypothesis), best first.
    """

    def __init__(
        self, params: SamplingParams, stop_ids: Collection[int], rules: SpeechRules = NO_RULES
    ) -> None:
        """Create the search; ``max_tokens`` is set and at least 1, and ``rules`` are a transcript's."""
        self._params = params
        self._stop_ids = stop_ids
        self.running = [Hypothesis(rules=TokenRules.of(rules, (), params.thinking))]
        self.finished: list[tuple[float, Hypothesis]] = []

    @property
    def candidates(self) -> int:
        """Next tokens considered per hypothesis: enough continue even if all stop tokens are among them."""
        return max(2, 1 + len(self._stop_ids)) * self._params.num_beams

    def advance(self, candidates: Sequence[Sequence[Candidate]]) -> list[int] | None:
        """Choose the next token of each hypothesis.

        Args:
            candidates: for each running hypothesis, its likeliest next tokens, best first.

        Returns:
            For each of the new ``running`` hypotheses, the index of its parent among the old ones; None
            if the search is over.
        """
        width, length = self._params.num_beams, len(self.running[0].tokens) + 1
        is_last = length == self._params.max_tokens
        parents: list[int] = []
        running: list[Hypothesis] = []
        for rank, (_, score, parent, token) in enumerate(self._continuations(candidates)):
            stops = is_last or token in self._stop_ids
            if stops and rank < width:
                self._finish(self.running[parent].extended(token, score))
            elif not stops and len(running) < width:
                parents.append(parent)
                running.append(self.running[parent].extended(token, score))
        self.running = running
        return parents if running and self._may_improve() else None

    def _continuations(self, candidates: Sequence[Sequence[Candidate]]) -> list[Continuation]:
        """Return the best continuations of all hypotheses, best first."""
        found = [
            Continuation(hypothesis.total + score, score, parent, token)
            for parent, hypothesis in enumerate(self.running)
            for token, score in candidates[parent]
        ]
        return sorted(found, key=lambda continuation: -continuation.total)[: self.candidates]

    def _finish(self, hypothesis: Hypothesis) -> None:
        self.finished.append((self._normalized(hypothesis), hypothesis))
        self.finished.sort(key=lambda entry: -entry[0])
        del self.finished[self._params.num_beams :]

    def _may_improve(self) -> bool:
        if len(self.finished) < self._params.num_beams:
            return True
        return self._normalized(self.running[0]) > self.finished[-1][0]

    def _normalized(self, hypothesis: Hypothesis) -> float:
        length: float = len(hypothesis.tokens) ** self._params.length_penalty
        return hypothesis.total / length

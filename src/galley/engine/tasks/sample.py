"""Samples one token after another."""

from collections.abc import Collection
from collections.abc import Sequence as Ids
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from galley.engine.logits_adjuster import LogitsAdjuster
from galley.engine.tasks.base import NO_CHOICE, Task
from galley.grammar.matcher import GrammarMatcher
from galley.ops.draws import NO_TOKEN, sampling_record
from galley.ops.sampling import LogitsAdjustment, SamplingBatch, StepResult
from galley.types import (
    FinishReason,
    Output,
    SamplingParams,
    TokenLogprob,
    Tokens,
    Written,
)

if TYPE_CHECKING:
    from galley.engine.scheduler import Work
    from galley.engine.sequence import Sequence


_LEAST_NUCLEUS = 1e-300
"""Replaces a ``top_p`` of 0, so that only the likeliest token is left."""


class SampleTask(Task):
    """Ends at a stop token, where the grammar ends, or at the request's ``max_tokens``.

    A step verifies its draft tokens: the token sampled at a draft token's row is the one that would have
    been sampled without speculation, because the noise depends only on seed and position. Sampled tokens
    are kept up to the first one that differs from its draft token.
    """

    def __init__(
        self,
        payload: Written,
        stop_ids: Collection[int],
        grammar: GrammarMatcher | None = None,
    ) -> None:
        """Create the task; ``stop_ids`` end the text, and ``grammar`` has consumed the request's output."""
        params = payload.sampling
        assert params.max_tokens is not None
        self._stop_ids = stop_ids
        self._most = len(payload.prompt) + params.max_tokens
        self._record = record_of(params)
        self._adjuster = LogitsAdjuster.of(payload, stop_ids)
        self._logprobs = params.logprobs
        self._scores = params.scores
        self._grammar = grammar
        self._details = any((self._adjuster, grammar, self._logprobs is not None, self._scores))
        self._draw = 0
        """Index of the first draw of the current step."""

    def reusable(self, sequence: "Sequence") -> int:
        """Return all tokens but the last, whose row yields the next one."""
        return len(sequence.tokens) - 1

    def shares(self, sequence: "Sequence") -> bool:
        """Return True."""
        return True

    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """Return the number of rows to sample from: the last known token's and one per draft token."""
        return 1 + len(work.draft_tokens) if work.completes and self._room(sequence) else 0

    def max_draft_tokens(self, sequence: "Sequence") -> int:
        """Return the number of tokens still allowed, less one: the last draw needs no row after its own."""
        return self._room(sequence) - 1

    @property
    def follows(self) -> bool:
        """Whether no draw depends on earlier ones other than by the token itself."""
        return not self._details

    def expect(self, draw: int) -> None:
        """See :meth:`Task.expect`."""
        self._draw = draw

    @property
    def sampling_record(self) -> bytes:
        """The request's sampling parameters."""
        return self._record

    def adjustment(self, draft_tokens: Ids[int]) -> LogitsAdjustment | None:
        """Return the changes of penalties, bias, lists and rules."""
        if self._adjuster is None:
            return None
        adjuster = self._adjuster.copy()
        for token in draft_tokens:
            adjuster.accept(token)
        return adjuster.adjustment()

    @property
    def grammar(self) -> GrammarMatcher | None:
        """State of the grammar after the accepted tokens."""
        return self._grammar

    def _room(self, sequence: "Sequence") -> int:
        """Return how many more tokens are allowed."""
        return self._most - len(sequence.tokens)

    def select_results(
        self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch
    ) -> None:
        """Request a draw from each selected row."""
        self._draw = len(sampling.rows)
        known = len(sequence.tokens)
        for i, row in enumerate(rows):
            sampling.draw(row, known + i, self._record)
        if self._details and rows:
            self._select_details(work.draft_tokens, sampling)

    def _select_details(self, draft_tokens: Ids[int], sampling: SamplingBatch) -> None:
        adjuster = self._adjuster
        if self._grammar is not None:
            masks = self._grammar.empty_masks(1 + len(draft_tokens))
            forced: list[int | None] = []
            sampling.mask_fills.append(partial(self._grammar.fill, draft_tokens, masks, forced))
        for i in range(1 + len(draft_tokens)):
            draw = self._draw + i
            if adjuster is not None:
                adjustment = adjuster.adjustment()
                if adjuster.forced is not None and self._grammar is None:
                    only = np.array([adjuster.forced], dtype=np.int64)
                    adjustment = adjustment._replace(allowed=only)
                sampling.adjustments[draw] = adjustment
                if self._grammar is not None:
                    forced.append(adjuster.forced)
                if i < len(draft_tokens):  # the row after a draft token treats it as output
                    adjuster = adjuster.copy()
                    adjuster.accept(draft_tokens[i])
            if self._grammar is not None:
                adjustment = sampling.adjustments.get(draw) or LogitsAdjustment()
                sampling.adjustments[draw] = adjustment._replace(mask=masks[i])
            if self._logprobs is not None:
                sampling.drawn_logprobs[draw] = self._logprobs
            if self._scores:
                sampling.drawn_scores.append(draw)

    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """Return the next token, and one more for each accepted draft token."""
        if not work.completes:
            return None
        if not self._room(sequence):
            return Output(
                request_id=sequence.id, cached_tokens=sequence.cached, finish_reason="length"
            )
        tokens, reason = self._accept(sequence, work.draft_tokens, result.tokens)
        logprobs: list[TokenLogprob] | None = None
        scores: list[float] | None = None
        draws = range(self._draw, self._draw + len(tokens))
        if self._logprobs is not None:
            logprobs = [result.drawn_logprobs[draw] for draw in draws]
        if self._scores:
            scores = [result.drawn_scores[draw] for draw in draws]
        error, refused = self._fault() if reason == "error" else (None, False)
        return Output(
            request_id=sequence.id,
            result=Tokens(tokens=tokens, logprobs=logprobs, scores=scores),
            cached_tokens=sequence.cached,
            finish_reason=reason,
            error=error,
            refused=refused,
        )

    def _fault(self) -> tuple[str, bool]:
        """Return the error, and whether the request is at fault, whose grammar has reached a limit."""
        limit = None if self._grammar is None else self._grammar.error
        return limit or NO_CHOICE, limit is not None

    def _accept(
        self, sequence: "Sequence", draft_tokens: Ids[int], drawn: Ids[int]
    ) -> tuple[list[int], FinishReason | None]:
        """Append the drawn tokens that are valid; return them and the reason if the text ends with them."""
        accepted: list[int] = []
        for i in range(1 + len(draft_tokens)):
            token = drawn[self._draw + i]
            if token == NO_TOKEN:
                return accepted, "error"
            if self._grammar is not None and not self._grammar.accept(token):
                return accepted, "error"
            accepted.append(token)
            sequence.tokens.append(token)
            if self._adjuster is not None:
                self._adjuster.accept(token)
            if token in self._stop_ids or (self._grammar is not None and self._grammar.ended):
                return accepted, "stop"
            if len(sequence.tokens) >= self._most:
                return accepted, "length"
            if i < len(draft_tokens) and token != draft_tokens[i]:
                break
        return accepted, None

    def restart(self, sequence: "Sequence") -> None:
        """Do nothing: the tokens stay, because some of them have been delivered."""


def record_of(params: SamplingParams) -> bytes:
    """Return the sampling record of resolved parameters."""
    assert params.seed is not None
    assert params.temperature is not None
    return sampling_record(
        seed=params.seed,
        temperature=params.temperature,
        top_k=params.top_k or 0,
        top_p=1.0 if params.top_p is None else max(params.top_p, _LEAST_NUCLEUS),
        min_p=params.min_p or 0.0,
    )

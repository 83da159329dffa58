"""Requests for what a step computes from its logits, and the results: logits stay with the executor.

Tokens are drawn, log-probabilities reported and beam candidates ranked where the logits are. An engine
describes its request in a :class:`SamplingBatch` of plain numbers and arrays; an executor returns a
:class:`StepResult`. Both executors on the host call :func:`sample`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.ops.draws import Draws
from galley.ops.rows import Ids, Row, logsumexp, top_k
from galley.types import TokenLogprob

Logits: TypeAlias = npt.NDArray[np.float32]
Doubles: TypeAlias = npt.NDArray[np.float64]

NO_IDS: Final = np.zeros(0, dtype=np.int64)
NO_VALUES: Final = np.zeros(0)


class LogitsAdjustment(NamedTuple):
    """Changes to one row of logits [vocab] before a token is chosen, applied in the order of the fields.

    Attributes:
        repeated: ids whose logits are divided by the ``repetition_penalty`` if positive and multiplied by
            it if negative (CTRL, arXiv:1909.05858).
        penalized, penalties: ids, and the penalty subtracted from each logit (presence and frequency).
        biased, biases: ids, and the bias added to the logit of each.
        allowed: all other ids become impossible; None allows every id.
        forbidden: arrays of ids that become impossible.
        forbidden_ranges: ranges (first, end) of ids that become impossible.
        mask: [vocab or more] added to the logits, 0 or -inf; complete after ``SamplingBatch.masks_filled``.
        timestamp_begin: if the ids from this one on are together likelier than any single id below it, the
            ids below become impossible (Whisper's rule, arXiv:2212.04356); None means no such rule.
    """

    repeated: Ids = NO_IDS
    repetition_penalty: float = 1.0
    penalized: Ids = NO_IDS
    penalties: Doubles = NO_VALUES
    biased: Ids = NO_IDS
    biases: Doubles = NO_VALUES
    allowed: Ids | None = None
    forbidden: tuple[Ids, ...] = ()
    forbidden_ranges: tuple[tuple[int, int], ...] = ()
    mask: Row | None = None
    timestamp_begin: int | None = None

    def apply(self, row: Row) -> None:
        """Change ``row`` [vocab] in place."""
        if len(self.repeated):
            logits, penalty = row[self.repeated].astype(np.float64), self.repetition_penalty
            row[self.repeated] = np.where(logits > 0, logits / penalty, logits * penalty)
        if len(self.penalized):
            row[self.penalized] -= self.penalties
        if len(self.biased):
            row[self.biased] += self.biases
        if self.allowed is not None:
            kept = row[self.allowed]
            row.fill(-np.inf)
            row[self.allowed] = kept
        for ids in self.forbidden:
            row[ids] = -np.inf
        for first, end in self.forbidden_ranges:
            row[first:end] = -np.inf
        if self.mask is not None:
            row += self.mask[: len(row)]
        begin = self.timestamp_begin
        if begin is not None and logsumexp(row[begin:]) > row[:begin].max():
            row[:begin] = -np.inf


class RowLogprob(NamedTuple):
    """Request for the log-probability of ``token`` at ``row``, and of the ``top`` best alternatives."""

    row: int
    token: int
    top: int


class RowCandidates(NamedTuple):
    """Request for the ``most`` likeliest next tokens at ``row``, chosen after the ``adjustment``."""

    row: int
    most: int
    adjustment: LogitsAdjustment | None


class Candidate(NamedTuple):
    """A possible next token, and its log-probability after the adjustment."""

    token: int
    logprob: float


@dataclass(slots=True)
class SamplingBatch:
    """A step's requests on its logits [wanted, vocab]. Draw i chooses one token from row ``rows[i]``.

    Attributes:
        rows: for each draw, the row of the logits; no two draws share a row.
        positions: for each draw, the absolute position of the chosen token in its sequence.
        records: for each draw, its sampling record (see :func:`galley.ops.draws.sampling_record`).
        adjustments: draw -> changes to its row.
        logprobs: requests for log-probabilities of given tokens, before any adjustment.
        drawn_logprobs: draw -> number of alternatives to report with its token's log-probability, before
            any adjustment.
        drawn_scores: draws whose token's log-probability after the adjustment is reported.
        candidates: requests of beam searches.
        mask_fills: functions that fill the masks of adjustments, called before these are applied.
        masks_filled: waits for all of ``mask_fills``, which run concurrently with the forward pass.
        keep_logits: whether the result contains the logits themselves.
    """

    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    records: list[bytes] = field(default_factory=list)
    adjustments: dict[int, LogitsAdjustment] = field(default_factory=dict)
    logprobs: list[RowLogprob] = field(default_factory=list)
    drawn_logprobs: dict[int, int] = field(default_factory=dict)
    drawn_scores: list[int] = field(default_factory=list)
    candidates: list[RowCandidates] = field(default_factory=list)
    mask_fills: list[Callable[[], None]] = field(default_factory=list)
    masks_filled: Callable[[], None] | None = None
    keep_logits: bool = False

    def draw(self, row: int, position: int, record: bytes) -> None:
        """Add the draw of a token from ``row``."""
        self.rows.append(row)
        self.positions.append(position)
        self.records.append(record)


@dataclass(slots=True)
class StepResult:
    """The result of a step, indexed as its :class:`SamplingBatch`.

    Attributes:
        tokens: the token of each draw; ``NO_TOKEN`` if the logits allow none.
        logprobs: one for each of ``SamplingBatch.logprobs``.
        drawn_logprobs, drawn_scores: draw -> the requested log-probabilities.
        candidates: for each of ``SamplingBatch.candidates`` the likeliest tokens, best first; fewer than
            requested if the others are impossible.
        attention: [rows, heads, encoder rows] attention weights of the alignment heads of a speech model,
            for the rows of ``Batch.align``.
        encoded: [rows, width] the encoder's output for ``Batch.encode``, if its program returns it.
        logits: [wanted, vocab] after all adjustments, if requested; valid until the next step.
        nan_logits: whether logits were NaN, as those of damaged weights are (executor ``cpu``).
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drawn_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    drawn_scores: dict[int, float] = field(default_factory=dict)
    candidates: list[list[Candidate]] = field(default_factory=list)
    attention: npt.NDArray[np.float32] | None = None
    encoded: npt.NDArray[np.float32] | None = None
    logits: Logits | None = None
    nan_logits: bool = False


def sample(
    logits: Logits, batch: SamplingBatch, draw: Callable[[Logits, Draws], list[int]]
) -> StepResult:
    """Compute what ``batch`` requests from logits [wanted, vocab], which adjustments change in place.

    Args:
        logits: the logits, in host memory.
        batch: the request.
        draw: chooses tokens like :func:`galley.ops.draws.draw_all`.
    """
    result = StepResult(logits=logits if batch.keep_logits else None)
    result.logprobs = [token_logprob(logits[row], token, top) for row, token, top in batch.logprobs]
    result.candidates = [_candidates(logits[wanted.row], wanted) for wanted in batch.candidates]
    raw = {d: logits[batch.rows[d]].copy() for d in batch.drawn_logprobs if d in batch.adjustments}
    if batch.masks_filled is not None:
        batch.masks_filled()
    for d, adjustment in batch.adjustments.items():
        adjustment.apply(logits[batch.rows[d]])
    if batch.rows:
        draws = Draws(batch.rows, batch.positions, b"".join(batch.records))
        result.tokens = draw(logits, draws)
    for d, top in batch.drawn_logprobs.items():
        if result.tokens[d] >= 0:
            row = raw.get(d, logits[batch.rows[d]])
            result.drawn_logprobs[d] = token_logprob(row, result.tokens[d], top)
    for d in batch.drawn_scores:
        if result.tokens[d] >= 0:
            row = logits[batch.rows[d]]
            result.drawn_scores[d] = float(row[result.tokens[d]]) - logsumexp(row)
    return result


def token_logprob(logits: Row, token: int, top: int) -> TokenLogprob:
    """Return the log-softmax of ``logits`` [vocab] at ``token`` and at the ``top`` best alternatives."""
    norm = logsumexp(logits)
    ids: Sequence[int] | Ids = top_k(logits, top) if top else ()
    return TokenLogprob(
        token, float(logits[token]) - norm, tuple((int(i), float(logits[i]) - norm) for i in ids)
    )


def _candidates(logits: Row, wanted: RowCandidates) -> list[Candidate]:
    row = logits
    if wanted.adjustment is not None:
        row = logits.copy()
        wanted.adjustment.apply(row)
    norm = logsumexp(row)
    scored = (
        Candidate(token, float(row[token]) - norm) for token in top_k(row, wanted.most).tolist()
    )
    return [candidate for candidate in scored if np.isfinite(candidate.logprob)]

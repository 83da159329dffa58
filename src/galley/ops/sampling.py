"""What a step wants to know of its logits, as data, and the answers: logits stay with the executor.

Tokens are drawn, log-probabilities reported and beam candidates ranked where the logits are. An engine
describes what it wants in a :class:`SamplingBatch` of plain numbers and arrays; an executor answers
with a :class:`StepResult`. :func:`sample` is what both executors on the host do.
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
        repeated: ids whose logits the ``repetition_penalty`` divides where positive and multiplies where
            negative (CTRL, arXiv:1909.05858).
        penalised, penalties: ids, and what is subtracted from the logit of each (presence and frequency).
        biased, biases: ids, and what is added to the logit of each.
        allowed: all other ids become impossible; None allows every id.
        forbidden: arrays of ids that become impossible.
        forbidden_ranges: (first, end) of ids that become impossible.
        mask: [vocab or more] added to the logits, 0 or -inf; complete after ``SamplingBatch.masks_filled``.
        timestamp_begin: where the ids from here on are together likelier than any single id below, those
            below become impossible (Whisper's rule, arXiv:2212.04356); None: no such rule.
    """

    repeated: Ids = NO_IDS
    repetition_penalty: float = 1.0
    penalised: Ids = NO_IDS
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
        if len(self.penalised):
            row[self.penalised] -= self.penalties
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
    """Asks for the log-probability of ``token`` at ``row``, and the ``top`` best alternatives."""

    row: int
    token: int
    top: int


class RowCandidates(NamedTuple):
    """Wanted: the ``most`` likeliest next tokens at ``row``, chosen after the ``adjustment``."""

    row: int
    most: int
    adjustment: LogitsAdjustment | None


class Candidate(NamedTuple):
    """A possible next token, and its log-probability among those that the adjustment left."""

    token: int
    logprob: float


@dataclass(slots=True)
class SamplingBatch:
    """What a step wants of its logits [wanted, vocab]. Draw i chooses one token from row ``rows[i]``.

    Attributes:
        rows: for each draw the row of the logits; several draws never share a row.
        positions: for each draw the absolute position of the chosen token in its sequence.
        records: for each draw its sampling record (see :func:`galley.ops.draws.sampling_record`).
        adjustments: draw -> changes to its row.
        logprobs: log-probabilities of given tokens, before any adjustment.
        drawn_logprobs: draw -> report its token's log-probability before any adjustment, and so many
            alternatives.
        drawn_scores: draws whose token's log-probability after the adjustment is reported.
        candidates: for beam searches.
        mask_fills: to be called before adjustments are applied: they fill the masks of these.
        masks_filled: waits for all of ``mask_fills``, which run beside the forward pass.
        keep_logits: the caller wants the logits themselves.
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
        """Ask for a token from ``row``."""
        self.rows.append(row)
        self.positions.append(position)
        self.records.append(record)


@dataclass(slots=True)
class StepResult:
    """What an executor made of a step; indexed as its :class:`SamplingBatch`.

    Attributes:
        tokens: of each draw; ``NO_TOKEN`` where the logits leave none to choose.
        logprobs: one for each of ``SamplingBatch.logprobs``.
        drawn_logprobs, drawn_scores: draw -> what was asked for.
        candidates: for each of ``SamplingBatch.candidates`` the likeliest tokens, best first; fewer than
            asked for where the others are impossible.
        attention: [rows, heads, encoder rows] where the alignment heads of a speech model look, for the
            rows of ``Batch.align``.
        encoded: [rows, width] what the encoder made of ``Batch.encode``, if its program gives that.
        logits: [wanted, vocab] after all adjustments, if they were asked for; valid until the next step.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drawn_logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    drawn_scores: dict[int, float] = field(default_factory=dict)
    candidates: list[list[Candidate]] = field(default_factory=list)
    attention: npt.NDArray[np.float32] | None = None
    encoded: npt.NDArray[np.float32] | None = None
    logits: Logits | None = None


def sample(
    logits: Logits, batch: SamplingBatch, draw: Callable[[Logits, Draws], list[int]]
) -> StepResult:
    """Answer ``batch`` from logits [wanted, vocab], which adjustments change in place.

    Args:
        logits: in host memory.
        batch: what is wanted.
        draw: chooses tokens as :func:`galley.ops.draws.draw_all` does.
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
    """Log-softmax of ``logits`` [vocab] at ``token``, and the ``top`` best alternatives."""
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

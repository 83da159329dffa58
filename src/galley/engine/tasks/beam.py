"""A beam search as a sequence with a block table for each hypothesis."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from galley.engine.tasks.base import NO_CHOICE, Task
from galley.engine.tasks.beam_search import BeamSearch
from galley.ops.sampling import RowCandidates, SamplingBatch, StepResult
from galley.types import FinishReason, Output, Tokens, Written

if TYPE_CHECKING:
    from galley.engine.scheduler import Work
    from galley.engine.sequence import Sequence


class BeamTask(Task):
    """Returns one Output, at the end of the search.

    The sequence's ``tokens`` are those of the best running hypothesis. A preempted search starts over,
    because nothing of it has been output.
    """

    def __init__(self, payload: Written, stop_ids: Collection[int]) -> None:
        """Create the task; ``stop_ids`` end a hypothesis."""
        self._payload = payload
        self._stop_ids = stop_ids
        self.search = BeamSearch(payload.sampling, stop_ids, payload.rules)
        self._first = 0
        """Index of the step's first entry in ``SamplingBatch.candidates``."""

    @property
    def seats(self) -> int:
        """The maximum number of hypotheses that run at once."""
        return self._payload.sampling.num_beams

    @property
    def width(self) -> int:
        """The number of running hypotheses."""
        return len(self.search.running)

    def reusable(self, sequence: "Sequence") -> int:
        """Return all tokens but the last."""
        return len(sequence.tokens) - 1

    def shares(self, sequence: "Sequence") -> bool:
        """Return whether the sequence is still at its prompt."""
        return sequence.generated == 0

    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """Return the number of hypotheses, each of which needs its last row."""
        return self.width if work.completes and self._payload.sampling.max_tokens else 0

    def last_tokens(self, sequence: "Sequence") -> list[int]:
        """Return the last token of each hypothesis."""
        return [hypothesis.tokens[-1] for hypothesis in self.search.running]

    def select_results(
        self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch
    ) -> None:
        """Request the likeliest continuations of each hypothesis."""
        self._first = len(sampling.candidates)
        for row, hypothesis in zip(rows, self.search.running, strict=False):
            rules = hypothesis.rules
            adjustment = None if rules is None else rules.adjustment()
            sampling.candidates.append(RowCandidates(row, self.search.candidates, adjustment))

    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """Advance all hypotheses by a token; return the best one once the search is over."""
        if not work.completes:
            return None
        if not self._payload.sampling.max_tokens:
            return self._output(sequence, [], "length")
        found = result.candidates[self._first : self._first + self.width]
        parents = self.search.advance(found)
        if parents is not None:
            sequence.forks = parents
            sequence.tokens = [*self._payload.prompt, *self.search.running[0].tokens]
            return None
        if not self.search.finished:
            return self._output(sequence, [], "error", error=NO_CHOICE)
        _, best = self.search.finished[0]
        tokens = list(best.tokens)
        reason: FinishReason = "stop" if tokens[-1] in self._stop_ids else "length"
        return self._output(sequence, tokens, reason, scores=list(best.scores))

    def _output(
        self,
        sequence: "Sequence",
        tokens: list[int],
        reason: FinishReason,
        *,
        scores: list[float] | None = None,
        error: str | None = None,
    ) -> Output:
        return Output(
            request_id=sequence.id,
            result=Tokens(tokens=tokens, scores=scores),
            cached_tokens=sequence.cached,
            finish_reason=reason,
            error=error,
        )

    def restart(self, sequence: "Sequence") -> None:
        """Start the search over from the prompt."""
        sequence.tokens = list(self._payload.prompt)
        self.search = BeamSearch(self._payload.sampling, self._stop_ids, self._payload.rules)

"""Log-probabilities of the prompt's tokens, before another task continues after it."""

import math
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING

import msgspec

from galley.engine.tasks.base import Task
from galley.grammar.matcher import GrammarMatcher
from galley.ops.sampling import LogitsAdjustment, RowLogprob, SamplingBatch, StepResult
from galley.types import Output, TokenLogprob, Written

if TYPE_CHECKING:
    from galley.engine.scheduler import Work
    from galley.engine.sequence import Sequence


class ScoreTask(Task):
    """Adds results from the prompt's rows to the first Output of another task.

    These are the log-probability of each token after the first (``prompt_logprobs``; row i scores token i
    + 1), and Whisper's no-speech probability: that of one given token at one given row (``no_speech``).
    """

    def __init__(self, payload: Written, then: Task) -> None:
        """Create the task; ``then`` is the task that consumes the last row."""
        params = payload.sampling
        self._then = then
        self._prompt = payload.prompt
        self._top = params.prompt_logprobs
        self._no_speech = payload.rules.no_speech
        self._scored: list[TokenLogprob] = []
        self._no_speech_prob: float | None = None
        self._reported = False
        self._entries = (0, 0)
        """Index of the step's first entry in ``SamplingBatch.logprobs``, and number of prompt entries."""
        self._wants_no_speech = False

    @property
    def seats(self) -> int:
        """The seats of the other task."""
        return self._then.seats

    @property
    def width(self) -> int:
        """The width of the other task."""
        return self._then.width

    def reusable(self, sequence: "Sequence") -> int:
        """Return how many leading tokens precede every row that is needed."""
        if self._top is not None:
            return 0
        reusable = self._then.reusable(sequence)
        if self._no_speech is not None and self._no_speech_prob is None:
            return min(reusable, self._no_speech[0])
        return reusable

    def shares(self, sequence: "Sequence") -> bool:
        """Return whether the other task shares blocks."""
        return self._then.shares(sequence)

    def _first_wanted(self) -> int | None:
        """Return the first row still to be scored; rows scored before a preemption are not needed again."""
        first: int | None = None
        if self._top is not None and len(self._scored) < len(self._prompt) - 1:
            first = len(self._scored)
        if self._no_speech is not None and self._no_speech_prob is None:
            row = self._no_speech[0]
            first = row if first is None else min(first, row)
        return first

    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """Return the number of rows still to be scored, or that the other task needs if those are more."""
        own, first = 0, self._first_wanted()
        if first is not None:
            own = max(0, sequence.computed + work.count - max(first, sequence.computed))
        return max(own, self._then.wanted(sequence, work))

    def max_draft_tokens(self, sequence: "Sequence") -> int:
        """Return as many as the other task can verify."""
        return self._then.max_draft_tokens(sequence)

    @property
    def sampling_record(self) -> bytes:
        """The sampling parameters of the other task."""
        return self._then.sampling_record

    def adjustment(self, draft_tokens: Tokens[int]) -> LogitsAdjustment | None:
        """Return the changes of the other task."""
        return self._then.adjustment(draft_tokens)

    @property
    def grammar(self) -> GrammarMatcher | None:
        """State of the grammar of the text that follows."""
        return self._then.grammar

    def last_tokens(self, sequence: "Sequence") -> list[int]:
        """Return the last tokens of the other task."""
        return self._then.last_tokens(sequence)

    def select_results(
        self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch
    ) -> None:
        """Request a log-probability for each prompt row, and the other task's results for the last rows."""
        after = sequence.computed + work.count
        first = after - len(rows)  # position of the first wanted row
        begin = len(sampling.logprobs)
        if self._top is not None:
            for row, position in zip(rows, range(first, len(self._prompt) - 1), strict=False):
                sampling.logprobs.append(RowLogprob(row, self._prompt[position + 1], self._top))
        self._entries = (begin, len(sampling.logprobs) - begin)
        self._wants_no_speech = False
        if self._no_speech is not None and self._no_speech_prob is None:
            position, token = self._no_speech
            if first <= position < after:
                sampling.logprobs.append(RowLogprob(rows[position - first], token, 0))
                self._wants_no_speech = True
        self._then.select_results(
            sequence, work, rows[len(rows) - self._then.wanted(sequence, work) :], sampling
        )

    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """Return the other task's Output; the first one carries the scores."""
        begin, count = self._entries
        self._scored += result.logprobs[begin : begin + count]
        if self._wants_no_speech:
            self._no_speech_prob = math.exp(result.logprobs[begin + count].logprob)
        output = self._then.consume(sequence, work, result)
        if output is None or self._reported:
            return output
        self._reported = True
        scored = self._scored if self._top is not None else None
        first = msgspec.structs.replace(
            output.generated, prompt_logprobs=scored, no_speech_prob=self._no_speech_prob
        )
        return msgspec.structs.replace(output, result=first)

    def restart(self, sequence: "Sequence") -> None:
        """Restart the other task; scores are kept."""
        self._then.restart(sequence)

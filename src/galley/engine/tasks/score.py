"""Log-probabilities of the prompt's own tokens, before another task goes on after it."""

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
    """Adds to the first Output of another task what the prompt's rows say.

    That is the log-probability of each token after the first (``prompt_logprobs``; row i scores token i
    + 1), and Whisper's probability of no speech: that of one given token at one given row
    (``no_speech``).
    """

    def __init__(self, payload: Written, then: Task) -> None:
        """``then``: the task that consumes the last row."""
        params = payload.sampling
        self._then = then
        self._prompt = payload.prompt
        self._top = params.prompt_logprobs
        self._no_speech = payload.rules.no_speech
        self._scored: list[TokenLogprob] = []
        self._no_speech_prob: float | None = None
        self._told = False
        self._asked = (0, 0)
        """The step's first entry in ``SamplingBatch.logprobs``, and how many are of the prompt's tokens."""
        self._asked_no_speech = False

    @property
    def seats(self) -> int:
        """The other task's."""
        return self._then.seats

    @property
    def width(self) -> int:
        """The other task's."""
        return self._then.width

    def reusable(self, sequence: "Sequence") -> int:
        """No token whose row is wanted."""
        if self._top is not None:
            return 0
        reusable = self._then.reusable(sequence)
        if self._no_speech is not None and self._no_speech_prob is None:
            return min(reusable, self._no_speech[0])
        return reusable

    def shares(self, sequence: "Sequence") -> bool:
        """As the other task."""
        return self._then.shares(sequence)

    def _first_wanted(self) -> int | None:
        """The first row still to be scored; rows scored before a preemption are not wanted again."""
        first: int | None = None
        if self._top is not None and len(self._scored) < len(self._prompt) - 1:
            first = len(self._scored)
        if self._no_speech is not None and self._no_speech_prob is None:
            row = self._no_speech[0]
            first = row if first is None else min(first, row)
        return first

    def wanted(self, sequence: "Sequence", work: "Work") -> int:
        """From the first row that is still to be scored on."""
        own, first = 0, self._first_wanted()
        if first is not None:
            own = max(0, sequence.computed + work.count - max(first, sequence.computed))
        return max(own, self._then.wanted(sequence, work))

    def guessable(self, sequence: "Sequence") -> int:
        """As many as the other task."""
        return self._then.guessable(sequence)

    @property
    def sampling_record(self) -> bytes:
        """As the request wishes."""
        return self._then.sampling_record

    def adjustment(self, guesses: Tokens[int]) -> LogitsAdjustment | None:
        """As the other task."""
        return self._then.adjustment(guesses)

    @property
    def grammar(self) -> GrammarMatcher | None:
        """Of the text that follows."""
        return self._then.grammar

    def last_tokens(self, sequence: "Sequence") -> list[int]:
        """The other task's."""
        return self._then.last_tokens(sequence)

    def ask(self, sequence: "Sequence", work: "Work", rows: range, sampling: SamplingBatch) -> None:
        """A log-probability for each row of the prompt, and what the other task asks of the last rows."""
        after = sequence.computed + work.count
        first = after - len(rows)  # position of the first wanted row
        begin = len(sampling.logprobs)
        if self._top is not None:
            for row, position in zip(rows, range(first, len(self._prompt) - 1), strict=False):
                sampling.logprobs.append(RowLogprob(row, self._prompt[position + 1], self._top))
        self._asked = (begin, len(sampling.logprobs) - begin)
        self._asked_no_speech = False
        if self._no_speech is not None and self._no_speech_prob is None:
            position, token = self._no_speech
            if first <= position < after:
                sampling.logprobs.append(RowLogprob(rows[position - first], token, 0))
                self._asked_no_speech = True
        self._then.ask(
            sequence, work, rows[len(rows) - self._then.wanted(sequence, work) :], sampling
        )

    def consume(self, sequence: "Sequence", work: "Work", result: StepResult) -> Output | None:
        """The other task's Output; the first one carries the scores."""
        begin, count = self._asked
        self._scored += result.logprobs[begin : begin + count]
        if self._asked_no_speech:
            self._no_speech_prob = math.exp(result.logprobs[begin + count].logprob)
        output = self._then.consume(sequence, work, result)
        if output is None or self._told:
            return output
        self._told = True
        scored = self._scored if self._top is not None else None
        first = msgspec.structs.replace(
            output.generated, prompt_logprobs=scored, no_speech_prob=self._no_speech_prob
        )
        return msgspec.structs.replace(output, result=first)

    def restart(self, sequence: "Sequence") -> None:
        """What is scored stays."""
        self._then.restart(sequence)

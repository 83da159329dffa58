"""An engine's throughput, measured over the time in which all its seats were taken.

Neither idle time nor a single stream shows the throughput of a full batch. So only time in which all
seats were taken counts; older time counts less, by half every :data:`HALF_LIFE` of such seconds. No clock
is read here: every method is passed the time.
"""

from typing import Final

HALF_LIFE: Final = 4.0
"""Half-life of measurements in busy seconds."""

MEASURED_SECONDS: Final = 1.0
"""Busy seconds needed for a measurement; over a shorter time, a single step would dominate."""

LENGTH_SEQUENCES: Final = 32
"""Sequences over which mean lengths are taken; beyond that, recent ones weigh more."""


class Pace:
    """Measures tokens per busy second, and the tokens that a sequence is expected to need.

    Tokens are those of prompts, credited with a sequence's first output, and those of outputs. Admission
    counts cached tokens of prompts, too, since a newcomer's are not known; a replica's pace does not. A
    prediction must count tokens as its pace does.
    """

    def __init__(self) -> None:
        self._busy = False
        self._since = 0.0
        self._seconds = 0.0
        self._tokens = 0.0
        self._finished = 0
        self._output = 0.0
        self._cost = 0.0

    def set_busy(self, busy: bool, now: float) -> None:
        """Set whether all seats are taken from ``now`` on."""
        if self._busy:
            self._advance(now)
        self._busy, self._since = busy, now

    def worked(self, tokens: int, now: float) -> None:
        """Add finished tokens; they count if the engine is busy."""
        if self._busy:
            self._advance(now)
            self._tokens += tokens

    def finished(self, prompt: int, output: int) -> None:
        """Record the prompt and output lengths, in tokens, of a sequence that ran to completion."""
        self._finished += 1
        part = 1 / min(self._finished, LENGTH_SEQUENCES)
        self._output += (output - self._output) * part
        self._cost += (prompt + output - self._cost) * part

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of a busy engine; None while too little has been measured."""
        if self._seconds < MEASURED_SECONDS or not self._tokens:
            return None
        return self._tokens / self._seconds

    @property
    def mean_output(self) -> float | None:
        """Mean tokens that a sequence generated; None before the first has finished."""
        return self._output if self._finished else None

    @property
    def mean_cost(self) -> float | None:
        """Mean tokens of a sequence's prompt and output; None before the first has finished."""
        return self._cost if self._finished else None

    def _advance(self, now: float) -> None:
        passed = max(0.0, now - self._since)
        kept = 0.5 ** (passed / HALF_LIFE)
        self._seconds = self._seconds * kept + passed
        self._tokens *= kept
        self._since = now

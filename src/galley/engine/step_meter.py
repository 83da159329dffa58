"""Where the time of steps goes, and each sequence's share of it."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Plan
from typing import Final

from galley.engine.scheduler import Work

_clock: Final = time.perf_counter


class StepMeter:
    """Divides an engine's time among its sequences.

    A step's time runs from the end of the previous execution to the end of its own, so that the time
    between two executions is charged, too. After an idle period it begins with the arrival of the first
    sequence. In an engine that shares the cores with others, it begins with the step and excludes pauses.
    The time is divided in proportion to the rows computed for each sequence, an encoder's included, as
    the token budget counts them. The shares of all sequences therefore add up to :attr:`busy_seconds`,
    and while there is work that is wall-clock time.

    Attributes:
        busy_seconds: time divided so far.
        schedule_seconds: time that steps spent on planning and assembling.
        emit_seconds: time that steps spent on results.
        sequences, tokens, seconds: those of the latest step; tokens are rows.
    """

    def __init__(self, paused: Callable[[], float] | None = None) -> None:
        """Create a meter at zero.

        Args:
            paused: returns the seconds that steps have waited for the cores; None for an engine that does
                not share them.
        """
        self._paused = paused
        self._waited = 0.0
        self._since = self._mark = _clock()
        self.busy_seconds = self.schedule_seconds = self.emit_seconds = 0.0
        self.sequences = self.tokens = 0
        self.seconds = 0.0

    def awake(self) -> None:
        """Record that the first sequence after an idle period has arrived."""
        self._since = _clock()

    def begin(self) -> None:
        """Record that a step begins."""
        self._mark = _clock()
        if self._paused is not None:
            self._since, self._waited = self._mark, self._paused()

    def overlap(self) -> None:
        """Record that the next step is planned from now on, while one runs."""
        self._mark = _clock()

    def assembled(self) -> None:
        """Record that the batch to execute is assembled."""
        now = _clock()
        self.schedule_seconds += now - self._mark

    def executed(self, plan: Plan[Work]) -> None:
        """Charge the step's sequences, before any of them has changed."""
        rows = [_rows(work) for work in plan]
        share = self.share(rows)
        for work, count in zip(plan, rows, strict=True):
            work.sequence.engine_seconds += share * count

    def share(self, rows: Plan[int]) -> float:
        """Return the seconds per row of the step just executed; ``rows`` are those of each part."""
        self._mark = now = _clock()
        seconds = now - self._since
        if self._paused is not None:
            seconds -= self._paused() - self._waited
        self._since = now
        self.seconds = seconds
        self.busy_seconds += seconds
        self.sequences, self.tokens = len(rows), sum(rows)
        return seconds / self.tokens

    def end(self) -> None:
        """Record that the step's results are emitted."""
        self.emit_seconds += _clock() - self._mark


class Pauses:
    """A pause that measures its own duration, summed over all calls."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self.seconds = 0.0

    def __call__(self) -> None:
        """Pause."""
        began = _clock()
        self._pause()
        self.seconds += _clock() - began


def _rows(work: Work) -> int:
    sequence = work.sequence
    rows = work.count * sequence.task.width
    return rows + sequence.features.rows if work.encodes and sequence.features else rows

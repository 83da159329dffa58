"""Where the time of steps goes, and what each sequence's share of it is."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Plan
from typing import Final

from galley.engine.scheduler import Work

_clock: Final = time.perf_counter


class StepMeter:
    """Divides an engine's time among its sequences.

    A step's time runs from the end of the execution before it to the end of its own: what lies between two
    executions belongs to somebody, too. After idleness it begins with the arrival of the first sequence. In
    an engine that takes turns on the cores it begins with the step, and leaves out pauses. It is divided
    by the rows that each sequence had computed, an encoder's included, as the token budget counts them. So
    the shares of all sequences add up to :attr:`busy_seconds`, and while there is work that is the time on
    the wall.

    Attributes:
        busy_seconds: divided so far.
        schedule_seconds: of steps spent on planning and assembling.
        emit_seconds: of steps spent on results.
        sequences, tokens, seconds: of the latest step; tokens are rows.
    """

    def __init__(self, paused: Callable[[], float] | None = None) -> None:
        """``paused``: seconds that steps have waited for the cores; None for an engine without others."""
        self._paused = paused
        self._waited = 0.0
        self._since = self._mark = _clock()
        self.busy_seconds = self.schedule_seconds = self.emit_seconds = 0.0
        self.sequences = self.tokens = 0
        self.seconds = 0.0

    def awake(self) -> None:
        """The first sequence after idleness has come."""
        self._since = _clock()

    def begin(self) -> None:
        """A step begins."""
        self._mark = _clock()
        if self._paused is not None:
            self._since, self._waited = self._mark, self._paused()

    def assembled(self) -> None:
        """What is to be executed is known."""
        now = _clock()
        self.schedule_seconds += now - self._mark

    def executed(self, plan: Plan[Work]) -> None:
        """Charge the step's sequences, before any of them has changed."""
        rows = [_rows(work) for work in plan]
        share = self.share(rows)
        for work, count in zip(plan, rows, strict=True):
            work.sequence.engine_seconds += share * count

    def share(self, rows: Plan[int]) -> float:
        """Seconds for each row of the step that has just been executed; ``rows`` of each of its parts."""
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
        """The step's results are on their way."""
        self.emit_seconds += _clock() - self._mark


class Pauses:
    """A pause that knows how long it took, all calls together."""

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

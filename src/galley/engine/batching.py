"""When waiting sequences may begin if they may not join running ones.

Continuous batching lets a sequence join in any step (Yu et al., "Orca", OSDI 2022) and needs none of
this. The older policies begin a batch when the previous one is over, so the shortest text waits for the
longest; they are implemented so that the difference can be measured.

``dynamic``
    A batch is whatever waits when the engine is free. ``static`` A batch has as many sequences as may
    run; it begins with fewer once the first has waited for ``delay``.
"""

import time
from collections.abc import Callable

from galley.engine.sequence import Sequence


class BatchGatherer:
    """Sequences of future batches, in the order of their arrival.

    Args:
        seats: maximum number of running sequences; each hypothesis of a beam search counts.
        delay: seconds that a batch waits to fill.
        clock: the clock of arrivals, in seconds.
    """

    def __init__(
        self, seats: int, delay: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seats = seats
        self._delay = delay
        self._clock = clock
        self._gathered: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._gathered)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence for a batch."""
        self._gathered.append(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Drop the sequence; return whether it was queued here."""
        if sequence not in self._gathered:
            return False
        self._gathered.remove(sequence)
        return True

    def next_batch(self) -> list[Sequence]:
        """Return the sequences to begin when no others run; none while a batch waits to fill."""
        if not self._gathered:
            return []
        seats = count = 0
        for sequence in self._gathered:
            if count and seats + sequence.task.seats > self._seats:
                break
            seats, count = seats + sequence.task.seats, count + 1
        full = seats >= self._seats or count < len(self._gathered)
        if not full and self._clock() - self._gathered[0].arrival < self._delay:
            return []
        batch, self._gathered = self._gathered[:count], self._gathered[count:]
        return batch

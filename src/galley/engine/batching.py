"""When waiting sequences may begin, where they may not join others that run.

Continuous batching lets a sequence join in any step (Yu et al., "Orca", OSDI 2022) and needs none of
this. The older policies begin a batch when the one before is over, so the shortest text waits for the
longest; they are here so that the difference can be measured.

``dynamic``
    A batch is whatever waits when the engine is free.
``static``
    A batch has as many sequences as may run; it begins with fewer when the first has waited for ``delay``.
"""

import time
from collections.abc import Callable

from galley.engine.sequence import Sequence


class BatchGatherer:
    """Sequences of the batches to come, in the order of their arrival.

    Args:
        seats: how many sequences may run; each hypothesis of a beam search counts.
        delay: seconds that a batch waits to be full.
        clock: of arrivals, in seconds.
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
        """A new sequence waits for a batch."""
        self._gathered.append(sequence)

    def remove(self, sequence: Sequence) -> bool:
        """Forget the sequence; whether it waited here."""
        if sequence not in self._gathered:
            return False
        self._gathered.remove(sequence)
        return True

    def next_batch(self) -> list[Sequence]:
        """The sequences that begin now, as no other runs; none while a batch waits to be full."""
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

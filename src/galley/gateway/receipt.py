"""The times and cost of a request, reported with its answer."""

import math
from dataclasses import dataclass
from typing import Final

from galley.types import Timing

_HOUR: Final = 3600.0


@dataclass(slots=True)
class Receipt:
    """Times of all sequences of a request together, and its share of the engine's time.

    The queue ends when the first of the sequences runs, prefill with the first token of any, and decoding
    with the last of all. The shares of all requests add up to the time in which the engine had work (see
    ``engine/step_meter.py``). Work of a sequence between its last Output and its abort, and work of an
    engine that died, is on no receipt.

    Attributes:
        price_per_hour: price of the machine, in any currency; None: not set.
        engine_seconds: share of the engine's time.
        proposed, accepted: draft tokens that were verified, and those of them that were accepted.
    """

    price_per_hour: float | None = None
    engine_seconds: float = 0.0
    proposed: int = 0
    accepted: int = 0
    _began: float = math.inf
    _started: float = math.inf
    _first_token: float = math.inf
    _ended: float = -math.inf

    def add(self, submitted: float, timing: Timing) -> None:
        """Add a sequence that has ended; ``submitted``: when, in seconds on the monotonic clock."""
        self.engine_seconds += timing.engine_seconds
        self.proposed += timing.proposed
        self.accepted += timing.accepted
        self._began = min(self._began, submitted)
        self._started = min(self._started, submitted + timing.queued)
        self._first_token = min(self._first_token, submitted + timing.first_token)
        self._ended = max(self._ended, submitted + timing.total)

    @property
    def queue_seconds(self) -> float:
        """Seconds from arrival in the engine to the first step."""
        return _between(self._began, self._started)

    @property
    def prefill_seconds(self) -> float:
        """Seconds from the first step to the first token."""
        return _between(self._started, self._first_token)

    @property
    def decode_seconds(self) -> float:
        """Seconds from the first token to the end."""
        return _between(self._first_token, self._ended)

    @property
    def cost(self) -> float | None:
        """The cost in the currency of the price; None without a price."""
        if self.price_per_hour is None:
            return None
        return self.engine_seconds * self.price_per_hour / _HOUR

    def phases(self) -> list[tuple[str, float, float]]:
        """Return (name, begin, end) of queue, prefill and decode, on the monotonic clock.

        The list is empty before the end.
        """
        if self._began == math.inf:
            return []
        times = (self._began, self._started, self._first_token, self._ended)
        return list(zip(("queue", "prefill", "decode"), times[:-1], times[1:], strict=True))

    def fields(self) -> dict[str, float]:
        """Return the fields of answers and log records: milliseconds, draft tokens and ``cost`` if any."""
        fields: dict[str, float] = {
            "queue_ms": round(1000 * self.queue_seconds, 3),
            "prefill_ms": round(1000 * self.prefill_seconds, 3),
            "decode_ms": round(1000 * self.decode_seconds, 3),
        }
        if self.proposed:
            fields |= {"proposed_tokens": self.proposed, "accepted_tokens": self.accepted}
        cost = self.cost
        return fields if cost is None else {**fields, "cost": cost}


def _between(begin: float, end: float) -> float:
    return max(0.0, end - begin) if begin < math.inf else 0.0

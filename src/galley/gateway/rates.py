"""Rates per minute: token buckets that refill continuously, and sums over the last minute."""

import time
from collections import deque
from typing import Final

MINUTE: Final = 60.0


class Bucket:
    """A token bucket (RFC 2697) of one limit per minute: full at first, refilled by a sixtieth each second.

    At most twice the limit is taken in any minute: the bucket's content and the refill. Times are seconds
    on one monotonic clock.
    """

    def __init__(self, limit: int, now: float) -> None:
        self.limit = limit
        self._left = float(limit)
        self._at = now

    def left(self, now: float) -> float:
        """Return the amount that may be taken now; negative while more was spent than the bucket held."""
        return min(self.limit, self._left + (now - self._at) * self.limit / MINUTE)

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until ``amount``, at most the limit, may be taken; 0 if it may be now."""
        return max(0.0, amount - self.left(now)) * MINUTE / self.limit

    def spend(self, amount: float, now: float) -> None:
        """Take ``amount``, even if the bucket holds less; a negative amount is given back."""
        self._left = min(self.limit, self.left(now) - amount)
        self._at = now

    def resize(self, limit: int, now: float) -> None:
        """Change the limit; amounts already taken still count."""
        self._left = self.left(now) + limit - self.limit
        self._at = now
        self.limit = limit


class LastMinute:
    """A sum over the last sixty seconds, kept second by second."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, amount: int, now: float | None = None) -> None:
        """Count ``amount`` now."""
        second = int(time.monotonic() if now is None else now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = second, self._seconds[-1][1] + amount
        else:
            self._forget(second)
            self._seconds.append((second, amount))

    def total(self, now: float | None = None) -> int:
        """Return the sum over the last minute."""
        self._forget(int(time.monotonic() if now is None else now))
        return sum(amount for _, amount in self._seconds)

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - MINUTE:
            self._seconds.popleft()

"""How long a model that was loaded on request stays loaded after its last request."""

import math
import time
from typing import Final

_LEAST_SECONDS: Final = 1.0
"""A model stays loaded for at least as long, so that the request that loaded it can start."""

_MOST_SECONDS: Final = 100 * 366 * 86_400.0
"""A longer time is for ever: a date to which it is added might be beyond any calendar."""


class Kept:
    """The time for which a model without requests stays loaded."""

    def __init__(self, default: float) -> None:
        """Create it; the model counts as used now.

        Args:
            default: seconds after the last request; below 0: forever.
        """
        self._default = default
        self._seconds = default
        self.used = time.monotonic()
        """When the model was last observed in use, on the monotonic clock."""

    def keep_for(self, seconds: float | None) -> None:
        """Set how long the model stays loaded after its last request.

        Args:
            seconds: below 0: forever; None: the default.
        """
        self._seconds = self._default if seconds is None else seconds

    def use(self) -> None:
        """Count the model as used now."""
        self.used = time.monotonic()

    @property
    def may_be_unloaded(self) -> bool:
        """Whether it has been unused long enough to make room for another model."""
        return self._unused >= _LEAST_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether it has been unused for as long as it is kept."""
        kept = math.inf if self._seconds < 0 else max(self._seconds, _LEAST_SECONDS)
        return self._unused >= kept

    def expires_at(self, *, busy: bool) -> int | None:
        """Return the Unix time at which the model will be unloaded if it stays unused; None: never."""
        if not 0 <= self._seconds <= _MOST_SECONDS:
            return None
        return int(time.time() - (0.0 if busy else self._unused) + self._seconds)

    @property
    def _unused(self) -> float:
        return time.monotonic() - self.used

"""Warnings that others can cause as often as they like."""

import logging
import math
import threading
import time
from typing import Final

WARN_SECONDS: Final = 10.0
"""Seconds from one warning to the next."""


class RareWarnings:
    """Logs the first of many warnings, and then one every 10 seconds. For use on several threads.

    Args:
        logger: name of the logger.
    """

    def __init__(self, logger: str) -> None:
        self._log = logging.getLogger(logger)
        self._lock = threading.Lock()
        self._next = -math.inf
        self._omitted = 0

    def add(self, message: str) -> None:
        """Log a warning, unless another one was logged a moment ago."""
        now = time.monotonic()
        with self._lock:
            if now < self._next:
                self._omitted += 1
                return
            omitted, self._omitted = self._omitted, 0
            self._next = now + WARN_SECONDS
        more = f" ({omitted} more warnings since the last one)" if omitted else ""
        self._log.warning("%s%s", message, more)

"""Compare mapped packed matrices with the checksums in their file, while the engine serves."""

import logging
import math
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from galley.errors import DamagedWeights
from galley.machine import lower_thread_priority
from galley.ops.packed_files import Entry, PackedFile

log: Final = logging.getLogger("galley.weights")

FIRST_BYTES: Final = 256 << 20
"""Bytes checked before the first token, some 0.2 s; smaller models are checked completely."""

SUSPICION_SECONDS: Final = 60.0
"""Minimum seconds between two checks that NaN or infinite logits cause."""

_LEAST_PRIORITY: Final = 19


class WeightCheck:
    """Checks the matrices of one file, mapped or not: once on a separate thread, and again on suspicion.

    After the first :data:`FIRST_BYTES`, which the start waits for, the thread has the lowest priority.
    A file that is found damaged is removed.
    """

    def __init__(self, path: Path, packed: PackedFile) -> None:
        self._path = path
        self._entries = packed.header.entries
        self._packed = packed
        self._damage = ""
        self._suspected_at = -math.inf
        self._first_checked = threading.Event()
        threading.Thread(target=self._first, name="galley-check", daemon=True).start()

    def wait(self) -> None:
        """Wait for the check of the first :data:`FIRST_BYTES`.

        Raises:
            DamagedWeights: as :meth:`raise_if_damaged`.
        """
        self._first_checked.wait()
        self.raise_if_damaged()

    def raise_if_damaged(self) -> None:
        """Raise DamagedWeights if a check has found a wrong matrix."""
        if self._damage:
            raise DamagedWeights(self._damage)

    def check_again(self) -> None:
        """Check all matrices at once, since logits are NaN.

        Raises:
            DamagedWeights: as :meth:`raise_if_damaged`.
        """
        now = time.monotonic()
        if now - self._suspected_at > SUSPICION_SECONDS:
            self._suspected_at = now
            self._check(self._entries)
        self.raise_if_damaged()

    def _first(self) -> None:
        first = tuple(e for e in self._entries if e.offset + e.size <= FIRST_BYTES)
        try:
            self._check(first)
        finally:
            self._first_checked.set()
        lower_thread_priority(_LEAST_PRIORITY)
        if not self._damage:
            self._check(self._entries[len(first) :])

    def _check(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if self._packed.checksum(entry) != entry.checksum:
                self._damage = (
                    f"packed weights in {self._path} are damaged (wrong checksum of "
                    f"{', '.join(entry.names)}); the file is removed and the "
                    "weights are packed again"
                )
                log.error("%s", self._damage)
                with suppress(OSError):
                    self._path.unlink(missing_ok=True)
                return

"""The memory of tensor models: checked before they are loaded, and measured afterwards.

A library does not report what it will take. What is known beforehand is that a model takes at least the
bytes of its files; the rest is measured.
"""

import os

import msgspec

from galley.machine import held_memory
from galley.runtimes.library_memory import check_fits
from galley.types.model_info import Ledger


class MeasuredMemory:
    """Measures a model's memory from before it is loaded.

    Args:
        ledger: what is known beforehand; ``weights`` are the least bytes that the model takes.

    Raises:
        NotEnoughMemory: not even these fit.
    """

    def __init__(self, name: str, ledger: Ledger, instances: int) -> None:
        self._name, self._ledger, self._instances = name, ledger, instances
        self._check(ledger)
        self._before = held_memory(os.getpid())
        self._loaded = 0

    def loaded(self) -> None:
        """Measure the model, which has been loaded and has not computed anything yet."""
        self._loaded = max(0, held_memory(os.getpid()) - self._before)

    def ledger(self) -> Ledger:
        """Return the ledger of the model, which has now been tried.

        Raises:
            NotEnoughMemory: what has been measured leaves nothing for the server.
        """
        if not self._before:  # the system does not report it
            return self._ledger
        total = max(0, held_memory(os.getpid()) - self._before)
        weights = min(self._loaded, total)
        ledger = msgspec.structs.replace(self._ledger, weights=weights, buffers=total - weights)
        self._check(ledger)
        return ledger

    def _check(self, ledger: Ledger) -> None:
        fewer = f"fewer instances than {self._instances}, in engine_options"
        check_fits(self._name, ledger, [fewer] if self._instances > 1 else [])

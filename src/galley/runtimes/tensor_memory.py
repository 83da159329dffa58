"""The memory of tensor models: checked before they are loaded, and measured afterwards.

A library does not report what it will take. What is known beforehand is that a model takes at least the
bytes of its files; the rest is measured.
"""

import os
from typing import Final

import msgspec

from galley.engine.memory import RESERVE_BYTES, refusal
from galley.errors import NotEnoughMemory
from galley.machine import address_space_left, available_memory, bytes_text, held_memory
from galley.types.model_info import Ledger

_UNCHANGED: Final = "unchanged"
"""The type of the weights in a ledger: the library's own."""


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
        if ledger.fits:
            return
        missing = bytes_text(ledger.total - ledger.available)
        changes = [f"{missing} more memory: a larger container limit or ulimit -v"]
        if self._instances > 1:
            changes.append(f"fewer instances than {self._instances}, in engine_options")
        raise NotEnoughMemory(refusal(self._name, ledger, changes))


def expected_ledger(
    *, family: str, executor: str, device: str, threads: int, rows: int, weights: int
) -> Ledger:
    """Return the ledger of a tensor model before it is loaded.

    Args:
        family: the library and format.
        executor: the library.
        device: what computes the model.
        threads: compute threads of all instances.
        rows: the most rows of a batch.
        weights: the least bytes that the model takes.
    """
    return Ledger(
        family=family,
        parameters=0,
        executor=executor,
        isa="",
        device=device,
        threads=threads,
        weight_dtype=_UNCHANGED,
        inputs=_UNCHANGED,
        kv_dtype="",
        max_model_len=0,
        step_tokens=rows,
        weights=weights,
        buffers=0,
        kv_per_token=0,
        kv_tokens=0,
        kv=0,
        reserve=RESERVE_BYTES,
        available=min(available_memory(), address_space_left()),
    )

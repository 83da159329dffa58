"""The memory of language models that other libraries run on CPUs: planned before, and measured when loaded.

A library does not report what it will take. Known beforehand are the bytes of the files and, if Galley sets
its size, the KV cache; what the process holds beyond these once the model is loaded is measured.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from galley.machine import resident_memory
from galley.runtimes.library_memory import check_fits, planned_ledger
from galley.types.model_info import Ledger


class TextMemory:
    """Plans and measures a model's memory. Create it before the model is loaded."""

    def __init__(
        self,
        *,
        name: str,
        family: str,
        executor: str,
        threads: int,
        context: int,
        step_tokens: int,
        weights: int,
        kv_tokens: int = 0,
        kv_per_token: int = 0,
    ) -> None:
        """Plan the memory.

        Args:
            name: the model's name, for messages.
            family: type of the model.
            executor: the library.
            threads: compute threads.
            context: the most tokens of a text.
            step_tokens: the most tokens of a step; 0: the library has no such limit.
            weights: the least bytes of memory that the weights take.
            kv_tokens, kv_per_token: capacity of the KV cache, and bytes of a token; 0: the library's own.

        Raises:
            NotEnoughMemory: not even the plan fits.
        """
        self._name = name
        self._ledger = planned_ledger(
            family=family,
            executor=executor,
            threads=threads,
            max_model_len=context,
            step_tokens=step_tokens,
            weights=weights,
            kv_per_token=kv_per_token,
            kv_tokens=kv_tokens,
            kv=kv_tokens * kv_per_token,
        )
        self._check(self._ledger)
        self._before = resident_memory(os.getpid())

    def loaded(self) -> Ledger:
        """Return the ledger of the loaded model, with what it takes beyond the plan as buffers.

        Libraries fill a KV cache when they make it, or as it is used; it counts once, with its full size.

        Raises:
            NotEnoughMemory: what has been measured leaves nothing for the server.
        """
        if not self._before:  # the system does not report it
            return self._ledger
        planned = self._ledger
        taken = max(0, resident_memory(os.getpid()) - self._before)
        ledger = msgspec.structs.replace(
            planned, buffers=max(0, taken - planned.weights - planned.kv)
        )
        self._check(ledger)
        return ledger

    def _check(self, ledger: Ledger) -> None:
        caches = ["a smaller --kv-cache-tokens, --max-running or --max-model-len"]
        check_fits(self._name, ledger, caches if ledger.kv else [])


def bytes_of(files: Iterable[Path]) -> int:
    """Return the bytes of those files that exist."""
    return sum(file.stat().st_size for file in files if file.is_file())

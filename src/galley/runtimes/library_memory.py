"""Ledgers of models whose libraries do not report the memory that they take."""

from collections.abc import Sequence
from typing import Any, Final

from galley.engine.memory import RESERVE_BYTES, refusal
from galley.errors import NotEnoughMemory
from galley.machine import address_space_left, available_memory, bytes_text
from galley.types.model_info import Ledger

_UNCHANGED: Final = "unchanged"
"""The type of the weights in a ledger: the library's own."""


def planned_ledger(**known: Any) -> Ledger:
    """Return the ledger of a model before it is loaded, against the memory that is available now.

    Args:
        known: fields of :class:`Ledger`: ``family``, ``executor``, ``threads``, and ``weights``, the least
            bytes that the model takes; others, such as those of a KV cache, are 0 unless given.
    """
    fields: dict[str, Any] = {
        "parameters": 0,
        "isa": "",
        "device": "cpu",
        "weight_dtype": _UNCHANGED,
        "inputs": _UNCHANGED,
        "kv_dtype": "",
        "max_model_len": 0,
        "step_tokens": 0,
        "buffers": 0,
        "kv_per_token": 0,
        "kv_tokens": 0,
        "kv": 0,
        "reserve": RESERVE_BYTES,
        "available": min(available_memory(), address_space_left()),
    }
    return Ledger(**(fields | known))


def check_fits(name: str, ledger: Ledger, smaller: Sequence[str]) -> None:
    """Check that a model fits.

    Args:
        name: the model's name.
        ledger: its memory.
        smaller: changes of settings that would make it smaller.

    Raises:
        NotEnoughMemory: it does not fit.
    """
    if ledger.fits:
        return
    missing = bytes_text(ledger.total - ledger.available)
    more = f"{missing} more memory: a larger container limit or ulimit -v"
    raise NotEnoughMemory(refusal(name, ledger, [more, *smaller]))

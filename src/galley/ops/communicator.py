"""How the ranks of a model exchange rows: a communicator of each, over memory that all on a machine map."""

import mmap
import os
from typing import Final

import numpy as np
import numpy.typing as npt

from galley import _native
from galley.machine import nameless_file

Communicator = _native.Communicator
RankLost = _native.RankLost

SLOT_BYTES: Final = 2 << 20
"""Bytes of a slot: the widest row of logits of one rank fits, and a chunk stays in a core's cache."""

TIMEOUT_MS: Final = 120_000
"""Milliseconds after which a rank that does not answer counts as lost.

The death of a process is noticed at once, and a step that hangs is ended after ``step_timeout``; this
bound is for what neither sees.
"""


def memory_bytes(ranks: int, slot_bytes: int) -> int:
    """Return the bytes of the memory that this many ranks share."""
    return Communicator.bytes(ranks, slot_bytes)


def new_memory(ranks: int, slot_bytes: int) -> int:
    """Return the descriptor of zeroed memory for this many ranks."""
    file = nameless_file("galley-tensor-parallel")
    os.ftruncate(file, memory_bytes(ranks, slot_bytes))
    return file


def mapped_memory(file: int, ranks: int, slot_bytes: int) -> npt.NDArray[np.uint8]:
    """Return the memory of a descriptor, which may then be closed; -1: memory of this process alone."""
    return np.frombuffer(mmap.mmap(file, memory_bytes(ranks, slot_bytes)), np.uint8)


def communicator(
    memory: npt.NDArray[np.uint8], rank: int, ranks: int, slot_bytes: int
) -> Communicator:
    """Return a rank's communicator over memory of :func:`mapped_memory`."""
    return Communicator(memory, rank, ranks, slot_bytes, TIMEOUT_MS)

"""What steps of so many rows take, kept beside the packed weights: measured once, not at each start.

A measurement belongs to the weights in their present state, to how they are kept and computed with, and to
the machine. It is written again when it is some months old.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from galley import __version__
from galley.machine import available_cores, cpu_name
from galley.ops.executor import Executor, ExecutorOptions

log: Final = logging.getLogger("galley.weights")

Seconds = Mapping[int, float]
"""Rows -> seconds of a step."""


class _Measured(msgspec.Struct, frozen=True):
    key: str
    seconds: dict[int, float]


def measured_steps(
    executor: Executor, options: ExecutorOptions, about: str, measure: Callable[[], Seconds]
) -> Seconds:
    """What was measured of such an executor before, or else what ``measure`` gives, which is kept.

    Args:
        executor: whose steps.
        options: it was made with; where no packed weights are kept, measurements are not either.
        about: what else the measurement depends on.
        measure: does it.
    """
    isa = getattr(executor, "isa", "")
    if options.weight_cache is None or not isa:
        return measure()
    # The native extension is there: packed weights are its own.
    from galley.ops.packed_files import MEASURED_SUFFIX, packed_folder, write_atomically

    ours = (options.quantize, sorted(options.kinds.items()), options.kv_dtype, executor.activations)
    experts = (options.experts, options.expert_cache_bytes)
    machine = (cpu_name(), available_cores(), options.threads, options.disable_pass, __version__)
    key = repr((options.weight_cache.state(), *ours, *experts, *machine, isa, about))
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    try:
        path = packed_folder() / f"{name}{MEASURED_SUFFIX}"
        if (known := _read(path, key)) is not None:
            return known
    except OSError:  # the user has no home folder
        return measure()
    measured = measure()
    with suppress(OSError):  # a folder that cannot be written: measured anew at each start
        path.parent.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode(_Measured(key, dict(measured)))
        write_atomically(path, [memoryview(content)])
    return measured


def _read(path: Path, key: str) -> Seconds | None:
    """None if there is none, or none that can be used."""
    with suppress(OSError, msgspec.DecodeError):
        known = msgspec.json.decode(path.read_bytes(), type=_Measured)
        if known.key == key and len(known.seconds) > 1 and 1 in known.seconds:
            return known.seconds
    return None

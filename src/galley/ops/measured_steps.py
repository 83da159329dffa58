"""Measured seconds of a step by its number of rows, kept next to the packed weights between starts.

A measurement is valid for the present state of the weights, for the way they are stored and computed with,
and for the machine. It is repeated when it is some months old.
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
"""Number of rows -> seconds of a step."""


class _Measured(msgspec.Struct, frozen=True):
    key: str
    seconds: dict[int, float]


def measured_steps(
    executor: Executor, options: ExecutorOptions, about: str, measure: Callable[[], Seconds]
) -> Seconds:
    """Return an earlier measurement of such an executor, or else measure and keep the result.

    Args:
        executor: the executor whose steps are measured.
        options: the options that it was made with; if they keep no packed weights, no measurement is kept.
        about: text of everything else that the measurement depends on.
        measure: measures the steps.
    """
    isa = getattr(executor, "isa", "")
    if options.weight_cache is None or not isa:
        return measure()
    # Packed weights belong to the native extension, so it can be imported here.
    from galley.ops.packed_cache import MEASURED_SUFFIX
    from galley.ops.packed_files import packed_folder, write_atomically

    ours = (
        options.weight_dtype,
        sorted(options.kinds.items()),
        options.kv_dtype,
        executor.activations,
    )
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
    with suppress(OSError):  # if the folder is read-only, steps are measured at each start
        path.parent.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode(_Measured(key, dict(measured)))
        write_atomically(path, [memoryview(content)])
    return measured


def _read(path: Path, key: str) -> Seconds | None:
    """Read a measurement; return None if there is none or it cannot be used."""
    with suppress(OSError, msgspec.DecodeError):
        known = msgspec.json.decode(path.read_bytes(), type=_Measured)
        if known.key == key and len(known.seconds) > 1 and 1 in known.seconds:
            return known.seconds
    return None

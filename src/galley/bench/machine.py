"""Measurements of the machine's memory bandwidth and peak arithmetic with the kernels' instructions."""

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Final

from galley import _native
from galley.bench.report import Cache, Machine, Spread
from galley.errors import SettingsError
from galley.machine import available_cores, available_memory, cpu_name
from galley.ops.isa import choose_isa, cpus_to_pin

KINDS: Final = ("int8", "bf16", "float32")
PHASES: Final = 2 + len(KINDS)
"""How often :func:`measure_machine` reports progress."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def measure_machine(
    *,
    threads: int | None = None,
    memory_bytes: int,
    seconds: float = 0.2,
    repeats: int = 7,
    on_phase: Callable[[], None] = lambda: None,
) -> Machine:
    """Measure read bandwidth and peak arithmetic.

    Args:
        threads: default: the cores this process may use.
        memory_bytes: how much memory one repeat streams; far more than the caches hold.
        seconds: how long one repeat multiplies.
        repeats: samples of each figure.
        on_phase: called PHASES times.

    Raises:
        SettingsError: GALLEY_CPU_ISA names an instruction set that the CPU or the build lacks, or memory is
            short.
    """
    if available_memory() < 2 * memory_bytes:
        raise SettingsError(
            f"measuring the read bandwidth needs twice {memory_bytes >> 20} MiB of free memory; "
            f"{available_memory() >> 20} MiB are available"
        )
    threads = threads or available_cores()
    isa, cpus = choose_isa(os.environ), cpus_to_pin(threads)

    def read(huge: bool) -> Spread:
        rates = _native.read_rates(isa, threads, cpus, memory_bytes, huge, repeats)
        on_phase()
        return Spread.of(rates)

    def multiply(kind: str) -> Spread:
        rates = _native.multiply_rates(isa, threads, cpus, kind, seconds, repeats)
        on_phase()
        return Spread.of(rates)

    return Machine(
        cpu=cpu_name(),
        isa=isa,
        cores=available_cores(),
        threads=threads,
        caches=caches(),
        read_huge=read(huge=True),
        read_small=read(huge=False),
        operations={kind: multiply(kind) for kind in KINDS},
    )


def read_rate(threads: int | None, memory_bytes: int) -> float:
    """Measure the current memory bandwidth, in bytes a second, in huge pages.

    Raises:
        SettingsError: GALLEY_CPU_ISA names an instruction set that the CPU or the build lacks.
    """
    threads = threads or available_cores()
    rates = _native.read_rates(
        choose_isa(os.environ), threads, cpus_to_pin(threads), memory_bytes, True, 3
    )
    return statistics.median(rates)


def caches(folder: Path = _CACHES) -> tuple[Cache, ...]:
    """Return the caches of the first core; empty where the system does not list them."""
    return tuple(
        Cache(
            level=int((index / "level").read_text()),
            type=(index / "type").read_text().strip().lower(),
            bytes=_size((index / "size").read_text().strip()),
        )
        for index in sorted(folder.glob("index*"))
        if (index / "size").exists()
    )


def _size(text: str) -> int:
    """Return the bytes of a size such as "32K"."""
    units = {"K": 10, "M": 20, "G": 30}
    return int(text.rstrip("KMG")) << units.get(text[-1], 0)

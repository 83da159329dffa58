"""All checks, in the order of their importance for speed."""

from collections.abc import Callable, Iterator
from typing import Final

from galley.doctor import cores, gpu, gpu_state, memory, process, processor, runtimes, storage
from galley.doctor.findings import Context, Finding

Check = Callable[[Context], list[Finding]]

_CHECKS: Final[tuple[Check, ...]] = (
    cores.check,
    memory.check,
    gpu.check,
    gpu_state.check,
    runtimes.check,
    process.check,
)


def examine(context: Context, *, measure: bool = True) -> Iterator[Finding]:
    """Yield every finding as it is made; ``measure`` also runs cores, memory and disk for some seconds."""
    kernels = processor.check(context)
    yield from kernels
    for check in _CHECKS:
        yield from check(context)
    if any(finding.level == "problem" for finding in kernels):
        return  # no native kernels: no packed weights, and nothing to measure
    yield from storage.check(context, measure=measure)
    if measure:
        from galley.doctor import speed  # needs the native kernels

        yield from speed.check(context)

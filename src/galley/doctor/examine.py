"""All checks, in the order of their importance for speed."""

from collections.abc import Callable, Iterator
from typing import Final

from galley.doctor import cores, gpu, memory, process, processor, storage
from galley.doctor.findings import Asked, Finding

Check = Callable[[Asked], list[Finding]]

_CHECKS: Final[tuple[Check, ...]] = (cores.check, memory.check, gpu.check, process.check)


def examine(asked: Asked, *, measure: bool = True) -> Iterator[Finding]:
    """Yield every finding as it is made; ``measure`` also runs cores, memory and disk for some seconds."""
    kernels = processor.check(asked)
    yield from kernels
    for check in _CHECKS:
        yield from check(asked)
    if any(finding.level == "problem" for finding in kernels):
        return  # nothing packs weights, and nothing can be measured
    yield from storage.check(asked, measure=measure)
    if measure:
        from galley.doctor import speed  # needs the native kernels

        yield from speed.check(asked)

"""Choose the kernels that the native code runs, and the cores that it runs on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from galley import _native
from galley.errors import SettingsError
from galley.machine import usable_cpus

ISA_VARIABLE: Final = "GALLEY_CPU_ISA"


def choose_isa(environ: Mapping[str, str]) -> str:
    """Return the best instruction set of this CPU, or the one that GALLEY_CPU_ISA names.

    Raises:
        SettingsError: the named one is unknown, or this CPU lacks it.
    """
    supported = _native.supported_isas()
    wanted = environ.get(ISA_VARIABLE) or supported[0]
    if wanted not in supported:
        raise SettingsError(
            f"{ISA_VARIABLE} is {wanted!r}, which this CPU does not support; "
            f"supported: {', '.join(supported)}"
        )
    return wanted


def cpus_to_pin(threads: int) -> list[int]:
    """Return the CPUs to pin the threads to; none if there are more CPUs, which others may need."""
    cpus = sorted(usable_cpus())
    return cpus if len(cpus) == threads else []


@contextmanager
def naming(threads: int | None) -> Iterator[None]:
    """Turn the error of a system that cannot start this many threads into one that names the setting.

    Raises:
        SettingsError: the system cannot start ``threads`` threads.
    """
    try:
        yield
    except _native.TooFewThreads as error:
        raise SettingsError(f"threads is {threads}, but {error}") from None

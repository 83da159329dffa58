"""Which kernels the native code runs, and on which cores."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from galley import _native
from galley.errors import SettingsError
from galley.machine import usable_cpus

ISA_VARIABLE: Final = "GALLEY_CPU_ISA"


def choose_isa(environ: Mapping[str, str]) -> str:
    """The best instruction set of this CPU, or the one that GALLEY_CPU_ISA names.

    Raises:
        SettingsError: the named one is unknown, or this CPU lacks it.
    """
    supported = _native.supported_isas()
    wanted = environ.get(ISA_VARIABLE) or supported[0]
    if wanted not in supported:
        raise SettingsError(
            f"{ISA_VARIABLE}: {wanted!r} is unknown or missing from this CPU, "
            f"which supports {', '.join(supported)}"
        )
    return wanted


def cpus_to_pin(threads: int) -> list[int]:
    """Where to pin the threads: nowhere if there are more cores, which another process may want."""
    cpus = sorted(usable_cpus())
    return cpus if len(cpus) == threads else []


@contextmanager
def naming(threads: int | None) -> Iterator[None]:
    """An error that names the setting, where the system does not start so many threads.

    Raises:
        SettingsError: see there.
    """
    try:
        yield
    except _native.TooFewThreads as error:
        raise SettingsError(f"threads is {threads}, but {error}") from None

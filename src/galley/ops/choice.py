"""The executors by name, and the choice of one for a device."""

import importlib
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from galley.errors import DISTRIBUTION, SettingsError, UnsupportedModel, pip_install
from galley.graph.program import Program
from galley.ops.executor import CapabilityChecking, ExecutorFactory

log = logging.getLogger("galley.ops")


class Entry(NamedTuple):
    """The module and name of an executor, the packages that it needs, and how to install these."""

    module: str
    attribute: str
    needs: tuple[str, ...]
    remedy: str


EXECUTORS: Final[Mapping[str, Entry]] = {
    "cpu": Entry(
        "galley.ops.cpu",
        "CpuExecutor",
        ("galley._native",),
        f"install {DISTRIBUTION} from a wheel for this machine, or from source with a C++17 compiler",
    ),
    "gpu": Entry(
        "galley.ops.triton.executor", "TritonExecutor", ("torch", "triton"), pip_install("gpu")
    ),
    "reference": Entry(
        "galley.ops.reference", "ReferenceExecutor", ("torch",), pip_install("torch")
    ),
}
"""Executors by name. A module is imported only when its executor is requested."""


def executor_factory(name: str) -> ExecutorFactory:
    """Return the factory of the executor of this name.

    Raises:
        SettingsError: the name is unknown, or the package that the executor needs cannot be imported.
    """
    if name not in EXECUTORS:
        raise SettingsError(f"unknown executor {name!r}; executors: {', '.join(EXECUTORS)}")
    entry = EXECUTORS[name]
    for needed in entry.needs:
        try:
            importlib.import_module(needed)
        except ImportError as error:
            raise SettingsError(
                f"executor {name!r} needs {needed}, which cannot be imported ({error}); {entry.remedy}"
            ) from error
    loaded: Any = importlib.import_module(entry.module)
    return cast(ExecutorFactory, getattr(loaded, entry.attribute))


def choose_executor(name: str, device: str) -> tuple[str, ExecutorFactory]:
    """Return the name and factory of the named executor, or with "auto" of the best for ``device``.

    If the fastest executor for the device is not available, or not for a GPU that old, "auto" warns and
    chooses the reference executor.

    Raises:
        SettingsError: the named executor is not available, or none runs on ``device``.
    """
    if name != "auto":
        return _available(name, device)
    best = {"cpu": "cpu", "cuda": "gpu"}.get(device.partition(":")[0], "reference")
    try:
        return _available(best, device)
    except SettingsError as missing:
        if best == "reference":
            raise
        try:
            factory = executor_factory("reference")
        except SettingsError as reference:
            raise SettingsError(f"no executor can run here. {missing}. Or {reference}") from missing
        log.warning("%s. Using the reference executor, which is many times slower", missing)
        return "reference", factory


def _available(name: str, device: str) -> tuple[str, ExecutorFactory]:
    """Return the name and factory of an executor; raise SettingsError if it cannot run here."""
    factory = executor_factory(name)
    if isinstance(factory, CapabilityChecking):
        factory.check_capability(device.partition(",")[0])
    return name, factory


def executor_of(
    program: Program, wanted: str, chosen: tuple[str, ExecutorFactory]
) -> tuple[str, ExecutorFactory]:
    """Return the name and factory that :func:`choose_executor` chose, if that executor has all kernels.

    If "auto" chose one that does not, warn and return the reference executor.

    Args:
        program: the program to run.
        wanted: the executor in the settings.
        chosen: the result of :func:`choose_executor`.
    """
    if wanted != "auto" or chosen[0] != "gpu":
        return chosen
    from galley.ops.triton.supported import check_program

    try:
        check_program(program)
    except UnsupportedModel as error:
        log.warning("%s. Using the reference executor, which is many times slower", error)
        return "reference", executor_factory("reference")
    return chosen

"""The executors by name, and the choice of one for a device."""

import importlib
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from galley.errors import DISTRIBUTION, SettingsError, pip_install
from galley.ops.executor import ExecutorFactory

log = logging.getLogger("galley.ops")


class Entry(NamedTuple):
    """The module and name of an executor, the package that it needs, and how to install that package."""

    module: str
    attribute: str
    needs: str
    remedy: str


EXECUTORS: Final[Mapping[str, Entry]] = {
    "cpu": Entry(
        "galley.ops.cpu",
        "CpuExecutor",
        "galley._native",
        f"install {DISTRIBUTION} from a wheel for this machine, or from source with a C++17 compiler",
    ),
    "gpu": Entry("galley.ops.triton.executor", "TritonExecutor", "triton", pip_install("gpu")),
    "reference": Entry("galley.ops.reference", "ReferenceExecutor", "torch", pip_install("torch")),
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
    try:
        importlib.import_module(entry.needs)
    except ImportError as error:
        raise SettingsError(
            f"executor {name!r} needs {entry.needs}, which cannot be imported ({error}); "
            f"{entry.remedy}"
        ) from error
    loaded: Any = importlib.import_module(entry.module)
    return cast(ExecutorFactory, getattr(loaded, entry.attribute))


def choose_executor(name: str, device: str) -> tuple[str, ExecutorFactory]:
    """Return the name and factory of the named executor, or with "auto" of the best for ``device``.

    If the native executor is not available, "auto" warns and chooses the reference executor.

    Raises:
        SettingsError: the named executor is not available, or none runs on ``device``.
    """
    if name != "auto":
        return name, executor_factory(name)
    if device != "cpu":
        return "reference", executor_factory("reference")
    try:
        return "cpu", executor_factory("cpu")
    except SettingsError as native:
        try:
            factory = executor_factory("reference")
        except SettingsError as reference:
            raise SettingsError(f"no executor can run here. {native}. Or {reference}") from native
        log.warning(
            "%s. Using the reference executor until then, which is many times slower", native
        )
        return "reference", factory

"""Measurements that are no part of the package; they need what `pip install -e '.[dev]'` installs."""

import sys
from types import TracebackType


def _name_what_is_missing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Say how the packages of the benchmarks are installed where one is not there."""
    if isinstance(error, ModuleNotFoundError):
        sys.exit(
            f"{error}: the benchmarks need the development packages: "
            f"{sys.executable} -m pip install --constraint constraints.txt --editable '.[dev]'"
        )
    sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:  # not where a debugger or a test runner has its own
    sys.excepthook = _name_what_is_missing

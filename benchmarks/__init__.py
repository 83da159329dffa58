"""Benchmarks. They are not part of the package; `pip install -e '.[dev]'` installs what they need."""

import sys
from types import TracebackType


def _name_what_is_missing(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Exit with the install command when one of the benchmark packages is missing."""
    if isinstance(error, ModuleNotFoundError):
        sys.exit(
            f"{error}: the benchmarks need the development packages: "
            f"{sys.executable} -m pip install --constraint constraints.txt --editable '.[dev]'"
        )
    sys.__excepthook__(kind, error, trace)


if sys.excepthook is sys.__excepthook__:  # keep a debugger's own hook
    sys.excepthook = _name_what_is_missing

"""Child processes in which packages cannot be imported."""

import os
from pathlib import Path

_FORBID = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if any(name == missing or name.startswith(missing + ".") for missing in {names!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Forbid())
"""


def without(folder: Path, *names: str) -> dict[str, str]:
    """Variables for a process, and its children, that lacks these modules.

    Python runs ``sitecustomize`` at start; it is written to ``folder``.
    """
    (folder / "sitecustomize.py").write_text(_FORBID.format(names=names))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }

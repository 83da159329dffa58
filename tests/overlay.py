"""A copy of the package with a few files added or changed, and tools to run it.

Untouched files are links to the package's own, so a copy costs next to nothing.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import galley
from galley import _native

PACKAGE = Path(galley.__file__).parent
ROOT = PACKAGE.parents[1]

THIS_PACKAGE = """
import sys
# An editable installation finds its own package before sys.path is looked at.
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""

Edit = tuple[str, str]
"""A line of a file, and its replacement."""


class Overlay:
    """The package in ``folder``, with the files that :meth:`add` and :meth:`edit` touched.

    Attributes:
        touched: paths of these files, relative to ``src/galley``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.touched: list[str] = []
        (folder / PACKAGE.name).mkdir(parents=True)
        _link_all(PACKAGE, folder / PACKAGE.name)
        native = Path(_native.__file__)
        if not (folder / PACKAGE.name / native.name).exists():
            (folder / PACKAGE.name / native.name).symlink_to(native)

    def add(self, path: str, text: str) -> None:
        """Add a file of the package."""
        target = self._own(path)
        assert not target.exists(), path
        target.write_text(text, encoding="utf-8")
        self.touched.append(path)

    def edit(self, path: str, *edits: Edit) -> None:
        """Change lines of a file, each of which must occur exactly once."""
        target = self._own(path)
        target.unlink()
        target.write_text(edited((PACKAGE / path).read_text(encoding="utf-8"), edits), "utf-8")
        self.touched.append(path)

    def run(self, code: str, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
        """Return the output of a script that imports this package."""
        done = subprocess.run(
            [sys.executable, "-c", THIS_PACKAGE + code, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{self.folder}:{ROOT}",
                **(environ or {}),
            },
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _own(self, path: str) -> Path:
        """Return the path of a file, in folders that are not links."""
        source, target = PACKAGE, self.folder / PACKAGE.name
        for part in Path(path).parts[:-1]:
            source, target = source / part, target / part
            if target.is_symlink():
                target.unlink()
                target.mkdir()
                _link_all(source, target)
        return target / Path(path).name


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with each line replaced."""
    for line, replacement in edits:
        assert text.count(line) == 1, line
        text = text.replace(line, replacement)
    return text


def _link_all(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        if entry.name == "__pycache__":
            continue  # the package's own, which must not receive changed files
        (target / entry.name).symlink_to(entry)

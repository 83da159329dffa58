"""Run the kernel tests on a native module that stops at the first bad address or undefined behavior.

    python scripts/sanitize.py [pytest arguments; default: all tests of kernels]

The module is built from ``native/`` with GCC's address and undefined-behavior sanitizers in
``build/sanitize``. Child processes of the tests use the regular module.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sanitize"
INSIDE = "GALLEY_SANITIZER_LOADED"


def build() -> None:
    """Install into a folder that is not on the path: only its native module is used."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--upgrade", "--target", str(FOLDER)]
    command += ["--config-settings=cmake.define.GALLEY_SANITIZE=ON"]
    command += [f"--config-settings=build-dir={FOLDER / 'cmake'}", str(ROOT)]
    subprocess.run(command, check=True, env=os.environ | {"GALLEY_REQUIRE_NATIVE": "1"})


def restart() -> None:
    """Restart this process with the address sanitizer preloaded, which must be loaded first."""
    compiler = shutil.which("gcc")
    if compiler is None:
        sys.exit("gcc, which locates the sanitizers' libraries, is not on the PATH")
    libraries = [
        subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environ = {
        INSIDE: "1",
        "LD_PRELOAD": " ".join(libraries),
        # The interpreter frees little memory when it exits.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | environ)  # noqa: S606


def load() -> None:
    """Replace the installed native module."""
    import galley

    (path,) = (FOLDER / "galley").glob("_native*.so")
    spec = importlib.util.spec_from_file_location("galley._native", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["galley._native"] = galley._native = module
    spec.loader.exec_module(module)


def main() -> int:
    """Build, restart with the sanitizers, test."""
    if INSIDE not in os.environ:
        build()
        restart()
    for name in (INSIDE, "LD_PRELOAD"):
        del os.environ[name]
    load()
    import pytest

    names = ("native", "ops/test_ops_draws.py", "ops/test_ops_rows.py")
    everything = [str(ROOT / "tests" / name) for name in names]
    # Sanitized tests run about ten times slower, so raise the timeout.
    return pytest.main(["-n", "0", "--timeout", "0", *(sys.argv[1:] or everything)])


if __name__ == "__main__":
    sys.exit(main())

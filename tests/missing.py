"""Child processes in which packages cannot be imported, the engine starts late, or the disk is slow."""

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

_LATE = """
import os, sys, time

while "galley.service.worker" in sys.orig_argv and not os.path.exists({signal!r}):
    time.sleep(0.01)
"""

_SLOW_DISK = """
import os, sys, time

if "galley.service.worker" in sys.orig_argv:
    write = os.pwrite

    def pwrite(*arguments):
        while not os.path.exists({signal!r}):
            time.sleep(0.01)
        return write(*arguments)

    os.pwrite = pwrite
"""


def without(folder: Path, *names: str) -> dict[str, str]:
    """Return variables for a process, and its children, without these modules."""
    return _at_start(folder, _FORBID.format(names=names))


def broken(folder: Path, name: str) -> dict[str, str]:
    """Return variables for a process in which this module is installed but cannot be imported."""
    (folder / f"{name}.py").write_text("raise ModuleNotFoundError('half installed')")
    return _path(folder)


def late_engine(folder: Path, signal: Path) -> dict[str, str]:
    """Return variables for a server whose engine does nothing before the file ``signal`` exists."""
    return _at_start(folder, _LATE.format(signal=str(signal)))


def slow_disk(folder: Path, signal: Path) -> dict[str, str]:
    """Return variables for a server whose engine completes no packed file before ``signal`` exists."""
    return _at_start(folder, _SLOW_DISK.format(signal=str(signal)))


def _at_start(folder: Path, code: str) -> dict[str, str]:
    """Write ``sitecustomize``, which Python runs first if it finds one; return the variables."""
    (folder / "sitecustomize.py").write_text(code)
    return _path(folder)


def _path(folder: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }


_NO_LINUX = """
import builtins, ctypes, io, mmap, os, select, signal, socket, time

for module, names in {
    os: "sched_getaffinity sched_setaffinity sched_setscheduler sched_getscheduler sched_getparam "
    "memfd_create MFD_CLOEXEC posix_fallocate posix_fadvise eventfd pidfd_open splice "
    "copy_file_range O_TMPFILE O_DIRECT getrandom prlimit",
    mmap: "MADV_HUGEPAGE",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "SOCK_SEQPACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED MSG_CMSG_CLOEXEC",
    time: "CLOCK_BOOTTIME",
}.items():
    for name in names.split():
        vars(module).pop(name, None)


class _Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "mallopt", "malloc_trim", "sched_setaffinity"):
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = _Library


def _hiding(real):
    def opened(path, *args, **kwargs):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(("/proc/", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *args, **kwargs)
    return opened


io.open = builtins.open = _hiding(io.open)
os.open, os.readlink = _hiding(os.open), _hiding(os.readlink)
os.stat, os.scandir, os.listdir = map(_hiding, (os.stat, os.scandir, os.listdir))
"""


def without_linux(folder: Path, *names: str) -> dict[str, str]:
    """Return variables for processes without what only Linux has, and without these modules."""
    return _at_start(folder, _FORBID.format(names=names) + _NO_LINUX)

"""Commands of Galley that start warm: forks of a process that has imported their modules.

Importing is most of what a command or a server costs at its start. A fork is a process of its own, with its
own files, signals and exit code; only its imports are not its own. What depends on these must start cold:
what is imported, the order of imports, variables that are read by imports.
"""

import atexit
import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, TypeAlias

from tests.forks import Fork

ROOT: Final = Path(__file__).parents[1]

ROOM: Final = "/" * 4000
"""An argument that leaves a fork room to show other words as its command line."""

_READ_LATE: Final = (
    *("GALLEY_", "_GALLEY_", "COLUMNS", "COMP_", "NO_COLOR", "PYTEST_", "TERM"),
    # Libraries (xgboost, torch, onnxruntime-genai) set these in the process of a test that imports them.
    *("KMP_", "ORT_LIB_PATH", "TORCHINDUCTOR_"),
)
"""How the names of variables begin that nothing which Galley imports reads while it is imported."""

MOST_ANSWERED: Final = 4096
"""Bytes of an answer at most; a pipe passes as many in one piece."""

Started: TypeAlias = "Fork | subprocess.Popen[bytes]"


def start(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    stdin: IO[bytes] | None = None,
    stdout: IO[bytes],
    stderr: IO[bytes],
    cwd: Path | None = None,
    open_files: int | None = None,
) -> Fork | None:
    """Start ``galley`` with these arguments as a warm process.

    Args:
        arguments: of the command line.
        environ: all of the process's variables.
        stdin: its input; None: nothing.
        stdout: the file for its output.
        stderr: the file for its messages, which may be the same.
        cwd: its folder; None: this process's.
        open_files: how many files it may open; None: as many as this process.

    Returns:
        The process, or None if only a cold start is the same: a system without what this takes, or
        variables that may change what is imported.
    """
    parent = _parent_for(environ)
    if parent is None:
        return None
    request = {
        "arguments": list(arguments),
        "environ": dict(environ),
        "cwd": str(cwd or Path.cwd()),
        "open_files": open_files,
    }
    with open(os.devnull, "rb") as nothing:
        files = [file.fileno() for file in (stdin or nothing, stdout, stderr)]
        return Fork(parent.ask(request, files)["pid"], parent.status_of)


def run(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    stdin: bytes = b"",
    cwd: Path | None = None,
    timeout: float = 120,
) -> "subprocess.CompletedProcess[str] | None":
    """Run ``galley`` to its end as a warm process; return what :func:`subprocess.run` would.

    Args:
        arguments: of the command line.
        environ: all of the process's variables.
        stdin: its input.
        cwd: its folder; None: this process's.
        timeout: seconds after which the process is killed.

    Returns:
        The exit code and texts, or None where :func:`start` returns None.

    Raises:
        subprocess.TimeoutExpired: it was killed.
    """
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        process = start(arguments, environ=environ, stdin=given, stdout=out, stderr=err, cwd=cwd)
        if process is None:
            return None
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(["galley", *arguments], code, _text(out), _text(err))


class _Parent:
    """The process that forks."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = dict(environ)
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_parent", str(theirs.fileno()), ROOM],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=self.environ,
                cwd=ROOT,
            )
        atexit.register(self.close)

    def status_of(self, pid: int) -> int:
        """Return the wait status of a fork that has ended; its number is free from then on."""
        return self.ask({"ended": pid})["status"]

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> dict[str, int]:
        """Send a request with files; return the answer.

        Raises:
            RuntimeError: the parent has ended, which its messages on the standard error explain.
        """
        answer, theirs = os.pipe()
        with open(answer, "rb", buffering=0) as reader:
            try:
                with self._lock, suppress(ConnectionError):  # no answer will come
                    socket.send_fds(self._control, [json.dumps(request).encode()], [theirs, *files])
            finally:
                os.close(theirs)
            # Not to the pipe's end: a process that another thread forks meanwhile has it open, too.
            text = reader.read(MOST_ANSWERED)
        if not text:
            raise RuntimeError(f"the parent of warm processes ended: {self._process.poll()}")
        found: dict[str, int] = json.loads(text)
        return found

    def close(self) -> None:
        """End the parent; its forks stay."""
        self._control.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


_parents: list[_Parent] = []
"""This worker's, once there is one."""

_usual: Final = dict(os.environ)
"""The variables of this worker's tests, without those that a test sets for itself."""


def set_usual(environ: Mapping[str, str]) -> None:
    """Say which variables most tests have, before any test runs: those of the parent."""
    _usual.clear()
    _usual.update(environ)


def possible() -> bool:
    """Return whether processes can start warm in this run of the tests."""
    # Coverage of a process begins where Python starts. With more than one thread, numpy starts some when it
    # is imported, which a fork would lose.
    coverage = sys.modules.get("coverage")  # pytest-cov imports it where it measures nothing, too
    return (
        hasattr(os, "pidfd_open")
        and (coverage is None or coverage.Coverage.current() is None)
        and os.environ.get("OMP_NUM_THREADS") == "1"
    )


def _parent_for(environ: Mapping[str, str]) -> _Parent | None:
    if not (possible() and _late_only(environ, _usual)):
        return None
    if not _parents:
        _parents.append(_Parent({k: v for k, v in _usual.items() if not k.startswith(_READ_LATE)}))
    return _parents[0]


def _late_only(environ: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether the two differ in nothing but variables that no import reads."""
    return all(
        name.startswith(_READ_LATE) or environ.get(name) == other.get(name)
        for name in environ.keys() | other.keys()
    )


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return io.TextIOWrapper(file).read()

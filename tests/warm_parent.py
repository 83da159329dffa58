"""The parent of warm processes: it has imported what Galley's commands import, and forks for each of them.

``python -m tests.warm_parent SOCKET ROOM``; :mod:`tests.warm` has the other end of the socket. ROOM is not
read: it leaves room for a fork's command line.

The engines that a warm server starts while it has only one thread, all those of its own start, are forks of
the server. Later engines, text workers and decoders are started as always.
"""

import asyncio
import ctypes
import gc
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from galley.cli.main import _COMMANDS
from galley.service import spawn
from tests.forks import Fork

MODULES: Final = (
    "galley.server.run",
    "galley.gateway.registry",
    "galley.engine.loaders",
    "galley.llm.llm",
    "galley.llm.speaker",
    "galley.speech.transcribe",
    "galley.speech.vad",
    "galley.calls.pipeline",
    "galley.calibration.quantize",
    "galley.bench.engine",
    "galley.bench.serve.session",
    *(f"galley.cli.{target.partition(':')[0]}" for target in _COMMANDS.values()),
)
"""What servers, engines and commands import first. No module may start a thread."""

MOST: Final = 1 << 20
"""Bytes of a request at most."""

ENGINE: Final = "galley.service.worker"


class Turned(BaseException):
    """Unwinds the stack of a fork that is to run another program.

    Attributes:
        words: the program's command line.
        environ: its variables.
        files: the open files that it keeps, its standard ones excluded.
    """

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], files: Sequence[int]
    ) -> None:
        super().__init__(*words)
        self.words = words
        self.environ = environ
        # The stack below closes some of them.
        self._kept = {file: os.dup(file) for file in files}

    def restore(self) -> None:
        """Make the files, and no others, what they were."""
        for file, kept in self._kept.items():
            os.dup2(kept, file, inheritable=False)
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # of the listing itself
                if int(name) > 2 and int(name) not in self._kept:
                    os.close(int(name))


def main() -> None:
    """Answer requests until the socket closes; in a fork, run the command, or the engine of a server."""
    # Ctrl-C in a terminal reaches this process, too, which must outlive the tests' servers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        with suppress(ImportError):  # of an extra that is not installed
            import_module(name)
    assert _threads() == 1, "a thread was started, which no fork would have"
    # Garbage collection would write to the pages that all processes share.
    gc.collect()
    gc.freeze()
    words = _next_command(control)
    try:
        if words is not None:
            vars(spawn)["subprocess"] = SimpleNamespace(Popen=_started, DEVNULL=subprocess.DEVNULL)
            _run(words)
        return
    except Turned as found:
        # Its traceback keeps the frames below, whose objects would close files of the same numbers later.
        turned = found.with_traceback(None)
    turned.restore()
    os.environ.clear()
    os.environ.update(turned.environ)
    _run(turned.words)


def _run(words: Sequence[str]) -> None:
    """Run ``python -m MODULE ARGUMENTS``."""
    _show(words)
    module, sys.argv = words[2], list(words[2:])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _next_command(control: socket.socket) -> Sequence[str] | None:
    """Fork for each request; return a fork's command line, or None when the socket closes."""
    while True:
        message, files, *_ = socket.recv_fds(control, MOST, 4, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return None
        request, answer = json.loads(message), files[0]
        if "ended" in request:
            _answer(answer, status=os.waitpid(request["ended"], 0)[1])
        elif child := os.fork():
            _answer(answer, pid=child)
            for file in files[1:]:
                os.close(file)
        else:
            control.close()
            os.close(answer)
            _become(request, files[1:])
            return [sys.executable, "-m", "galley", *request["arguments"]]


def _answer(file: int, **values: int) -> None:
    with suppress(BrokenPipeError):  # whoever asked was interrupted
        os.write(file, json.dumps(values).encode())
    os.close(file)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Make this fork what ``python -m galley`` is at its start."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    os.environ.clear()
    os.environ.update(request["environ"])
    if request["open_files"] is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (request["open_files"],) * 2)


def _started(
    words: Sequence[str],
    *,
    pass_fds: Sequence[int],
    stdin: int,
    stdout: int,
    env: Mapping[str, str],
) -> "Fork | subprocess.Popen[bytes]":
    """Start a process of a server, as :class:`subprocess.Popen` does."""
    # A fork must not unwind an event loop: the loop's epoll is this process's, too.
    if words[2] != ENGINE or _threads() > 1 or asyncio._get_running_loop() is not None:
        return subprocess.Popen(words, pass_fds=pass_fds, stdin=stdin, stdout=stdout, env=env)
    # The fork would write what is buffered once more.
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return Fork(child, lambda pid: os.waitpid(pid, 0)[1])
    os.dup2(stdout, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    raise Turned(words, env, pass_fds)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _show(words: Sequence[str]) -> None:
    """Show the words as this process's command line, by which tests tell processes apart."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(numbers[45]), int(numbers[46])  # proc(5): arg_start and arg_end
    shown = "\0".join(words) + "\0"
    # Slashes at the beginning of an absolute path mean nothing.
    if len(shown.encode()) <= end - start:
        data = shown.encode().rjust(end - start, b"/")
        ctypes.memmove(start, data, len(data))


if __name__ == "__main__":
    main()

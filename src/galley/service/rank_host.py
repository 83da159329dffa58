"""The process of ``galley rank``: it listens, and keeps processes that each compute for one engine.

They are forked from this one. One of them waits for an engine, computes for it and ends with it. Once it
has begun, another one waits for the next engine of the same server, which a reload starts before it ends
the present one; engines of other servers are refused until then.
"""

import importlib
import logging
import mmap
import os
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

from galley.formats.source import resolve_model
from galley.links.access import UNENCRYPTED, Access, read_access
from galley.links.owner import NOBODY, OWNER_BYTES
from galley.links.sockets import listening
from galley.machine import available_cores
from galley.observe import logs
from galley.observe.logs import say
from galley.service.process_limits import end_with_parent
from galley.settings.config import LOOPBACK_HOSTS, Settings
from galley.settings.values import address_text

log = logging.getLogger("galley.rank")

_PAUSE_SECONDS: Final = 1.0
"""Pause after a process that has failed."""

_MOST_ENGINES: Final = 2
"""Engines for which the rank computes at the same time: a server's present one and the next one."""


def run_rank(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; blocks. Return the exit code.

    Raises:
        ModelError, SettingsError: the model or the settings cannot be used.
    """
    logs.start(settings.log_format, settings.log_level)
    access = read_access(settings)
    folder = resolve_model(settings.model, revision=settings.revision)
    if settings.host not in LOOPBACK_HOSTS and access.as_replica is None:
        log.warning(UNENCRYPTED, settings.host)
    try:
        listener = listening(settings.host, settings.port)
    except OSError as error:
        where = address_text(settings.host, settings.port)
        say(f"galley: cannot listen on {where}: {error.strerror or error}", sys.stderr)
        return 1
    name = settings.model or folder.name
    address = address_text(settings.host, listener.getsockname()[1])
    say(f"a rank of {name} is ready for an engine at {address}")
    with listener:
        return _Supervisor(settings, access, listener).run()


class _Turn:
    """See :class:`galley.engine.parallel.elsewhere.Turn`.

    Args:
        owner: memory that all processes share, with the server whose engines may use the rank.
        pipe: descriptor by which the supervisor hears of an engine.
    """

    def __init__(self, owner: mmap.mmap, pipe: int) -> None:
        self._owner = owner
        self._pipe = pipe

    def admits(self, owner: bytes) -> bool:
        """Return whether an engine of this server may use the rank now."""
        return self._owner[:OWNER_BYTES] in (NOBODY, owner)

    def begin(self, owner: bytes) -> None:
        """Have another process wait for the next engine."""
        os.write(self._pipe, owner)


@dataclass(eq=False)
class _Process:
    """A process that waits for an engine, or computes for one; ``pipe``: see :class:`_Turn`."""

    pid: int
    pipe: int
    waits: bool = True


class _Supervisor:
    """Keeps the processes that compute."""

    def __init__(self, settings: Settings, access: Access, listener: socket.socket) -> None:
        self._settings = settings
        self._access = access
        self._listener = listener
        self._owner = mmap.mmap(-1, OWNER_BYTES)
        self._processes: list[_Process] = []
        self._stopped = False

    def run(self) -> int:
        """Replace processes until a signal ends this one; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while not self._stopped:
            if not self._is_full and not self._start():
                break
            for one in self._changed():
                self._note(one)
        for one in self._processes:
            os.waitpid(one.pid, 0)
        return 0

    @property
    def _is_full(self) -> bool:
        """Whether a process waits, or there would be too many engines."""
        return any(one.waits for one in self._processes) or len(self._processes) == _MOST_ENGINES

    def _changed(self) -> list[_Process]:
        """Wait for processes that have an engine now, or have ended; a signal ends them."""
        pipes = [one.pipe for one in self._processes]
        ready, _, _ = select.select(pipes, [], [])
        return [one for one in self._processes if one.pipe in ready]

    def _note(self, process: _Process) -> None:
        """Record that a process has an engine now, or has ended."""
        owner = os.read(process.pipe, OWNER_BYTES)
        if owner:
            process.waits = False
            self._owner[:OWNER_BYTES] = owner
            return
        self._processes.remove(process)
        os.close(process.pipe)
        _, status = os.waitpid(process.pid, 0)
        if all(one.waits for one in self._processes):
            self._owner[:OWNER_BYTES] = NOBODY
        if (code := os.waitstatus_to_exitcode(status)) and not self._stopped:
            log.warning("a process of the rank ended with exit code %d", code)
            time.sleep(_PAUSE_SECONDS)

    def _start(self) -> bool:
        """Start a process, as soon as the system allows it; return False if a signal ends this one."""
        while not self._stopped:
            try:
                return self._fork()
            except OSError as error:
                log.warning("the process of the rank cannot be started: %s; trying again", error)
                time.sleep(_PAUSE_SECONDS)
        return False

    def _fork(self) -> bool:
        """Fork, unless a signal has ended this process; return whether. One meanwhile ends both."""
        signals = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            if self._stopped:
                return False
            parent = os.getpid()
            ours, theirs = os.pipe()
            try:
                child = os.fork()
            except OSError:
                os.close(ours)
                os.close(theirs)
                raise
            if child:
                os.close(theirs)
                self._processes.append(_Process(child, ours))
            else:
                for number in signals:
                    signal.signal(number, signal.SIG_IGN)  # this process's parent ends it
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        if child == 0:
            self._serve(parent, theirs)
        return True

    def _stop(self, *_: object) -> None:
        self._stopped = True
        for one in self._processes:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)

    def _serve(self, parent: int, pipe: int) -> NoReturn:
        """Serve one group of ranks, in the forked process."""
        code = 1
        try:
            end_with_parent()
            if os.getppid() == parent:
                # The service knows engines by name only.
                elsewhere = importlib.import_module("galley.engine.parallel.elsewhere")
                settings = self._settings
                place = elsewhere.RankPlace(
                    locate=partial(resolve_model, settings.model, revision=settings.revision),
                    model=settings.model,
                    threads=settings.threads or available_cores(),
                    weight_cache=settings.weight_cache,
                )
                turn = _Turn(self._owner, pipe)
                elsewhere.serve_elsewhere(self._listener, self._access, place, turn)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # threads must not keep the process alive

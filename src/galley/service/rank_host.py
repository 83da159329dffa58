"""The process of ``galley rank``: it listens, and keeps a process that computes for one engine at a time.

That process is forked from this one, serves one group of ranks and ends with it; then, or if it is killed,
there is another one. Engines that connect meanwhile wait in the socket's backlog.
"""

import importlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from galley.formats.source import resolve_model
from galley.links.access import UNENCRYPTED, Access, read_access
from galley.machine import available_cores
from galley.observe import logs
from galley.observe.logs import say
from galley.service.process_limits import end_with_parent
from galley.settings.config import LOOPBACK_HOSTS, Settings
from galley.settings.values import address_text

log = logging.getLogger("galley.rank")

_PAUSE_SECONDS: Final = 1.0
"""Pause after a process that has failed."""


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
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        where = address_text(settings.host, settings.port)
        say(f"galley: cannot listen on {where}: {error.strerror or error}", sys.stderr)
        return 1
    name = settings.model or folder.name
    address = address_text(settings.host, listener.getsockname()[1])
    say(f"a rank of {name} is ready for an engine at {address}")
    with listener:
        return _Supervisor(settings, access, folder, listener).run()


class _Supervisor:
    """Keeps the process that computes."""

    def __init__(
        self, settings: Settings, access: Access, folder: Path, listener: socket.socket
    ) -> None:
        self._settings = settings
        self._access = access
        self._folder = folder
        self._listener = listener
        self._child = 0
        self._stopped = False

    def run(self) -> int:
        """Replace the process until a signal ends this one; return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while self._start():
            _, status = os.waitpid(self._child, 0)
            self._child = 0
            code = os.waitstatus_to_exitcode(status)
            if self._stopped:
                break
            if code:
                log.warning("the process of the rank ended (%d); starting another one", code)
                time.sleep(_PAUSE_SECONDS)
        return 0

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
            self._child = os.fork()
            if self._child == 0:
                for number in signals:
                    signal.signal(number, signal.SIG_IGN)  # this process's parent ends it
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        if self._child == 0:
            self._serve(parent)
        return True

    def _stop(self, *_: object) -> None:
        self._stopped = True
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)

    def _serve(self, parent: int) -> NoReturn:
        """Serve one group of ranks, in the forked process."""
        code = 1
        try:
            end_with_parent()
            if os.getppid() == parent:
                # The service knows engines by name only.
                elsewhere = importlib.import_module("galley.engine.parallel.elsewhere")
                settings = self._settings
                place = elsewhere.RankPlace(
                    folder=self._folder,
                    model=settings.model,
                    threads=settings.threads or available_cores(),
                    weight_cache=settings.weight_cache,
                )
                elsewhere.serve_elsewhere(self._listener, self._access, place)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # threads must not keep the process alive

"""An engine's process, begun: before all else is imported, so this imports next to nothing."""

import itertools
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from galley.config import NATIVE_ENGINE, Settings
from galley.service.core_scheduler import core_scheduler_file

_PLACES: Final = 4
"""Engines of one model that may share the cores: those of a reloaded model that still have requests."""

_WORKER: Final = (sys.executable, "-m", "galley.service.worker")


@dataclass(frozen=True)
class Spawned:
    """A process that imports the engine and waits for its Start frame.

    Attributes:
        child: ends when ``connection`` closes, however that happens.
        connection: this end of the socket pair.
        at: seconds on the monotonic clock.
    """

    child: "subprocess.Popen[bytes]"
    connection: socket.socket
    at: float


class Spawner:
    """Where the engine processes of one server come from."""

    def __init__(self, settings: Settings, *, ahead: bool = False) -> None:
        """``ahead``: begin a process for each model at once."""
        models = settings.each_model()
        shared = len(models) > 1 and settings.take_turns
        self._file = core_scheduler_file(_PLACES * len(models)) if shared else None
        self._engines = {model.served_model_name: model.engine for model in models}
        self._places = {
            name: itertools.cycle(range(i * _PLACES, (i + 1) * _PLACES))
            for i, name in enumerate(self._engines)
        }
        self._ahead = {name: self._begin(name) for name in self._engines if ahead}

    def spawn(self, name: str) -> Spawned:
        """The process that was begun ahead for the model of that name, or a new one."""
        return self._ahead.pop(name, None) or self._begin(name)

    def _begin(self, name: str) -> Spawned:
        place = next(self._places[name])
        return spawn(self._engines[name], name, None if self._file is None else (self._file, place))


def spawn(
    engine: str = NATIVE_ENGINE, model: str = "", place: tuple[int, int] | None = None
) -> Spawned:
    """Fork and exec only: a few milliseconds.

    Args:
        engine: the name of its loader.
        model: for those who look at the list of processes.
        place: file and place of an engine that shares the cores, see :mod:`galley.service.core_scheduler`.
    """
    files = [] if place is None else [place[0]]
    ours, theirs = socket.socketpair()
    at = time.monotonic()
    with theirs:
        child = subprocess.Popen(
            [*_WORKER, str(theirs.fileno()), engine, model, *map(str, place or ())],
            pass_fds=[theirs.fileno(), *files],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            # What the engine may know is in the Start frame; keys are not.
            env={k: v for k, v in os.environ.items() if not k.startswith("GALLEY_API_KEY")},
        )
    return Spawned(child, ours, at)

"""An engine's process, begun: before all else is imported, so this imports next to nothing."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Final

from galley.config import Settings
from galley.service.core_scheduler import core_scheduler_file

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
        names = [model.served_model_name for model in settings.each_model()]
        shared = len(names) > 1 and settings.take_turns
        baton = core_scheduler_file(len(names)) if shared else None
        self._batons = {
            name: None if baton is None else (baton, place) for place, name in enumerate(names)
        }
        self._ahead = {name: spawn(name, self._batons[name]) for name in names if ahead}

    def spawn(self, name: str) -> Spawned:
        """The one that was begun ahead for the model, or a new one."""
        return self._ahead.pop(name, None) or spawn(name, self._batons[name])


def spawn(name: str = "", baton: tuple[int, int] | None = None) -> Spawned:
    """Fork and exec only: a few milliseconds.

    Args:
        name: for those who look at the list of processes.
        baton: file and place of an engine that takes turns, see :mod:`galley.service.core_scheduler`.
    """
    files = [] if baton is None else [baton[0]]
    ours, theirs = socket.socketpair()
    at = time.monotonic()
    with theirs:
        child = subprocess.Popen(
            [*_WORKER, str(theirs.fileno()), name, *map(str, baton or ())],
            pass_fds=[theirs.fileno(), *files],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            # What the engine may know is in the Start frame; keys are not.
            env={k: v for k, v in os.environ.items() if not k.startswith("GALLEY_API_KEY")},
        )
    return Spawned(child, ours, at)

"""An engine's process, begun: before all else is imported, so this imports next to nothing."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass


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

    def __init__(self, *, ahead: Sequence[str] = ()) -> None:
        """``ahead``: names of models whose processes are begun at once."""
        self._ahead = {name: spawn(name) for name in ahead}

    def spawn(self, name: str) -> Spawned:
        """The one that was begun ahead for the model, or a new one."""
        return self._ahead.pop(name, None) or spawn(name)


def spawn(name: str = "") -> Spawned:
    """Fork and exec only: a few milliseconds. ``name`` is for those who look at the process."""
    ours, theirs = socket.socketpair()
    at = time.monotonic()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "galley.service.worker", str(theirs.fileno()), name],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            # What the engine may know is in the Start frame; keys are not.
            env={k: v for k, v in os.environ.items() if not k.startswith("GALLEY_API_KEY")},
        )
    return Spawned(child, ours, at)

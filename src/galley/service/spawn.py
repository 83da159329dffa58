"""The engine's process, begun: before all else is imported, so this imports next to nothing."""

import os
import socket
import subprocess
import sys
import time
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


def spawn() -> Spawned:
    """Fork and exec only: a few milliseconds."""
    ours, theirs = socket.socketpair()
    at = time.monotonic()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "galley.service.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            # What the engine may know is in the Start frame; keys are not.
            env={k: v for k, v in os.environ.items() if not k.startswith("GALLEY_API_KEY")},
        )
    return Spawned(child, ours, at)

"""Starts processes of engines, text workers and decoders.

Engines are started first, so this module imports little.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from galley.observe.logs import FORMAT_VARIABLE
from galley.service.core_scheduler import core_scheduler_file
from galley.settings.config import Settings
from galley.settings.engine_choice import NATIVE_ENGINE

_PLACES: Final = 4
"""Places per model; after a reload, earlier engines share the cores until their requests end."""

_ENGINE: Final = "galley.service.worker"
_TEXT: Final = "galley.service.text_worker"
_DECODER: Final = "galley.speech.decode_worker"


@dataclass(frozen=True)
class Spawned:
    """A started process that imports its modules and waits for its first frame.

    Attributes:
        child: the process; it ends when ``connection`` closes for any reason.
        connection: this end of the socket pair.
        at: the start time in seconds on the monotonic clock.
    """

    child: "subprocess.Popen[bytes]"
    connection: socket.socket
    at: float


class Spawner:
    """Starts the engine processes of one server."""

    def __init__(self, settings: Settings, *, ahead: bool = False) -> None:
        """Create the spawner.

        Args:
            settings: the server's settings.
            ahead: start a process at once for each model that is loaded at the start.
        """
        models = settings.each_model()
        together = settings.most_loaded
        shared = together > 1 and settings.take_turns
        self._file = core_scheduler_file(_PLACES * together) if shared else None
        self._engines = {model.served_model_name: model.engine_name for model in models}
        self._free = list(range(together))
        """Free model numbers; each number stands for :data:`_PLACES` places."""
        self._numbers: dict[str, int] = {}
        self._next = dict.fromkeys(self._engines, 0)
        self._environ = {FORMAT_VARIABLE: settings.log_format}
        at_start = [m.served_model_name for m in models if not m.load_on_request]
        self._ahead = {name: self._begin(name) for name in at_start if ahead}

    def spawn(self, name: str) -> Spawned:
        """Return the process that was started ahead for the model of that name, or start a new one."""
        return self._ahead.pop(name, None) or self._begin(name)

    def release(self, name: str) -> None:
        """Release the places of an unloaded model on the cores, so that another model may use them."""
        if name in self._numbers:
            self._free.append(self._numbers.pop(name))

    def _begin(self, name: str) -> Spawned:
        if name not in self._numbers:
            self._numbers[name] = self._free.pop(0)
        self._next[name] = (self._next[name] + 1) % _PLACES
        place = self._numbers[name] * _PLACES + self._next[name]
        shared = None if self._file is None else (self._file, place)
        return spawn(self._engines[name], name, shared, environ=self._environ)


def spawn(
    engine: str = NATIVE_ENGINE,
    model: str = "",
    place: tuple[int, int] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Spawned:
    """Start an engine process. This only forks and executes, which takes a few milliseconds.

    Args:
        engine: the name of the engine's loader.
        model: the model's name, shown in the list of processes.
        place: file and place of an engine that shares the cores, see :mod:`galley.service.core_scheduler`.
        environ: variables in addition to this process's own.
    """
    files = [] if place is None else [place[0]]
    return _begin(_ENGINE, engine, model, *map(str, place or ()), files=files, environ=environ)


def spawn_text(model: str) -> Spawned:
    """Start a text worker like :func:`spawn`; see :mod:`galley.service.text_worker`."""
    # One job at a time in one thread: the stacks of a thread pool would count as memory.
    # A checkpoint's regular expression can make the Rust library panic; limit this to one log line.
    environ = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    return _begin(_TEXT, model, environ=environ)


def spawn_decoder() -> Spawned:
    """Start a decoder of recordings like :func:`spawn`; see :mod:`galley.speech.decode_worker`."""
    # The decoder forks, and threads do not survive a fork.
    return _begin(_DECODER, kind=socket.SOCK_SEQPACKET, environ={"OPENBLAS_NUM_THREADS": "1"})


def _begin(
    module: str,
    *arguments: str,
    files: Sequence[int] = (),
    kind: socket.SocketKind = socket.SOCK_STREAM,
    environ: Mapping[str, str] | None = None,
) -> Spawned:
    ours, theirs = socket.socketpair(type=kind)
    at = time.monotonic()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno(), *files],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            # The process receives its settings in its first frame; API keys are not among them.
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("GALLEY_API_KEY")},
                **(environ or {}),
            },
        )
    return Spawned(child, ours, at)

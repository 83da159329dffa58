"""Starts processes of engines, text workers and decoders.

Engines are started first, so this module imports little.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from galley.errors import Conflict
from galley.links import owner
from galley.observe.logs import FORMAT_VARIABLE
from galley.service.core_scheduler import core_scheduler_file
from galley.service.shared_tensors import new_shared_tensors
from galley.settings.config import Settings
from galley.settings.engine_choice import NATIVE_ENGINE

_PLACES: Final = 4
"""Places per model; after a reload, earlier engines share the cores until their requests end."""

_ADDED: Final = 64
"""Models that may be loaded from the model repository in addition to those of the start."""

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
        memory: descriptor of the memory that it shares with an engine; None: it shares none.
    """

    child: "subprocess.Popen[bytes]"
    connection: socket.socket
    at: float
    memory: int | None = None


class Spawner:
    """Starts the engine processes of one server."""

    def __init__(self, settings: Settings, *, ahead: bool = False) -> None:
        """Create the spawner.

        Args:
            settings: the server's settings.
            ahead: start a process at once for each model that is loaded at the start.
        """
        models = settings.each_model()
        together = settings.most_loaded + (_ADDED if settings.model_repository else 0)
        shared = together > 1 and settings.take_turns
        self._file = core_scheduler_file(_PLACES * together) if shared else None
        self._free = list(range(together))
        """Free model numbers; each number stands for :data:`_PLACES` places."""
        self._numbers: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._environ = {FORMAT_VARIABLE: settings.log_format, owner.VARIABLE: owner.new_owner()}
        at_start = [m for m in models if m.replicas and not m.load_on_request]
        self._ahead = {m.served_model_name: self._begin(m) for m in at_start if ahead}

    def spawn(self, model: Settings) -> Spawned:
        """Return the process that was started ahead for a model, or start a new one.

        Args:
            model: the model's settings.

        Raises:
            Conflict: as many models are loaded as there are places on the cores for.
        """
        return self._ahead.pop(model.served_model_name, None) or self._begin(model)

    def release(self, name: str) -> None:
        """Release the places of an unloaded model on the cores, so that another model may use them."""
        if name in self._numbers:
            self._free.append(self._numbers.pop(name))

    def _begin(self, model: Settings) -> Spawned:
        name = model.served_model_name
        if name not in self._numbers:
            if not self._free:
                raise Conflict(f"{len(self._numbers)} models are loaded: unload one first")
            self._numbers[name] = self._free.pop(0)
        self._next[name] = (self._next.get(name, 0) + 1) % _PLACES
        place = self._numbers[name] * _PLACES + self._next[name]
        shared = None if self._file is None else (self._file, place)
        return spawn(model.engine_name, name, shared, environ=self._environ)


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
    memory = new_shared_tensors()
    files = [file for file in (memory, place and place[0]) if file is not None]
    shared = "-" if memory is None else str(memory)
    try:
        started = _begin(
            _ENGINE, engine, model, shared, *map(str, place or ()), files=files, environ=environ
        )
    except BaseException:
        if memory is not None:
            os.close(memory)
        raise
    return replace(started, memory=memory)


def spawn_text(model: str) -> Spawned:
    """Start a text worker like :func:`spawn`; see :mod:`galley.service.text_worker`."""
    # One job at a time in one thread: the stacks of a thread pool would count as memory.
    # A checkpoint's regular expression can make the Rust library panic; limit this to one log line.
    environ = {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    return _begin(_TEXT, model, environ=environ)


def spawn_decoder() -> Spawned:
    """Start a decoder of recordings like :func:`spawn`; see :mod:`galley.speech.decode_worker`."""
    # The decoder forks, and threads do not survive a fork.
    return _begin(_DECODER, environ={"OPENBLAS_NUM_THREADS": "1"})


def _begin(
    module: str,
    *arguments: str,
    files: Sequence[int] = (),
    environ: Mapping[str, str] | None = None,
) -> Spawned:
    ours, theirs = socket.socketpair()
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

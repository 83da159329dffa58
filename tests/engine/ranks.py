"""Ranks of a model as threads of this process, with the code that runs in processes elsewhere."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.parallel import factory
from galley.engine.parallel.rank import serve_rank
from galley.settings.engine import EngineSettings


class ThreadRank:
    """Stands in for the process of a rank."""

    def __init__(self, connection: socket.socket, memory: int, meeting: int) -> None:
        self._thread = threading.Thread(target=serve_rank, args=(connection, memory, meeting))
        self._thread.start()

    def wait(self, seconds: float | None = None) -> int:
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return 0


def start_thread(memory: int, meeting: int) -> tuple[socket.socket, Any]:
    ours, theirs = socket.socketpair()
    return ours, ThreadRank(theirs, memory, meeting)


@contextmanager
def divided(settings: EngineSettings, folder: Path) -> Iterator[Engine]:
    """Load an engine whose ranks are threads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "start_rank", start_thread)
        engine = load_engine(settings, folder)
        try:
            yield engine
        finally:
            engine.close()

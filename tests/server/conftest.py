"""Fixtures for tiny models, a server with default settings, and a recorded call."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from galley.speech.audio import Recording
from tests.checkpoints import make_checkpoint
from tests.server.live_client import SILENCE
from tests.server.serving import Server
from tests.speech import tiny
from tests.speech.recordings import CALL

CONTEXT = 16384
ADMIN_KEY = "sk-admin"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a context long enough for requests that take a while."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    return make_checkpoint(folder, max_position_embeddings=CONTEXT)


@pytest.fixture(scope="session")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny speech model."""
    folder = tmp_path_factory.mktemp("models") / "hearing"
    folder.mkdir()
    return tiny.make_whisper(folder)


@pytest.fixture(scope="session")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with default settings and a KV cache small enough to allocate quickly.

    All modules that use it are in the xdist group ``default_server``, so one server serves them all.
    Modules that need other settings define a ``server`` of their own.
    """
    with with_defaults(model, tmp_path_factory.mktemp("server")) as running:
        yield running


def with_defaults(model: Path, folder: Path) -> Server:
    """A server like ``server``, for a module that kills its processes; its log is in ``folder``."""
    log = folder / "log"
    return Server(model, log, kv_cache_tokens=4 * CONTEXT, threads=1, admin_key=ADMIN_KEY)


@pytest.fixture(scope="module")
def call() -> NDArray[np.float32]:
    """Two turns of speech, the start of a third, and silence; at 16 kHz."""
    samples = np.concatenate(list(Recording(CALL)))
    return np.concatenate([samples[: 15 * 16_000], SILENCE])

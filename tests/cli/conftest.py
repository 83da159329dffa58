from pathlib import Path

import pytest

from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama, served under the name ``tiny``."""
    return make_checkpoint(tmp_path_factory.mktemp("models") / "tiny")

"""The model of clusters, with an adapter."""

from pathlib import Path

import pytest

from tests.adapters.peft import make_adapter
from tests.tools.checkpoint import make_calling


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model, in a folder with ``adapter``."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_calling(folder, max_position_embeddings=4096)
    make_adapter(folder.parent / "adapter", folder, size=0.1)
    return folder

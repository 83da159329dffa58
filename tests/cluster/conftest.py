"""The model of clusters, with an adapter, and what their connections need."""

from pathlib import Path

import pytest

from galley.links.access import Access
from tests.adapters.peft import make_adapter
from tests.cluster.authority import Authority
from tests.tools.checkpoint import make_calling


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model, in a folder with ``adapter``."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_calling(folder, max_position_embeddings=4096)
    make_adapter(folder.parent / "adapter", folder, size=0.1)
    return folder


@pytest.fixture(params=["tcp", "tls"])
def access(request: pytest.FixtureRequest, tmp_path: Path) -> Access:
    """A token, without and with certificates."""
    token = tmp_path / "token"
    token.write_bytes(b"a secret of both machines")
    if request.param == "tcp":
        return Access(token.read_bytes(), None, None)
    return Authority(tmp_path, "ours").access(token)

"""``galley quantize``: unsupported options are refused before it reads or generates texts."""

from pathlib import Path
from typing import Any

import pytest

from galley.calibration.to_gguf import prepare, read_dense_model, write
from tests.checkpoints import make_checkpoint
from tests.cli.command import galley
from tests.formats.peer_files import gguf_models

PEERS = Path(gguf_models.__file__).parent


@pytest.fixture(scope="module")
def dense_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    model = read_dense_model(make_checkpoint(folder / "model"))
    write(model, prepare(model, "a model"), folder / "model.gguf")
    return folder / "model.gguf"


@pytest.mark.parametrize("options", [(), ("--method", "rtn"), ("--budget", "1GB")], ids=str)
def test_a_gguf_file_is_refused_before_texts_are_read(
    options: tuple[Any, ...], dense_gguf: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "there-are-none.txt"
    ended = galley("quantize", dense_gguf, tmp_path / "out", "--data", texts, *options)
    assert ended.returncode != 0
    assert "galley quantize needs a folder in Hugging Face's layout" in ended.stderr
    assert texts.name not in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_quantized_checkpoint_is_refused_before_texts_are_read(tmp_path: Path) -> None:
    texts = tmp_path / "there-are-none.txt"
    ended = galley("quantize", PEERS / "gptq-w4a16", tmp_path / "out", "--data", texts)
    assert "quantize the original" in ended.stderr
    assert texts.name not in ended.stderr

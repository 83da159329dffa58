"""Packed weights that change on disk are detected, removed and packed again."""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from galley.engine.loaders import load_engine
from galley.errors import DamagedWeights
from galley.ops import background
from galley.ops.draws import sampling_record
from galley.ops.executor import Executor, execute, forward
from galley.ops.packed_cache import cached_files
from galley.ops.packed_files import packed_folder
from galley.ops.sampling import SamplingBatch
from galley.settings.engine import EngineSettings
from tests.conftest import CheckpointMaker
from tests.native.harness import ragged

PROMPT = [5, 60, 200, 17, 3]


@pytest.fixture
def model(checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate checkpoint and cache folder."""
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "cache"))
    return Path(shutil.copytree(checkpoint("llama-mha-tied"), tmp_path / "model"))


def started(model: Path) -> Executor:
    settings = EngineSettings(model=str(model), weight_dtype="bf16", kv_cache_tokens=256, threads=2)
    executor = load_engine(settings, model)._executor
    background.finish()
    return executor


def logits(executor: Executor) -> npt.NDArray[np.float32]:
    return forward(executor, ragged([(PROMPT, len(PROMPT))], first_block=0)).copy()


def packed_file() -> Path:
    (file,) = cached_files(packed_folder())
    return file.path


@pytest.mark.parametrize("share", [0.0, 0.3, 0.77, 0.999])
def test_a_flipped_bit_is_found_before_the_first_token(model: Path, share: float) -> None:
    expected = logits(started(model))
    path = packed_file()
    data = bytearray(path.read_bytes())
    header = cached_files(path.parent)[0].header
    assert header is not None
    size = sum(entry.size for entry in header.entries)
    data[len(data) - size + int(share * size)] ^= 4
    path.write_bytes(data)
    assert np.array_equal(logits(started(model)), expected)
    assert packed_file().read_bytes() != data
    assert np.array_equal(logits(started(model)), expected)


def test_logits_that_are_not_finite_are_suspicious(model: Path) -> None:
    started(model)
    executor = started(model)
    path = packed_file()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)  # NaN, as bfloat16
    with path.open("r+b") as file:
        file.write(data)
    batch = ragged([(PROMPT, len(PROMPT))], first_block=0)
    sampling = SamplingBatch()
    for row in range(len(PROMPT)):
        greedy = sampling_record(seed=0, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0)
        sampling.draw(row, row, greedy)
    with pytest.raises(DamagedWeights, match="are damaged"):
        execute(executor, batch, sampling)
    assert not path.exists()
    with pytest.raises(DamagedWeights):
        logits(executor)

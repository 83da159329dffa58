"""The ledger equals the memory that the engine then uses, and states how many requests fit."""

import dataclasses
from pathlib import Path

import pytest

from galley.engine.loaders import load_engine
from galley.engine.memory import KVSize
from galley.errors import EngineFailed
from galley.graph.program import KVGroup
from galley.machine import FOLDER_VARIABLE
from galley.ops import background
from galley.ops.packed_cache import cached_files
from galley.settings.engine import EngineSettings, WeightDType
from galley.types import BLOCK_TOKENS
from galley.types.model_info import Ledger
from tests.conftest import CheckpointMaker
from tests.engines import native

SETTINGS = EngineSettings(threads=1, kv_cache_tokens=512)


def loaded(settings: EngineSettings, folder: Path) -> tuple[Ledger, int]:
    """Return the ledger, and the bytes of the KV cache that the engine allocated."""
    ledgers: list[Ledger] = []
    engine = load_engine(settings, folder, on_ledger=ledgers.append)
    [ledger] = ledgers
    assert engine.info.ledger == ledger
    executor = native(engine)._executor
    return ledger, executor.kv_bytes_per_block() * engine.stats.kv_total_blocks


@pytest.mark.parametrize("weight_dtype", ["float32", "bf16", "int8", "int4"])
@pytest.mark.parametrize("variant", ["llama", "llama-mha-tied", "mistral-window", "qwen2-window"])
def test_weights_and_cache_are_what_is_packed_and_allocated(
    checkpoint: CheckpointMaker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    weight_dtype: WeightDType,
) -> None:
    """The packed file on disk is the reference for matrices; everything else is float32."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = checkpoint(variant)
    ledger, kv = loaded(dataclasses.replace(SETTINGS, weight_dtype=weight_dtype), folder)
    background.finish()
    [file] = cached_files(tmp_path / "packed")
    assert file.header is not None
    matrices = sum(entry.size for entry in file.header.entries)
    # The rest is norms and biases, of 48 or 88 numbers each.
    assert matrices < ledger.weights <= matrices + 4 * 48 * 32
    assert ledger.kv == kv
    assert ledger.kv_tokens >= 512
    assert ledger.fits


@pytest.mark.parametrize("share", [0.001, 0.01])
def test_without_a_setting_the_cache_takes_its_share_of_what_is_left(
    checkpoint: CheckpointMaker, share: float
) -> None:
    settings = EngineSettings(threads=1, kv_memory_fraction=share, max_running=512)
    ledger, kv = loaded(settings, checkpoint("llama"))
    assert ledger.kv == kv
    left = ledger.available - ledger.total + ledger.kv
    most = 512 * 512 * ledger.kv_per_token
    assert ledger.kv == pytest.approx(min(most, share * left), rel=0.01)


def test_a_cache_that_does_not_fit_is_refused_with_three_changes(
    checkpoint: CheckpointMaker,
) -> None:
    tokens = 2**40
    with pytest.raises(EngineFailed) as error:
        load_engine(dataclasses.replace(SETTINGS, kv_cache_tokens=tokens), checkpoint("llama"))
    first, *changes = str(error.value).splitlines()
    assert f"{tokens:,} tokens" in first
    assert "needs" in first
    assert "are available" in first
    assert [line.split(".")[0].strip() for line in changes] == ["1", "2", "3"]
    assert "--kv-cache-tokens" in changes[0]
    fitting = int(changes[0].split()[2])
    assert 512 < fitting < tokens


@pytest.mark.parametrize("groups", [(KVGroup((0,)),), (KVGroup((0,)), KVGroup((1,), window=64))])
def test_so_many_requests_fit_and_no_more(groups: tuple[KVGroup, ...]) -> None:
    size = KVSize(
        groups=groups, block_bytes=1, encoder_blocks=2, max_model_len=10_000, blocks=3_000
    )
    rows = size.requests(running_limit=10_000)
    assert [tokens for tokens, _ in rows] == [2048, 8192, 10_000]
    for tokens, count in rows:
        each = 2 + len(groups) * -(-tokens // BLOCK_TOKENS)
        assert count * each <= 3_000 < (count + 1) * each
    assert all(count <= 2 for _, count in size.requests(running_limit=2))
    recurrent = dataclasses.replace(size, state_bytes=8, states=3)
    assert all(count <= 3 for _, count in recurrent.requests(running_limit=10_000))

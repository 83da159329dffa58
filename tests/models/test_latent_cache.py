"""Latent attention's cache: the latent is stored once, and is rounded separately."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.engine.loaders import load_engine
from galley.formats.json_file import read_json
from galley.graph.program import KVLayout
from galley.models.registry import build_program
from galley.plan.sizes import ModelSizes
from galley.settings.engine import EngineSettings, ExecutorName, KVType
from galley.types import BLOCK_TOKENS
from tests.checkpoints import LATENT, make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.models.chunks import run_chunks

SETTINGS = EngineSettings(dtype="float32", kv_cache_tokens=512, threads=1)
SCALES = 8
"""Bytes of a token's two scales, or of two scales and two least values."""


@pytest.mark.parametrize(
    ("executor", "kv_dtype", "element", "scales"),
    [
        ("reference", "float32", 4, 0),
        ("cpu", "float32", 4, 0),
        ("cpu", "bfloat16", 2, 0),
        ("cpu", "int8", 1, SCALES),
        ("cpu", "int4", 0.5, SCALES),
    ],
)
def test_a_token_stores_its_latent_and_its_rotated_keys(
    executor: ExecutorName,
    kv_dtype: KVType,
    element: float,
    scales: int,
    checkpoint: CheckpointMaker,
) -> None:
    """In the plan, in the ledger and in the engine's allocation."""
    folder = checkpoint("deepseek-v2-groups")
    config = read_json(folder / "config.json")
    columns = config["kv_lora_rank"] + config["qk_rope_head_dim"]
    each = int(config["num_hidden_layers"] * (columns * element + scales))
    engine = load_engine(replace(SETTINGS, executor=executor, kv_dtype=kv_dtype), folder)
    ledger = engine.info.ledger
    assert ledger is not None
    assert ledger.kv_per_token == each
    assert ledger.kv == each * BLOCK_TOKENS * engine.stats.kv_total_blocks
    assert engine._executor.kv_bytes_per_block() == each * BLOCK_TOKENS
    planned = ModelSizes.of(build_program(config), "float32", kv_dtype)
    assert planned.kv_per_token == each


@pytest.mark.parametrize("variant", sorted(LATENT))
def test_all_layers_share(variant: str, checkpoint: CheckpointMaker) -> None:
    config = read_json(checkpoint(variant) / "config.json")
    rank = config["kv_lora_rank"]
    layout = KVLayout(1, rank + config["qk_rope_head_dim"], rank, shared=True)
    assert set(build_program(config).kv) == {layout}


def test_integers_round_the_latent_by_itself() -> None:
    """An odd column shares a byte with the next one: two columns of int4 fit in a byte."""
    assert KVLayout(1, 576, 512, shared=True).stretches == (512, 64)
    assert KVLayout(1, 37, 27, shared=True).stretches == (28, 9)
    assert KVLayout(1, 27, 27, shared=True).stretches == (27,)
    assert KVLayout(2, 48, 32).stretches == (48,)


@pytest.mark.parametrize("kv_dtype", ["int8", "int4"])
@pytest.mark.parametrize("rank", [26, 27])
def test_both_executors_round_alike(rank: int, kv_dtype: KVType, tmp_path: Path) -> None:
    """The remaining difference is rounding decided by a sum's last bit, which reroutes a few rows."""
    folder = make_checkpoint(tmp_path, "deepseek-v2", kv_lora_rank=rank)
    ids = random_ids(1, 90)

    def logits(executor: ExecutorName, kv: KVType) -> Any:
        engine = load_engine(replace(SETTINGS, executor=executor, kv_dtype=kv), folder)
        return run_chunks(engine._executor, ids, [50, 40], first_block=3)

    exact, expected = logits("reference", "float32"), logits("reference", kv_dtype)
    off = np.abs(logits("cpu", kv_dtype) - expected).mean()
    assert off <= 2e-3 * np.abs(expected).max()
    assert np.abs(expected - exact).mean() > 2 * off

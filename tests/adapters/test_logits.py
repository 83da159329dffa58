"""Rows with adapters: equal to merged weights in transformers, with the same bits in any batch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from galley.engine.loaders import load_engine
from galley.formats.adapter import read_adapter
from galley.graph.passes import PASSES
from galley.ops.batch import Batch
from galley.ops.executor import Executor, forward
from galley.settings.engine import EngineSettings, ExecutorName, WeightDType
from galley.types import Adapter
from tests.adapters.peft import logits_of, make_adapter, merged
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker
from tests.native.harness import ISAS, Floats, program_of, ragged, rounding_executor

RANK = 24
LENGTHS = (1, 19, 33, 5, 40, 2)
WEARS = (0, 1, -1, 2, 0, 1)
"""The adapter of each sequence."""


@pytest.fixture(scope="module")
def adapters(
    checkpoint: CheckpointMaker, tmp_path_factory: pytest.TempPathFactory
) -> "dict[str, list[Adapter]]":
    """Adapters for each model: all layers, rank-stabilized ones with ranks per layer, and few layers."""
    made = {}
    for variant in ("llama-mqa-odd", "phi3"):
        model, at = checkpoint(variant), tmp_path_factory.mktemp(variant)
        pattern: dict[str, Any] = {
            "rank_pattern": {"o_proj": 3, "layers.0.mlp.down_proj": 24},
            "alpha_pattern": {"down_proj": 5.0},
        }
        made[variant] = [
            make_adapter(at / "all", model, rank=8, dtype=torch.bfloat16),
            make_adapter(at / "stable", model, seed=1, rank=17, use_rslora=True, **pattern),
            make_adapter(
                at / "few", model, seed=2, rank=1, targets={"v_proj", "o_proj", "up_proj"}
            ),
        ]
    return made


def executor_with(
    folder: Path,
    adapters: Sequence[Adapter],
    *,
    executor: ExecutorName = "cpu",
    weight_dtype: WeightDType = "float32",
    without: tuple[str, ...] = (),
) -> Executor:
    settings = EngineSettings(
        executor=executor,
        dtype="float32",
        weight_dtype=weight_dtype,
        kv_dtype="float32",
        disable_pass=without,
        kv_cache_tokens=1024,
        max_adapters=len(adapters),
        adapter_rank=RANK,
        weight_cache=False,
    )
    made = load_engine(settings, folder).executor
    wear(made, folder, adapters)
    return made


def wear(executor: Executor, folder: Path, adapters: Sequence[Adapter]) -> None:
    for slot, adapter in enumerate(adapters):
        weights = read_adapter(Path(adapter.path), program_of(folder).shapes, RANK)
        executor.set_adapter(slot, executor.pack_adapter(weights))


def batch_of(texts: Sequence[list[int]], wears: Sequence[int], executor: Executor) -> Batch:
    batch = ragged([(ids, len(ids)) for ids in texts], first_block=1, groups=executor.kv_groups)
    return msgspec.structs.replace(batch, adapters=np.array(wears, dtype=np.int64))


def texts() -> list[list[int]]:
    return [random_ids(n, n) for n in LENGTHS]


@pytest.mark.parametrize("executor", ["reference", "cpu"])
@pytest.mark.parametrize("variant", ["llama-mqa-odd", "phi3"])
def test_logits_are_those_of_merged_weights(
    variant: str,
    executor: ExecutorName,
    checkpoint: CheckpointMaker,
    adapters: dict[str, list[Adapter]],
) -> None:
    folder, mine = checkpoint(variant), adapters[variant]
    running = executor_with(folder, mine, executor=executor)
    models = [merged(folder, adapter) for adapter in (*mine, None)]
    expected = np.concatenate(
        [logits_of(models[w], ids) for w, ids in zip(WEARS, texts(), strict=True)]
    )
    got = forward(running, batch_of(texts(), WEARS, running))
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    alone = np.concatenate([logits_of(models[-1], ids) for ids in texts()])
    assert np.abs(alone - expected).max() > 0.05 * np.abs(expected).max()


ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
ADAPTED = {
    "qwen3-moe": ATTENTION,
    "gpt-oss": ATTENTION,
    "deepseek-v3": {"q_a_proj", "q_b_proj", "o_proj"},
    "granite-hybrid": ATTENTION,
    "qwen3-next": ATTENTION,
}
"""Families with experts, latent attention and states -> their linear layers that have factors."""


@pytest.mark.parametrize("variant", ADAPTED)
def test_models_of_other_forms_are_adapted_too(
    variant: str, checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = checkpoint(variant)
    targets = ADAPTED[variant]
    mine = [make_adapter(tmp_path / str(i), folder, seed=i, targets=targets) for i in range(3)]
    running = executor_with(folder, mine)
    models = [merged(folder, adapter) for adapter in (*mine, None)]
    for ids, wears in zip(texts(), WEARS, strict=True):
        got = forward(running, batch_of([ids], [wears], running))
        expected = logits_of(models[wears], ids)
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
        if wears >= 0:
            plain = logits_of(models[-1], ids)
            assert np.abs(plain - expected).max() > 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("kind", "activations"), [("int8", "int8"), ("int4", "int8"), ("f16", "float32")]
)
def test_adapters_are_added_to_rounded_models(
    kind: WeightDType, activations: str, checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """torch computes the reference: weights and inputs rounded, the adapter's inputs not rounded."""
    folder = checkpoint("llama")
    dtype = torch.float16 if kind == "f16" else torch.bfloat16
    mine = [make_adapter(tmp_path / str(i), folder, seed=i, dtype=dtype) for i in range(3)]
    running = executor_with(folder, mine, weight_dtype=kind)
    truth = rounding_executor(folder, kind, activations=activations, adapters=3)
    wear(truth, folder, mine)
    batch = batch_of(texts(), WEARS, running)
    got, expected = forward(running, batch), forward(truth, batch)
    assert np.abs(got - expected).max() <= 2e-2 * np.abs(expected).max()
    plain = forward(truth, msgspec.structs.replace(batch, adapters=None))
    assert np.abs(plain - expected).max() > 0.1 * np.abs(expected).max()


def bits(logits: Floats) -> Any:
    return logits.copy().view(np.int32)


@pytest.mark.parametrize("isa", [ISAS[0], "portable"])
@pytest.mark.parametrize("kind", ["float32", "bf16", "int8"])
def test_a_row_has_the_same_bits_alone_in_any_batch_and_without_passes(
    kind: WeightDType,
    isa: str,
    checkpoint: CheckpointMaker,
    adapters: dict[str, list[Adapter]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GALLEY_CPU_ISA", isa)
    folder, mine = checkpoint("llama-mqa-odd"), adapters["llama-mqa-odd"]
    running = executor_with(folder, mine, weight_dtype=kind)
    whole = batch_of(texts(), WEARS, running)
    together = bits(forward(running, whole))
    starts = np.asarray(whole.starts)
    for s, (ids, adapter) in enumerate(zip(texts(), WEARS, strict=True)):
        alone = bits(forward(running, batch_of([ids], [adapter], running)))
        assert np.array_equal(alone, together[starts[s] : starts[s + 1]]), s
        first, rest = len(ids) // 3, len(ids) - len(ids) // 3
        if first:  # in two steps, together with another request
            forward(running, batch_of([ids[:first]], [adapter], running))
            step = ragged([(ids, rest)], first_block=1, groups=running.kv_groups)
            step = msgspec.structs.replace(step, adapters=np.array([adapter]))
            assert np.array_equal(bits(forward(running, step)), alone[first:])
    wanted = starts[1:] - 1
    few = msgspec.structs.replace(whole, wanted=wanted)
    assert np.array_equal(bits(forward(running, few)), together[wanted])
    for without in (("merge-linears",), ("hoist-select-rows",), tuple(PASSES)):
        plain = executor_with(folder, mine, weight_dtype=kind, without=without)
        assert np.array_equal(bits(forward(plain, few)), together[wanted]), without


def test_slots_that_are_empty_or_given_up_add_nothing(
    checkpoint: CheckpointMaker, adapters: dict[str, list[Adapter]]
) -> None:
    folder, mine = checkpoint("llama-mqa-odd"), adapters["llama-mqa-odd"]
    for executor in ("reference", "cpu"):
        running = executor_with(folder, mine, executor=executor)
        ids = [texts()[1]]
        plain = bits(forward(running, batch_of(ids, [-1], running)))
        worn = bits(forward(running, batch_of(ids, [1], running)))
        assert not np.array_equal(worn, plain)
        running.set_adapter(1, None)
        assert np.array_equal(bits(forward(running, batch_of(ids, [1], running))), plain)
    with pytest.raises(ValueError, match="slot is empty"):
        forward(running, batch_of(ids, [3], running))

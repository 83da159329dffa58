"""int4 keys and values: both executors, independence of rows, and keys with far wider columns."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from galley import LLM
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.errors import SettingsError
from galley.ops.cpu import CpuExecutor
from galley.ops.cpu_plan import kv_bytes_per_block
from galley.ops.executor import Executor
from galley.ops.isa import ISA_VARIABLE
from galley.ops.key_factors import LEAST, key_factors
from galley.ops.reference import ReferenceExecutor
from galley.ops.reference_kv import KVRounding, round_int4
from galley.quality.texts import Window
from galley.settings.engine import EngineSettings, ExecutorName
from tests.checkpoints import make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.engine.drafts import eager
from tests.engine.requests import request, run, seen
from tests.models.chunks import run_chunks
from tests.native.harness import ISAS, program_of

EXACT = EngineSettings(dtype="float32", kv_cache_tokens=2048, threads=1)
INT4 = replace(EXACT, kv_dtype="int4")
KINDS = ("llama-mqa-odd", "llama-head-dim-bias", "llama-mha-tied", "qwen3", "gemma3", "deepseek-v2")
"""Odd heads, biases, norms of keys, windows mixed with whole contexts, latents."""


def executor_of(
    folder: Path, settings: EngineSettings, executor: ExecutorName = "reference"
) -> Executor:
    return load_engine(replace(settings, executor=executor), folder)._executor


def logits_of(executor: Executor, ids: Window | list[int]) -> Any:
    return run_chunks(executor, list(ids), [len(ids)], first_block=3)


def with_wide_keys(folder: Path, pairs: int, times: float) -> Path:
    """Write ``make_checkpoint``'s llama with some key columns scaled up and query columns scaled down."""
    make_checkpoint(folder, "llama", head_dim=32)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        by = times if "k_proj" in name else 1 / times if "q_proj" in name else None
        if by is not None:
            tensor.view(-1, 2, 16, tensor.shape[-1])[:, :, :pairs] *= by
    save_file(tensors, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("variant", KINDS)
def test_both_executors_round_alike(variant: str, checkpoint: CheckpointMaker) -> None:
    """The remaining difference is rounding decided by a sum's last bit: one of sixteen steps is far."""
    folder, ids = checkpoint(variant), random_ids(1, 90)
    expected = logits_of(executor_of(folder, INT4), ids)
    got = logits_of(executor_of(folder, INT4, "cpu"), ids)
    exact = logits_of(executor_of(folder, EXACT), ids)
    size = np.abs(expected).max()
    assert np.abs(got - expected).mean() <= 2e-3 * size
    assert np.abs(got - exact).mean() > 2 * np.abs(got - expected).mean()


@pytest.mark.parametrize("isa", ISAS)
def test_wide_columns_of_keys_take_no_steps_from_the_others(
    isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    folder, ids = with_wide_keys(tmp_path, 3, 32.0), random_ids(5, 150)
    exact = logits_of(executor_of(folder, EXACT), ids)

    def loss(executor: Executor) -> float:
        return float(np.abs(logits_of(executor, ids) - exact).mean())

    plain = executor_of(folder, INT4)
    assert isinstance(plain, ReferenceExecutor)
    plain._kv_rounding = KVRounding(round_int4)
    assert loss(executor_of(folder, INT4, "cpu")) < 0.4 * loss(plain)


@pytest.mark.parametrize("variant", [*KINDS, "llama4", "whisper"])
def test_factors_are_powers_of_two_of_the_keys_sizes(
    variant: str, checkpoint: CheckpointMaker
) -> None:
    folder = checkpoint(variant)
    program = program_of(folder)
    factors = key_factors(program, read_model(EngineSettings(), folder).weights)
    assert len(factors) == len(program.kv)
    for kv, own in zip(program.kv, factors, strict=True):
        assert own.shape == (kv.kv_heads, kv.key_dim)
        mantissas, _ = np.frexp(own)
        assert (mantissas == 0.5).all()
        assert LEAST <= own.min() <= own.max() == 1.0


def test_factors_follow_the_columns(tmp_path: Path) -> None:
    folder = with_wide_keys(tmp_path, 3, 32.0)
    factors = key_factors(program_of(folder), read_model(EngineSettings(), folder).weights)
    for own in factors:
        halves = own.reshape(-1, 2, 16)
        assert (halves[:, :, :3] >= 8 * halves[:, :, 3:].max()).all()
        assert np.array_equal(halves[:, 0], halves[:, 1])  # a pair turns into each other


def test_the_ledger_has_what_is_allocated(checkpoint: CheckpointMaker) -> None:
    for variant in ("llama-mqa-odd", "gemma3"):
        folder = checkpoint(variant)
        engine = load_engine(replace(INT4, executor="cpu"), folder)
        assert isinstance(engine._executor, CpuExecutor)
        block = engine._executor.kv_bytes_per_block()
        assert block == kv_bytes_per_block(program_of(folder), "int4")
        ledger = engine.info.ledger
        assert ledger is not None
        assert ledger.kv_dtype == engine.info.require_program().kv_dtype == "int4"
        assert ledger.kv == block * engine.stats.kv_total_blocks


def test_draft_tokens_change_no_bit(checkpoint: CheckpointMaker) -> None:
    """Rejected draft tokens leave their keys behind, which the next step overwrites."""
    folder, prompt = checkpoint("llama"), random_ids(9, 40) * 3
    settings = replace(INT4, executor="cpu", speculation="off")
    wish = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True, "logprobs": 2}

    def texts(engine: Engine) -> Any:
        made = [request(i, ids, wish, engine) for i, ids in enumerate((prompt, prompt[5:90]))]
        return seen(run(engine, made))

    speculation = eager(load_engine(settings, folder), "prompt")
    assert texts(speculation) == texts(load_engine(settings, folder))
    assert speculation.stats.prompt_proposed_tokens > 0


def test_other_types_are_refused_and_named(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    with pytest.raises(SettingsError, match=r"int3.*int8.*int4"):
        LLM(folder, kv_dtype="int3")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"kv_dtype is 'bfloat16'.*'float32'.*int8 or int4"):
        LLM(folder, executor="reference", dtype="float32", kv_dtype="bfloat16")

"""FP8 and MXFP4 checkpoints on the GPU executor: matrices stay as they are, and have the file's values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ops.triton.device import DEVICE, ERRORS, TYPES, device, error

import torch
from safetensors.torch import load_file, save_file

from galley.engine.loaders import load_engine
from galley.engine.read_model import read_model
from galley.formats.values import dequantize
from galley.formats.weights import Fp8Weight, Mxfp4Weight, WeightKind
from galley.ops.executor import Executor, ExecutorMemory
from galley.ops.triton.executor import TritonExecutor
from galley.ops.triton.packing import pack
from galley.settings.engine import EngineSettings
from tests.checkpoints import make_checkpoint, random_ids
from tests.formats.packed_files import write_fp8
from tests.models.chunks import run_chunks
from tests.models.mxfp4 import published

SHAPE: dict[str, Any] = {
    "hidden_size": 204,
    "intermediate_size": 264,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def settings(folder: Path, executor: str, **changes: Any) -> EngineSettings:
    chosen = {"dtype": "float32", "kv_cache_tokens": 4096, "threads": 1, "speculation": "off"}
    chosen |= {"executor": executor, "device": DEVICE if executor == "gpu" else "cpu"}
    return EngineSettings(model=str(folder), **{**chosen, **changes})


def executor_of(folder: Path, executor: str, **changes: Any) -> Executor:
    return load_engine(settings(folder, executor, **changes), folder).executor


def memory_of(folder: Path, **changes: Any) -> ExecutorMemory:
    model = read_model(settings(folder, "gpu", **changes), folder, "gpu")
    return TritonExecutor.memory(model.program, model.weights, model.options)


@pytest.mark.parametrize(
    ("block", "kept"),
    [((128, 128), "fp8 (group 128, F32 scales)"), (None, "fp8 (whole rows, F32 scales)")],
)
def test_a_checkpoint_stays_fp8(block: tuple[int, int] | None, kept: str, tmp_path: Path) -> None:
    plain, folder = make_checkpoint(tmp_path / "plain", "llama", **SHAPE), tmp_path / "made"
    write_fp8(plain, folder, block)
    memory, floats = memory_of(folder), memory_of(folder, weight_dtype="float32")
    assert kept in memory.kinds
    assert memory.weights < 0.5 * floats.weights
    ids = random_ids(1, 20)
    wanted = run_chunks(executor_of(folder, "reference"), ids, [20], first_block=2)
    got = run_chunks(executor_of(folder, "gpu"), ids, [20], first_block=2)
    assert np.linalg.norm(got - wanted) <= 1e-5 * np.linalg.norm(wanted)


def test_other_executors_and_types_read_floats(tmp_path: Path) -> None:
    plain, folder = make_checkpoint(tmp_path / "plain", "llama", **SHAPE), tmp_path / "made"
    write_fp8(plain, folder, (128, 128))
    name = "model.layers.0.mlp.up_proj.weight"

    def kind(executor: str, **changes: Any) -> str:
        model = read_model(settings(folder, executor, **changes), folder, executor)
        return str(model.weights.info(name).kind)

    assert kind("gpu") == "fp8 (group 128, F32 scales)"
    assert kind("gpu", weight_dtype="int8") == kind("cpu") == kind("reference") == "float32"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("group", [32, 128, 24, 300])
def test_products_are_those_of_the_stored_values(group: int, dtype: torch.dtype) -> None:
    """Groups of 24 columns share no tile, so that matrix is kept as floats."""
    random = np.random.default_rng(group)
    codes = random.integers(0, 256, (70, 290)).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    scales = (random.random((70, -(-290 // group))) / 100).astype(np.float32)
    weight = Fp8Weight("w", codes, min(group, 290), scales)
    made = pack([weight], WeightKind("float32"), dtype, torch.device(DEVICE))
    assert made.kind == ("dense" if group == 24 else "fp8")
    x = torch.randn(19, 290, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = torch.full((19, 70), torch.nan, dtype=dtype, device=DEVICE)
    made.multiply(device(), x.to(DEVICE), out)
    # The values have the activations' type, as those of the reference executor.
    values = torch.from_numpy(dequantize(weight)).to(dtype).double()
    assert error(out.cpu(), x.double() @ values.T) <= {torch.float32: 1e-5}.get(dtype, 2e-2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("depth", [290, 24])
def test_products_of_mxfp4_are_those_of_the_stored_values(depth: int, dtype: torch.dtype) -> None:
    """All codes and scales over many powers of two; the last group of 290 columns is shorter."""
    random = np.random.default_rng(depth)
    codes = random.integers(0, 16, (70, depth)).astype(np.uint8)
    scales = np.exp2(random.integers(-9, 3, (70, -(-depth // 32)))).astype(np.float32)
    weight = Mxfp4Weight("w", codes, min(32, depth), scales)
    made = pack([weight], WeightKind("float32"), dtype, torch.device(DEVICE))
    assert made.kind == "mxfp4"
    x = torch.randn(19, depth, generator=torch.Generator().manual_seed(0)).to(dtype)
    out = torch.full((19, 70), torch.nan, dtype=dtype, device=DEVICE)
    made.multiply(device(), x.to(DEVICE), out)
    values = torch.from_numpy(dequantize(weight)).double()
    assert error(out.cpu(), x.double() @ values.T) <= ERRORS[dtype]
    rows = torch.full((3, depth), torch.nan, dtype=dtype, device=DEVICE)
    made.gather(device(), torch.tensor([5, 0, 69], device=DEVICE, dtype=torch.int32), rows)
    assert torch.equal(rows.cpu().double(), values[[5, 0, 69]])


def test_experts_in_mxfp4_stay_so(tmp_path: Path) -> None:
    """gpt-oss as published; transformers' own conversion gives the values of the dense checkpoint."""
    dense = published(tmp_path / "blocks")
    plain = make_checkpoint(tmp_path / "plain", "gpt-oss", hidden_size=64, intermediate_size=32)
    tensors = load_file(plain / "model.safetensors") | dense
    save_file({k: v.contiguous() for k, v in tensors.items()}, plain / "model.safetensors")
    assert "mxfp4 (group 32, BF16 scales)" in memory_of(tmp_path / "blocks").kinds
    ids = random_ids(1, 20)
    wanted, got = (
        run_chunks(executor_of(folder, "gpu", activations="float32"), ids, [20], first_block=2)
        for folder in (plain, tmp_path / "blocks")
    )
    assert np.linalg.norm(got - wanted) <= 1e-5 * np.linalg.norm(wanted)

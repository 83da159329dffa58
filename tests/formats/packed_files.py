"""GPTQ, AWQ, FP8 and MXFP4 checkpoints, packed in numpy as their tools do, and their values.

Each writer takes the folder of a plain checkpoint and a target, and returns tensor name -> float32
values.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

Floats = Any
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def packed(values: Any, bits: int) -> Any:
    """Pack [n, columns] of integers below ``2 ** bits`` into int32 [n * bits / 32, columns] as a stream."""
    stream = (values[:, None, :] >> np.arange(bits)[None, :, None]) & 1
    stream = stream.reshape(-1, values.shape[1]).astype(np.uint64)
    words = stream.reshape(-1, 32, values.shape[1]) << np.arange(32, dtype=np.uint64)[None, :, None]
    return words.sum(1).astype(np.uint32).view(np.int32)


def rewrite(
    plain: Path, folder: Path, config: dict[str, Any], change: Callable[[str, Any], dict[str, Any]]
) -> None:
    """Copy a checkpoint with ``change``'s tensors in place of each linear layer's weight."""
    shutil.copytree(plain, folder)
    tensors = load_file(folder / "model.safetensors")
    made: dict[str, Any] = {}
    for name, values in tensors.items():
        if name.endswith("_proj.weight"):
            made |= change(name.removesuffix(".weight"), values.astype(np.float32))
        else:
            made[name] = values
    save_file(
        {k: v if isinstance(v, torch.Tensor) else torch.tensor(v) for k, v in made.items()},
        folder / "model.safetensors",
    )
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {"quantization_config": config}))


def integers(values: Floats, bits: int, group: int, *, symmetric: bool) -> tuple[Any, Any, Any]:
    """Quantize [outputs, inputs]: q, scales and zero points [outputs, groups], by minimum and maximum."""
    outputs, inputs = values.shape
    grouped = values.reshape(outputs, -1, group)
    most = 2**bits - 1
    if symmetric:
        scales = np.abs(grouped).max(2) / (2 ** (bits - 1) - 0.5)
        zeros = np.full(scales.shape, 2 ** (bits - 1))
    else:
        low, high = grouped.min(2), grouped.max(2)
        scales = (high - low) / most
        zeros = np.clip(np.round(-low / scales), 1, most).astype(int)
    scales = scales.astype(np.float16)
    q = np.round(grouped / scales.astype(np.float32)[..., None]) + zeros[..., None]
    return np.clip(q, 0, most).astype(np.int64).reshape(outputs, inputs), scales, zeros


def meant(q: Any, scales: Any, zeros: Any, groups: Any) -> Floats:
    """Return the float32 values, where ``groups`` names each column's group."""
    return (q - zeros[:, groups]).astype(np.float32) * scales.astype(np.float32)[:, groups]


def write_gptq(
    plain: Path,
    folder: Path,
    bits: int,
    group: int,
    *,
    version: str = "gptq",
    symmetric: bool = False,
    act_order: bool = False,
) -> dict[str, Floats]:
    """Pack as GPTQModel's QuantLinear.pack does; ``group`` -1 is all columns."""
    truth: dict[str, Floats] = {}
    rng = np.random.default_rng(0)

    def change(name: str, values: Floats) -> dict[str, Any]:
        inputs = values.shape[1]
        size = inputs if group < 0 else group
        order = rng.permutation(inputs) if act_order else np.arange(inputs)
        groups = np.empty(inputs, dtype=np.int32)
        groups[order] = np.arange(inputs) // size
        q, scales, zeros = integers(values[:, order], bits, size, symmetric=symmetric)
        q = q[:, np.argsort(order)]
        truth[f"{name}.weight"] = meant(q, scales, zeros, groups)
        kept = zeros - (version == "gptq")
        return {
            f"{name}.qweight": packed(q.T, bits),
            f"{name}.qzeros": np.ascontiguousarray(packed(kept, bits).T),
            f"{name}.scales": np.ascontiguousarray(scales.T),
            f"{name}.g_idx": groups,
        }

    config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group,
        "desc_act": act_order,
        "sym": symmetric,
        "checkpoint_format": version,
    }
    rewrite(plain, folder, config, change)
    return truth


def write_awq(plain: Path, folder: Path, group: int) -> dict[str, Floats]:
    """Pack as AutoAWQ's WQLinear_GEMM.from_linear does."""
    truth: dict[str, Floats] = {}

    def words(values: Any) -> Any:
        """Pack [rows, outputs] into int32 [rows, outputs / 8]."""
        eight = values.reshape(len(values), -1, 8)[:, :, AWQ_ORDER].astype(np.uint64)
        shifted = eight << (4 * np.arange(8, dtype=np.uint64))
        return shifted.sum(2).astype(np.uint32).view(np.int32)

    def change(name: str, values: Floats) -> dict[str, Any]:
        size = values.shape[1] if group < 0 else group
        q, scales, zeros = integers(values, 4, size, symmetric=False)
        groups = np.arange(values.shape[1]) // size
        truth[f"{name}.weight"] = meant(q, scales, zeros, groups)
        return {
            f"{name}.qweight": words(np.ascontiguousarray(q.T)),
            f"{name}.qzeros": words(np.ascontiguousarray(zeros.T)),
            f"{name}.scales": np.ascontiguousarray(scales.T),
        }

    config = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
    rewrite(plain, folder, config, change)
    return truth


def write_fp8(plain: Path, folder: Path, block: tuple[int, int] | None) -> dict[str, Floats]:
    """Write DeepSeek's blocks, or one scale per tensor; torch rounds to E4M3."""
    truth: dict[str, Floats] = {}

    def change(name: str, values: Floats) -> dict[str, Any]:
        rows, columns = block or values.shape
        outputs, inputs = values.shape
        padded = np.pad(values, ((0, -outputs % rows), (0, -inputs % columns)))
        tiles = padded.reshape(len(padded) // rows, rows, -1, columns)
        scales = np.abs(tiles).max((1, 3)) / np.float32(448)
        spread = scales.repeat(rows, 0).repeat(columns, 1)[:outputs, :inputs]
        made = torch.tensor(values / spread).to(torch.float8_e4m3fn)
        truth[f"{name}.weight"] = made.float().numpy() * spread
        if block is None:
            return {f"{name}.weight": made, f"{name}.weight_scale": scales.reshape(1)}
        return {f"{name}.weight": made, f"{name}.weight_scale_inv": scales.astype(np.float32)}

    config: dict[str, Any] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    if block is not None:
        config["weight_block_size"] = list(block)
    rewrite(plain, folder, config, change)
    return truth


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)


def write_mxfp4(plain: Path, folder: Path) -> dict[str, Floats]:
    """Write gpt-oss' layout, for matrices whose columns are a multiple of 32."""
    truth: dict[str, Floats] = {}

    def change(name: str, values: Floats) -> dict[str, Any]:
        outputs, inputs = values.shape
        grouped = values.reshape(outputs, -1, 32)
        exponents = np.floor(np.log2(np.abs(grouped).max(2) / 6)).astype(int) + 1
        scaled = grouped / np.exp2(exponents)[..., None]
        codes = np.abs(np.abs(scaled)[..., None] - E2M1).argmin(-1)
        codes = codes + 8 * (scaled < 0)
        signed = E2M1[codes & 7] * np.where(codes & 8, -1, 1)
        truth[f"{name}.weight"] = (signed * np.exp2(exponents)[..., None]).reshape(outputs, inputs)
        low, high = codes[..., ::2], codes[..., 1::2]
        return {
            f"{name}.weight_blocks": (low | high << 4).astype(np.uint8),
            f"{name}.weight_scales": (exponents + 127).astype(np.uint8),
        }

    rewrite(plain, folder, {"quant_method": "mxfp4"}, change)
    return truth

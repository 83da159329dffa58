"""Checkpoints that compressed-tensors itself quantizes and writes, and its own reading of them."""

from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.compressors.base import decompress_module
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import AutoModelForCausalLM

from tests.checkpoints import make_checkpoint, make_tokenizer

Floats = Any


def args(bits: int = 4, **fields: Any) -> dict[str, Any]:
    """Return the scheme of weights; ``group`` abbreviates the strategy and its size."""
    group = fields.pop("group", 0)
    named = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return {"num_bits": bits, "type": "int", "symmetric": True, **named, **fields}


INPUTS = {
    "dynamic": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    "static": {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False},
}


def groups_of(*weights: dict[str, Any], targets: tuple[str, ...] = ("Linear",), **rest: Any) -> Any:
    """Return ``config_groups``: one for each of ``weights``, with its target."""
    return {
        f"group_{i}": {"targets": [target], "weights": one, **rest}
        for i, (one, target) in enumerate(zip(weights, targets, strict=True))
    }


def write_compressed(
    folder: Path,
    config_groups: dict[str, Any],
    *,
    variant: str = "llama",
    dtype: torch.dtype = torch.float32,
    ignore: tuple[str, ...] = ("lm_head",),
    kv_cache_scheme: dict[str, Any] | None = None,
    **shape: Any,
) -> Floats:
    """Quantize a random model by its minimum and maximum values and save it.

    Returns:
        tensor name -> the float32 values that the library reads from the file.
    """
    plain = make_checkpoint(folder / "plain", variant, **shape)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=dtype)
    config = QuantizationConfig(
        config_groups=config_groups, ignore=list(ignore), kv_cache_scheme=kv_cache_scheme
    )
    apply_quantization_config(model, config)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and getattr(module, "weight", None) is not None:
            _calibrate(module, scheme.weights)
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith(("input_", "k_", "v_", "q_")) and name.endswith("scale"):
                parameter.data.fill_(0.05)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder / "made")
    compressor.update_config(folder / "made")
    make_tokenizer(folder / "made")
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None and hasattr(module, "weight"):
            decompress_module(module)
    return {name: value.detach().float() for name, value in model.state_dict().items()}


def _calibrate(module: Any, weights: Any) -> None:
    values = module.weight.detach().float()
    rows, columns = values.shape
    if weights.strategy == "tensor":
        low, high = values.min().reshape(1), values.max().reshape(1)
    elif weights.strategy == "block":
        a, b = weights.block_structure
        padded = torch.nn.functional.pad(values, (0, -columns % b, 0, -rows % a))
        tiles = padded.reshape(padded.shape[0] // a, a, padded.shape[1] // b, b)
        low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
    else:
        size = weights.group_size if weights.strategy == "group" else columns
        grouped = values.reshape(rows, -1, size)
        low, high = grouped.amin(2), grouped.amax(2)
    scale, zero = calculate_qparams(low, high, weights)
    module.weight_scale.data = scale.to(module.weight_scale.dtype)
    if getattr(module, "weight_zero_point", None) is not None:
        module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)

"""gpt-oss checkpoints as published: experts in MXFP4, stacked, outputs before inputs."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.checkpoints import make_checkpoint


def published(folder: Path) -> dict[str, torch.Tensor]:
    """Write a checkpoint whose experts are blocks and scales; return their dense values."""
    make_checkpoint(folder, "gpt-oss", hidden_size=64, intermediate_size=32)
    tensors = load_file(folder / "model.safetensors")
    dense = {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, depth, outputs = tensors.pop(name).shape
        shape = (experts, outputs, depth // 32)
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape, generator=generator, dtype=torch.uint8)
        dense[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (folder / "config.json").write_text(json.dumps(config))
    return dense

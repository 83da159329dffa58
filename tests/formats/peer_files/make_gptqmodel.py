"""Makes checkpoints of this folder: a tiny random Llama, quantized by GPTQModel in several ways.

    pip install gptqmodel==7.7.0 torch==2.14.1 transformers==5.24.0
    GPTQMODEL_CPU_WORKERS=2 python -m tests.formats.peer_files.make_gptqmodel FOLDER

The tool is not installed with the tests. Kept are its output, and the values that it multiplies with.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig

from tests.formats.peer_files.base import GROUP, random_texts, write_base

KINDS: dict[str, dict[str, Any]] = {
    "gptqmodel-v1": {"sym": True, "desc_act": False},
    "gptqmodel-v1-order": {"sym": False, "desc_act": True},
    "gptqmodel-v2": {"sym": False, "desc_act": False, "format": "gptq_v2"},
}
"""Name of a checkpoint -> its quantization; version 1 of the format stores zero points minus one."""


def texts() -> list[dict[str, list[int]]]:
    """Return the texts in the tool's format."""
    return [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in random_texts()]


def write_values(folder: Path) -> None:
    """Save the matrices as the tool multiplies with them, [outputs, inputs], next to the checkpoint."""
    loaded = GPTQModel.load(str(folder), device="cpu", backend=BACKEND.TORCH, dtype=torch.float16)
    values = {
        f"{name}.weight": module.dequantize_weight().T.numpy()
        for name, module in loaded.model.named_modules()
        if hasattr(module, "dequantize_weight")
    }
    np.savez_compressed(folder / "values.npz", allow_pickle=False, **values)


def main() -> None:
    """Write all of them into a folder."""
    folder = Path(sys.argv[1])
    write_base(folder / "base")
    for name, kind in KINDS.items():
        quantized = QuantizeConfig(bits=4, group_size=GROUP, offload_to_disk=False, **kind)
        model = GPTQModel.load(str(folder / "base"), quantized, device="cpu")
        model.quantize(texts(), batch_size=1)
        model.save(str(folder / name))
        write_values(folder / name)


if __name__ == "__main__":
    main()

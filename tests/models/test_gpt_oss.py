"""gpt-oss as published: experts in MXFP4, stacked, outputs before inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from galley.errors import UnsupportedModel
from tests.checkpoints import make_checkpoint, random_ids
from tests.models.chunks import executor_of, run_chunks
from tests.models.mxfp4 import published


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_blocks_are_the_experts_that_transformers_makes_of_them(
    executor: Any, tmp_path: Path
) -> None:
    dense = published(tmp_path / "blocks")
    plain = make_checkpoint(tmp_path / "plain", "gpt-oss", hidden_size=64, intermediate_size=32)
    tensors = load_file(plain / "model.safetensors") | dense
    save_file({k: v.contiguous() for k, v in tensors.items()}, plain / "model.safetensors")
    model = AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    ids = random_ids(1, 90)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    for folder in (plain, tmp_path / "blocks"):
        got = run_chunks(executor_of(folder, executor=executor), ids, [60, 30], first_block=0)
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_stacked_experts_that_are_no_stack_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "gpt-oss")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj"
    tensors[name] = tensors[name][0].contiguous()
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.mlp\.experts\.down_proj has shape"):
        executor_of(folder)

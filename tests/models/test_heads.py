"""Checkpoints that claim a tied head but contain one: a head that differs is kept."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from galley.calibration.to_gguf import prepare, read_dense_model, write
from galley.formats.reader import open_checkpoint
from galley.models.registry import build_program
from tests.checkpoints import make_checkpoint, random_ids
from tests.formats.compressed_files import INPUTS, args, groups_of, write_compressed
from tests.formats.values import Floats, galleys_logits, relative

IDS = random_ids(2, 30)
TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def says_tied(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    return folder


def with_head(folder: Path, make: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """Add a head computed from the embedding to the checkpoint."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    head = make(tensors[TABLE].clone()).contiguous()
    save_file({**tensors, HEAD: head}, path, metadata={"format": "pt"})
    return folder


def changed_at_the_end(table: torch.Tensor) -> torch.Tensor:
    table[-1, -1] += 1
    return table


def truth(folder: Path) -> Floats:
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        return model.eval()(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize("variant", ["llama", "gemma3", "cohere2", "gpt_neox"])
def test_a_separate_head_is_kept(variant: str, tmp_path: Path) -> None:
    folder = says_tied(make_checkpoint(tmp_path, variant, tie_word_embeddings=False))
    assert relative(galleys_logits(folder, IDS), truth(folder)) < 1e-4


@pytest.mark.parametrize(
    ("make", "kept"),
    [
        (lambda table: table, False),
        (lambda table: table.to(torch.bfloat16), True),
        (changed_at_the_end, True),
        (lambda table: -table, True),
    ],
    ids=["copy", "rounded", "one-value", "all"],
)
def test_every_value_is_compared(
    make: Callable[[torch.Tensor], torch.Tensor], kept: bool, tmp_path: Path
) -> None:
    folder = with_head(make_checkpoint(tmp_path, "qwen2"), make)
    assert (HEAD in read_dense_model(folder).program.shapes) is kept
    assert relative(galleys_logits(folder, IDS), truth(folder)) < 1e-4


def test_a_quantized_head_is_kept(tmp_path: Path) -> None:
    group = groups_of(args(8), input_activations=INPUTS["dynamic"])
    values = write_compressed(tmp_path, group, ignore=(), tie_word_embeddings=False)
    folder = says_tied(tmp_path / "made")
    weights = open_checkpoint(folder, exact=True).weights()
    assert weights.info(HEAD).kind.name == "int8"
    assert HEAD in build_program(open_checkpoint(folder).config, weights).shapes
    plain = tmp_path / "plain"
    save_file(
        {name: v.contiguous() for name, v in values.items() if name.endswith(".weight")},
        plain / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert relative(galleys_logits(folder, IDS), truth(plain)) < 1e-4


def test_a_separate_head_is_written_to_gguf(tmp_path: Path) -> None:
    folder = with_head(make_checkpoint(tmp_path / "model", "llama-mha-tied"), torch.neg)
    model = read_dense_model(folder)
    write(model, prepare(model, "a model"), tmp_path / "model.gguf")
    got = galleys_logits(tmp_path / "model.gguf", IDS)
    assert np.array_equal(got, galleys_logits(folder, IDS))
    assert relative(got, truth(folder)) < 1e-4

"""Adding a family, and what the families refuse rather than compute wrongly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration

from galley.errors import CheckpointError, GalleyError, UnsupportedModel
from galley.formats.json_file import read_json
from galley.graph.program import Program
from galley.models import registry
from galley.models.registry import build_program
from tests.checkpoints import VARIANTS, make_checkpoint, make_tokenizer, random_ids
from tests.conftest import CheckpointMaker
from tests.models import seed_oss
from tests.models.chunks import executor_of, run_chunks


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_a_family_is_added_in_under_40_lines(
    executor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(seed_oss.__file__)
    assert len(source.read_text().splitlines()) + 1 < 40  # and its line in the registry
    changes: dict[str, Any] = {"model_type": "seed_oss", "head_dim": 14, "attention_out_bias": True}
    folder = make_checkpoint(tmp_path, "llama", **changes)
    with pytest.raises(UnsupportedModel, match="seed_oss"):
        executor_of(folder)
    families = {**registry.FAMILIES, "seed_oss": seed_oss.__name__}
    monkeypatch.setattr(registry, "FAMILIES", families)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = random_ids(1, 90)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    got = run_chunks(executor_of(folder, executor=executor), ids, [60, 30], first_block=0)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_every_family_has_a_variant() -> None:
    assert {v["model_type"] for v in VARIANTS.values()} == {*registry.FAMILIES} - {
        "whisper",
        "gemma3",
    }


def config_of(variant: str, checkpoint: CheckpointMaker, **changes: Any) -> dict[str, Any]:
    return {**read_json(checkpoint(variant) / "config.json"), **changes}


GEMMA_ROPES = {
    "full_attention": {"rope_type": "dynamic", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {"rope_parameters": GEMMA_ROPES}, "rope_parameters.full_attention.rope_type"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping"),
    ("phi3", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_type 'yarn'"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.3}}, "partial_rotary_factor"),
    ("phi3-longrope", {"partial_rotary_factor": 1.0, "head_dim": 16}, "short_factor"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("smollm3", {"no_rope_layers": [1, 0, 1]}, "no_rope_layers"),
    ("granite", {"logits_scaling": 0}, "logits_scaling"),
]


@pytest.mark.parametrize(("variant", "changes", "names"), REFUSED, ids=str)
def test_what_is_not_honoured_is_refused_by_name(
    variant: str, changes: dict[str, Any], names: str, checkpoint: CheckpointMaker
) -> None:
    with pytest.raises(GalleyError, match=names):
        build_program(config_of(variant, checkpoint, **changes))


def test_a_bias_that_is_not_read_is_refused(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    """The tensors have biases, the config says that there are none."""
    folder = make_checkpoint(tmp_path, "granite", attention_bias=True)
    config = {**json.loads((folder / "config.json").read_text()), "attention_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"k_proj\.bias"):
        executor_of(folder)


def built(**config: Any) -> Program:
    shape = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 6}
    return build_program({**shape, "num_attention_heads": 4, **config})


def attentions(program: Program) -> list[tuple[int, float]]:
    """Of each layer: its window, and the second angle of its rotation, which tells its base."""
    ropes = [op.attrs["inv_freq"][1] for op in program.ops if op.name == "rope"][::2]
    windows = [op.attrs["window"] for op in program.ops if op.name == "attention"]
    return list(zip(windows, ropes, strict=True))


def test_gemma_3_as_its_first_checkpoints_say_it() -> None:
    """config.json of transformers 4: a pattern instead of a list of layers, two bases."""
    program = built(
        model_type="gemma3_text",
        head_dim=16,
        sliding_window=512,
        sliding_window_pattern=6,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    local, whole = (512, 1e4 ** (-2 / 16)), (0, 1e6 ** (-2 / 16) / 8)
    assert attentions(program) == [pytest.approx(a) for a in [local] * 5 + [whole]]
    assert "soft_cap" not in {op.name for op in program.ops}


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_gemma_3_that_reads_images_answers_text(executor: Any, tmp_path: Path) -> None:
    """A config.json as Google's: text_config leaves out what is as in every Gemma 3."""
    torch.manual_seed(0)
    text = VARIANTS["gemma3"] | {"hidden_size": 48, "intermediate_size": 88, "vocab_size": 320}
    text |= {"num_attention_heads": 8, "num_hidden_layers": 2, "tie_word_embeddings": True}
    image = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    image |= {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    model = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=image)
    ).eval()
    model.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("num_attention_heads", "rms_norm_eps", "attn_logit_softcapping", "model_type"):
        del config["text_config"][name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = random_ids(1, 90)
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    got = run_chunks(executor_of(tmp_path, executor=executor), ids, [60, 30], first_block=0)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_phi_4_mini_has_the_context_of_its_short_factors() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    program = built(
        model_type="phi3",
        hidden_size=64,
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        partial_rotary_factor=0.5,
        rope_scaling={"type": "longrope", **factors},
    )
    assert program.max_positions == 4096
    (scale,) = {op.attrs["scale"] for op in program.ops if op.name == "rope"}
    assert scale == pytest.approx(1.1902380714238083)  # sqrt(1 + ln 32 / ln 4096)

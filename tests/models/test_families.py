"""Adding a family, and configurations that families refuse rather than compute wrongly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Llama4Config,
    Llama4ForConditionalGeneration,
)

from galley.calibration.matrices import check_dense
from galley.engine.read_model import read_model
from galley.errors import CheckpointError, GalleyError, UnsupportedModel
from galley.formats.json_file import read_json
from galley.graph.program import Program
from galley.models import registry
from galley.models.registry import build_program
from galley.models.whole_texts import over_whole_texts
from galley.settings.engine import EngineSettings
from galley.train.forward import check_trainable
from tests.checkpoints import SHAPE, VARIANTS, make_checkpoint, make_tokenizer, random_ids
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
        "llama4",
    }


def config_of(variant: str, checkpoint: CheckpointMaker, **changes: Any) -> dict[str, Any]:
    return {**read_json(checkpoint(variant) / "config.json"), **changes}


GEMMA_ROPES = {
    "full_attention": {"rope_type": "ntk", "rope_theta": 1e6},
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
    ("llama4", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("llama4", {"layer_types": ["full_attention"] * 4}, "layer_types"),
    ("llama4", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "use_qk_norm"),
    ("llama4", {"floor_scale": 0}, "floor_scale"),
    ("granite", {"logits_scaling": 0}, "logits_scaling"),
    ("granite-hybrid", {"mamba_n_groups": 2}, "mamba_n_groups 2"),
    ("granite-hybrid", {"time_step_limit": [0.0, 0.1]}, "time_step_limit"),
    ("granite-hybrid", {"mamba_d_head": 7}, "mamba_d_head 7"),
    ("granite-hybrid", {"mamba_n_heads": 5}, "mamba_n_heads"),
    ("granite-hybrid", {"mamba_d_conv": 1}, "mamba_d_conv"),
    ("granite-hybrid", {"layer_types": ["mamba"] * 3}, "no attention layer"),
    ("granite-hybrid", {"layer_types": ["mamba", "attention", "rwkv"]}, "layer_types"),
    ("granite-hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type 'alibi'"),
    ("qwen3-next", {"layer_types": ["linear_attention"] * 3}, "no attention layer"),
    ("qwen3-next", {"linear_num_value_heads": 5}, "linear_num_value_heads"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv"),
    ("glm4-moe", {"n_group": 5}, "n_group"),
    ("glm4-moe", {"topk_group": 4}, "topk_group"),
    ("glm4-moe", {"num_experts_per_tok": 9}, "topk_group"),
    ("qwen3-moe", {"num_experts_per_tok": 17}, "num_experts_per_tok"),
    ("qwen3-moe", {"num_experts": 2**40, "num_local_experts": None}, "num_experts"),
    ("glm", {"partial_rotary_factor": 0.35, "rope_parameters": None}, "partial_rotary_factor"),
    ("glm4", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ("cohere", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("cohere", {"logit_scale": -1.0}, "logit_scale"),
    ("cohere2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("starcoder2", {"hidden_act": "silu"}, "hidden_act 'silu'"),
    ("starcoder2", {"norm_epsilon": 0}, "norm_epsilon"),
    ("gpt_neox", {"hidden_act": "relu"}, "hidden_act 'relu'"),
    ("gpt_neox", {"num_attention_heads": 5}, "hidden_size"),
]


@pytest.mark.parametrize(("variant", "changes", "names"), REFUSED, ids=str)
def test_unsupported_fields_are_refused_and_named(
    variant: str, changes: dict[str, Any], names: str, checkpoint: CheckpointMaker
) -> None:
    with pytest.raises(GalleyError, match=names):
        build_program(config_of(variant, checkpoint, **changes))


def test_a_bias_that_is_not_read_is_refused(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    """The tensors include biases that the config denies."""
    folder = make_checkpoint(tmp_path, "granite", attention_bias=True)
    config = {**json.loads((folder / "config.json").read_text()), "attention_bias": False}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"k_proj\.bias"):
        executor_of(folder)


def built(**config: Any) -> Program:
    shape = {"vocab_size": 64, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 6}
    return build_program({**shape, "num_attention_heads": 4, **config})


def attentions(program: Program) -> list[tuple[int, float]]:
    """Return for each layer its window, and the second angle of its rotation, which identifies the base."""
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
    """A config.json in Google's style: text_config omits the values common to every Gemma 3."""
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


@pytest.mark.parametrize("executor", ["reference", "cpu"])
def test_llama_4_that_reads_images_answers_text(executor: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    image = {"hidden_size": 16, "intermediate_size": 64, "num_attention_heads": 2}
    image |= {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14, "vision_output_dim": 16}
    image |= {"projector_input_dim": 16, "projector_output_dim": 16}
    config = Llama4Config(text_config={**SHAPE, **VARIANTS["llama4"]}, vision_config=image)
    model = Llama4ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    ids = random_ids(1, 90)
    with torch.inference_mode():
        expected = model.language_model(torch.tensor([ids])).logits[0].numpy()
    got = run_chunks(executor_of(tmp_path, executor=executor), ids, [60, 30], first_block=0)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("changes", "window", "growth"),
    [
        ({}, 8192, (8192, 0.1)),
        ({"attn_temperature_tuning": 4, "floor_scale": 100, "attn_scale": 0.2}, 8192, (100, 0.2)),
        ({"attn_temperature_tuning": False, "attention_chunk_size": None}, 0, None),
        ({"attn_temperature_tuning": 0, "attention_chunk_size": 512}, 512, None),
    ],
    ids=str,
)
def test_llama_4_attends_in_chunks_or_with_growing_queries(
    changes: dict[str, Any],
    window: int,
    growth: tuple[int, float] | None,
    checkpoint: CheckpointMaker,
) -> None:
    config = config_of("llama4", checkpoint, layer_types=None)
    defaults = {k: v for k, v in config.items() if k not in ("attention_chunk_size", "floor_scale")}
    program = build_program({**defaults, **changes})
    chunked = window > 0
    assert [(kv.window, kv.chunked) for kv in program.kv] == [
        (window, chunked),
        (0, False),
        *[(window, chunked)] * 2,
    ]
    grown = [
        (op.attrs["interval"], op.attrs["factor"])
        for op in program.ops
        if op.name == "scale_queries_by_position"
    ]
    assert grown == ([] if growth is None else [growth])


def test_attention_in_chunks_is_refused_where_it_is_not_done(checkpoint: CheckpointMaker) -> None:
    config = config_of("llama4", checkpoint, moe_layers=[], attn_temperature_tuning=False)
    program = build_program(config)
    with pytest.raises(UnsupportedModel, match="this model has attention in chunks"):
        check_trainable(program)
    with pytest.raises(UnsupportedModel, match="chunked attention is not supported for embed"):
        over_whole_texts(program, program.shapes, all_rows=False)


def test_pythia_as_its_checkpoints_say_it(tmp_path: Path) -> None:
    """config.json of transformers 4, and the buffers that were saved with the tensors."""
    config: dict[str, Any] = {"rotary_pct": 0.5, "rotary_emb_base": 5000, "hidden_act": "gelu"}
    folder = make_checkpoint(tmp_path, "gpt_neox", rope_parameters=None, **config)
    said = json.loads((folder / "config.json").read_text())
    assert said.pop("rope_parameters")["partial_rotary_factor"] == 0.5
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):
        name = f"gpt_neox.layers.{layer}.attention"
        tensors[f"{name}.bias"] = torch.ones(1, 1, 512, 512, dtype=torch.bool)
        tensors[f"{name}.masked_bias"] = torch.tensor(-1e9)
        tensors[f"{name}.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors")
    ids = random_ids(1, 90)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0].numpy()
    got = run_chunks(executor_of(folder, executor="cpu"), ids, [60, 30], first_block=0)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_command_r_rotates_where_it_has_a_window() -> None:
    """config.json of transformers 4 for R7B: a pattern instead of a list of layers."""
    program = built(
        model_type="cohere2",
        sliding_window=512,
        sliding_window_pattern=3,
        rope_theta=50000,
        num_key_value_heads=2,
    )
    windows = [op.attrs["window"] for op in program.ops if op.name == "attention"]
    assert windows == [512, 512, 0, 512, 512, 0]
    ropes = [op.attrs for op in program.ops if op.name == "rope"]
    assert [a["inv_freq"][1] for a in ropes] == pytest.approx([50000 ** (-2 / 12)] * 8)
    assert {a["adjacent"] for a in ropes} == {True}
    nowhere = built(model_type="cohere2", sliding_window=None, num_key_value_heads=2)
    assert "rope" not in {op.name for op in nowhere.ops}


def test_olmo_3_as_its_checkpoints_say_it() -> None:
    """config.json of transformers 4: rotation scaling applies to layers without a window."""
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    program = built(
        model_type="olmo3",
        sliding_window=4096,
        max_position_embeddings=65536,
        rope_theta=500000,
        rope_scaling={**yarn, "attention_factor": 1.25},
    )
    assert program.max_positions == 65536
    scales = [op.attrs["scale"] for op in program.ops if op.name == "rope"][::2]
    windows = [op.attrs["window"] for op in program.ops if op.name == "attention"]
    assert windows == [4096, 4096, 4096, 0, 4096, 4096]
    assert scales == [1.25 if not window else 1.0 for window in windows]


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


def test_galley_quantize_refuses_experts_by_what_serves_them(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("qwen3-moe")
    with pytest.raises(UnsupportedModel, match="--weight-dtype int4"):
        check_dense(read_model(EngineSettings(model=str(folder)), folder))

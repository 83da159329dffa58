"""GGUF files of each architecture, written by llama.cpp's converter, against transformers' logits."""

import re
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import pytest

from galley.engine.read_model import read_model
from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.gguf import GGUFCheckpoint
from galley.formats.gguf_config import config_of, generation_of
from galley.formats.gguf_families import FAMILIES
from galley.formats.gguf_metadata import Metadata
from galley.formats.reader import open_checkpoint
from galley.formats.values import dequantize
from galley.formats.weights import DenseWeight, IntWeight
from galley.models.registry import build_program
from galley.settings.engine import EngineSettings
from tests.formats.gguf_files import quantized
from tests.formats.peer_files.gguf_models import IDS, VARIANTS
from tests.formats.values import galleys_logits, relative, values_of

FOLDER: Final = Path(__file__).parent / "peer_files" / "gguf"


@pytest.mark.parametrize("name", [*VARIANTS, "phi3-longrope-short"])
def test_logits_are_those_of_transformers(name: str) -> None:
    with np.load(FOLDER / "logits.npz") as arrays:
        expected = arrays[name]
    # LongRoPE uses its frequencies for long texts in a model configured for long texts.
    settings: dict[str, Any] = {"max_model_len": 64} if name == "phi3-longrope" else {}
    path = FOLDER / f"{name.removesuffix('-short')}.gguf"
    got = galleys_logits(path, IDS[: len(expected)], **settings)
    assert relative(got, expected) <= 1e-4
    assert np.array_equal(got.argmax(axis=1), expected.argmax(axis=1))
    assert len(set(expected.argmax(axis=1))) > 5, "a model that says one thing tells little"


def test_all_architectures_have_a_file() -> None:
    """The exceptions are those that other tests write themselves."""
    read = {GGUFCheckpoint.open(path).metadata.architecture for path in FOLDER.glob("*.gguf")}
    assert read == FAMILIES.keys() - {"qwen2", "qwen3"}


def metadata(architecture: str, **own: Any) -> Metadata:
    """Return the metadata of a file with these values; ``__`` in a key stands for a dot."""
    sizes = {"embedding_length": 96, "block_count": 4, "attention__head_count": 3}
    named = {f"{architecture}.{k.replace('__', '.')}": v for k, v in (sizes | own).items()}
    return Metadata({"general.architecture": architecture, **named}, "model.gguf")


def config(architecture: str, **own: Any) -> dict[str, Any]:
    return config_of(metadata(architecture, **own), (), 320, {})


def test_missing_keys_default_as_in_llama_cpp() -> None:
    """Cases that the files above do not cover: missing keys, and sizes given by layer."""
    assert config("gemma2")["sliding_window"] == 4096
    assert config("gemma3")["sliding_window"] is None
    assert "layer_types" not in config("gemma3")
    local = config("gemma3", attention__sliding_window=9)["rope_parameters"]["sliding_attention"]
    assert local == {"rope_type": "default", "rope_theta": 10000.0}
    for architecture, layers in (("gemma2", 46), ("gemma3", 62)):
        narrow = {"attention__key_length": 7, "attention__value_length": 7}
        assert config(architecture, **narrow)["query_pre_attn_scalar"] == 7
        wide = config(architecture, block_count=layers, **narrow)
        assert wide["query_pre_attn_scalar"] == 32
    assert config("granite")["attention_multiplier"] == 32**-0.5
    assert config("granite", residual_scale=0.0)["residual_multiplier"] == 1.0
    assert config("command-r")["logit_scale"] == 1.0
    assert config("llama", attention__sliding_window=9)["model_type"] == "mistral"
    assert config("llama", expert_count=8)["model_type"] == "mixtral"


@pytest.mark.parametrize(
    ("said", "slides"),
    [
        (None, [1, 0, 1, 0]),
        (4, [1, 1, 1, 0]),
        (1, [0, 0, 0, 0]),
        (0, [1, 1, 1, 1]),
        ([False, True, True, False], [0, 1, 1, 0]),
    ],
)
def test_which_layers_have_a_window(said: Any, slides: list[int]) -> None:
    pattern = {} if said is None else {"attention__sliding_window_pattern": said}
    kinds = config("gpt-oss", attention__sliding_window=9, **pattern)["layer_types"]
    assert kinds == ["sliding_attention" if s else "full_attention" for s in slides]


@pytest.mark.parametrize(
    ("architecture", "own", "said"),
    [
        ("qwen3", {"attention__sliding_window": 9}, "qwen3.attention.sliding_window is 9"),
        ("smollm3", {"attention__sliding_window": 9}, "smollm3.attention.sliding_window is 9"),
        ("qwen3", {"expert_count": 8}, "qwen3.expert_count is 8"),
        ("qwen3", {"logit_scale": 2.0}, "qwen3.logit_scale is 2.0"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "gemma3.attn_logit_softcapping is 50.0"),
        ("qwen3moe", {"expert_gating_func": 2}, "qwen3moe.expert_gating_func is 2"),
        ("qwen3moe", {"expert_weights_scale": 2.5}, "qwen3moe.expert_weights_scale is 2.5"),
        ("glm4", {"nextn_predict_layers": 1}, "glm4.nextn_predict_layers is 1"),
        ("glm4", {"rope__dimension_sections": [8, 8]}, "glm4.rope.dimension_sections is"),
        ("granite", {"rope__scaling__finetuned": False}, "granite.rope.scaling.finetuned is False"),
        ("gemma2", {"rope__freq_base_swa": 5e3}, "gemma2.rope.freq_base_swa is 5000.0"),
        ("qwen3", {"rope__scaling__attn_factor": 1.5}, "qwen3.rope.scaling.attn_factor is 1.5"),
        (
            "qwen3",
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__attn_factor": 1.5,
            },
            "qwen3.rope.scaling.attn_factor is 1.5",
        ),
        (
            "qwen3",
            {"rope__dimension_count": 16},
            "rope.dimension_count is 16, but heads have 32 columns",
        ),
        (
            "phi3",
            {"rope__scaling__type": "longrope"},
            "rope_factors_long.weight and rope_factors_short",
        ),
        (
            "llama",
            {"attention__sliding_window": 9, "attention__sliding_window_pattern": 2},
            "llama.attention.sliding_window_pattern is 2",
        ),
    ],
)
def test_what_a_family_lacks_is_refused_and_named(
    architecture: str, own: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=re.escape(said)):
        config(architecture, **own)


@pytest.mark.parametrize("pattern", [[True], [2, 0, 0, 0], -1, "x"])
def test_a_pattern_of_windows_that_is_none(pattern: Any) -> None:
    with pytest.raises(
        CheckpointError, match=r"gguf: gemma2\.attention\.sliding_window_pattern: is"
    ):
        config("gemma2", attention__sliding_window_pattern=pattern)


def test_texts_that_see_later_tokens_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="is_causal is false"):
        build_program(config("llama", attention__causal=False))


def test_harmonys_end_of_a_message_ends_no_answer() -> None:
    tokens = ["<|end|>", "<|return|>", "x", "<|call|>"]
    for count, ends in ((4, [1, 3]), (3, [0, 1])):
        raw = {"general.architecture": "gpt-oss", "tokenizer.ggml.tokens": tokens[:count]}
        assert generation_of(Metadata(raw, "model.gguf"))["eos_token_id"] == ends


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K", "MXFP4", "BF16"])
def test_experts_are_slices_of_the_tensor(name: str, tmp_path: Path) -> None:
    """All experts' blocks have the values that the gguf package reads, bit for bit."""
    kind = gguf.GGMLQuantizationType[name]
    path, blocks = tmp_path / "model.gguf", {}
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_expert_count(3)
    writer.add_tensor("token_embd.weight", np.zeros((320, 256), np.float32))
    for seed, part in enumerate(("gate", "up", "down")):
        rows, depth = (256, 512) if part == "down" else (512, 256)
        values = np.random.default_rng(seed).normal(size=(3 * rows, depth)).astype(np.float32)
        blocks[part] = quantized(values, kind, seed).reshape(3, rows, -1)
        writer.add_tensor(f"blk.1.ffn_{part}_exps.weight", blocks[part], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = open_checkpoint(path).weights()
    for part, data in blocks.items():
        expected = gguf.dequantize(data, kind)
        for expert in range(3):
            weight = weights[f"model.layers.1.mlp.experts.{expert}.{part}_proj.weight"]
            assert isinstance(weight, DenseWeight if name == "BF16" else IntWeight)
            got = dequantize(weight) if isinstance(weight, IntWeight) else values_of(weight)
            assert got.shape == expected[expert].shape
            assert np.array_equal(got.view(np.uint32), expected[expert].view(np.uint32))
    assert len(weights) == 1 + 9


def test_experts_in_bf16_run_in_bf16() -> None:
    """This holds although their files keep the router in float32."""
    for name in ("qwen2moe", "qwen3moe", "mixtral", "gpt-oss"):
        options = read_model(EngineSettings(), FOLDER / f"{name}.gguf").options
        assert (options.dtype, options.weight_dtype) == ("bfloat16", "bf16")

"""GGUF files for tests, written by the gguf package from checkpoints in Hugging Face's layout."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from safetensors.numpy import load_file

NAMES: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WIDE: Final[Mapping[str, Any]] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.1,
}
"""A shape whose matrices are whole blocks of every type."""

Array = npt.NDArray[Any]


def gguf_name(name: str) -> str:
    """Return the name that llama.cpp's converter gives a tensor."""
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, role = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[role]}.{suffix}"
    return f"{NAMES[stem]}.{suffix}"


def permuted(values: Array, heads: int) -> Array:
    """Permute rows of q and k as llama.cpp's converter of Llama does (``LlamaModel.permute``)."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


def quantized(values: Array, type: gguf.GGMLQuantizationType, seed: int = 0) -> Array:
    """Return the values in blocks; for types that the package only reads, random blocks of similar size."""
    try:
        return np.asarray(quantize(np.ascontiguousarray(values), type))
    except NotImplementedError:
        return random_blocks(values.shape, type, float(np.abs(values).max()), seed)


SCALE_BYTES: Final = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Offsets of a block's float16 scales, where not 0."""
_REACH: Final = {"Q2_K": 60, "Q3_K": 128, "Q4_K": 945, "Q5_K": 1953, "Q6_K": 4096, "IQ4_XS": 4064}


def random_blocks(
    shape: tuple[int, ...], type: gguf.GGMLQuantizationType, largest: float, seed: int
) -> Array:
    """Return blocks of random bits whose values are at most about ``largest``."""
    values, size = gguf.GGML_QUANT_SIZES[type]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
    scale = np.float16(largest / _REACH.get(type.name, 128))
    for at in SCALE_BYTES.get(type.name, (0,)):
        blocks[:, :, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(shape[0], -1)


def write_gguf(
    path: Path,
    folder: Path,
    type: str = "F32",
    *,
    metadata: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write the checkpoint in ``folder`` as a GGUF file, its matrices of the named type."""
    config = json.loads((folder / "config.json").read_text())
    architecture = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    _write_config(writer, config)
    _write_tokenizer(writer, folder)
    named = "ALL_F32" if type == "F32" else f"MOSTLY_{type}"
    if named in gguf.LlamaFileType.__members__:
        writer.add_file_type(gguf.LlamaFileType[named])
    for key, value in (metadata or {}).items():
        writer.kv_data[0].pop(key, None)
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)
    if config["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config))
    kind = gguf.GGMLQuantizationType[type]
    for name, values in sorted(load_file(folder / "model.safetensors").items()):
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            key = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            values = permuted(values, config[key])
        if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), values.astype(np.float32))
        else:
            seed += 1
            data = quantized(values.astype(np.float32), kind, seed)
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3_factors(config: Mapping[str, Any]) -> Array:
    """Return the frequencies' divisors, as in ``generate_extra_tensors`` of llama.cpp's converter."""
    rope = config["rope_parameters"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    trained, factors = rope["original_max_position_embeddings"], []
    for exponent in np.arange(0, dim, 2) / dim:
        wavelength = 2 * math.pi * rope["rope_theta"] ** exponent
        if wavelength < trained / high:
            factors.append(1.0)
        elif wavelength > trained / low:
            factors.append(rope["factor"])
        else:
            smooth = (trained / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def split(path: Path, folder: Path, count: int) -> list[Path]:
    """Split the file's tensors over ``count`` files, named and numbered as by ``llama-gguf-split``."""
    folder.mkdir()
    source = gguf.GGUFReader(path)
    parts = []
    for index in range(count):
        parts.append(folder / f"{path.stem}-{index + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(parts[-1], "llama")
        for field in source.fields.values():
            if index == 0 and not field.name.startswith(("GGUF.", "general.architecture")):
                sub = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(field.name, field.contents(), field.types[0], sub)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(source.tensors))
        for tensor in source.tensors[index::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def rewritten(
    path: Path,
    source: Path,
    *,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Array | None] | None = None,
) -> Path:
    """Copy the file with other values of some keys, and changed or new tensors; None removes one."""
    read = gguf.GGUFReader(source)
    changed, replaced = dict(metadata or {}), dict(tensors or {})
    writer = gguf.GGUFWriter(path, read.fields["general.architecture"].contents())
    for field in read.fields.values():
        if field.name.startswith(("GGUF.", "general.architecture")) or field.name in changed:
            continue
        sub = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    for key, value in changed.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for tensor in read.tensors:
        if tensor.name not in replaced:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, values in replaced.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(config["vocab_size"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("sliding_window") and config["model_type"] == "mistral":
        writer.add_sliding_window(config["sliding_window"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    ids = {token: text for text, token in content["model"]["vocab"].items()}
    special = {token["id"]: token for token in content["added_tokens"]}
    ids |= {number: token["content"] for number, token in special.items()}
    tokens = [ids[token] for token in range(len(ids))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in range(len(ids))])
    writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
    writer.add_eos_token_id(0)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())

"""A safetensors checkpoint converted to a bfloat16 GGUF with the ``gguf`` package."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_NAMES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERTS: Final = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
"""Names of tensors that hold all experts of a layer."""
_ARCHITECTURES: Final = {"mixtral": "llama", "qwen3_moe": "qwen3moe"}
"""Architectures whose name differs from ``model_type``."""


def write_gguf(checkpoint: Path, target: Path) -> None:
    """Write the file without a vocabulary (only ids are used); memory stays at one tensor's size."""
    import gguf
    import numpy as np

    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(str(target), _architecture(config))
    _describe(writer, config)
    parts: dict[str, list[tuple[str, Any]]] = {}
    for name, bits in tensors_of(checkpoint / "model.safetensors"):
        parts.setdefault(gguf_name(name), []).append((name, bits))
    for name, pieces in parts.items():
        *_, shape = (np.shape(bits) for _, bits in pieces)
        if _whole(name, shape):
            size = 4 * int(np.prod(shape))
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size)
        else:
            # The shape in bytes.
            shape = (*([len(pieces)] if "_exps" in name else []), *shape[:-1], 2 * shape[-1])
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor_info(name, shape, np.dtype(np.uint8), int(np.prod(shape)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, pieces in parts.items():
        values = [_rows(config, source, bits) for source, bits in pieces]
        rows = np.stack(values) if "_exps" in name else values[0]
        if _whole(name, rows.shape):
            rows = (rows.astype(np.uint32) << 16).view(np.float32)
        writer.write_tensor_data(rows)
    writer.close()


def _whole(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether the tensor stays float32, as in llama.cpp's own files: vectors and routers."""
    return len(shape) == 1 or "gate_inp" in name


def _describe(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    if experts := config.get("num_local_experts") or config.get("num_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if inner := config.get("moe_intermediate_size"):
            writer.add_expert_feed_forward_length(inner)


def gguf_name(name: str) -> str:
    """Map ``model.layers.3.mlp.up_proj.weight`` to ``blk.3.ffn_up.weight``; experts share a name."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    if ".experts." in part:
        return f"blk.{layer}.{_EXPERTS[part.rsplit('.', 1)[1]]}.{kind}"
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _architecture(config: dict[str, Any]) -> str:
    kind: str = config["model_type"]
    return _ARCHITECTURES.get(kind, kind)


def _rows(config: dict[str, Any], name: str, bits: Any) -> Any:
    """Return the tensor in llama.cpp's layout: its llama architecture rotates neighboring pairs."""
    if _architecture(config) == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        kind = "attention" if "q_proj" in name else "key_value"
        return _interleaved(bits, config[f"num_{kind}_heads"])
    return bits


def _interleaved(rows: Any, heads: int) -> Any:
    """Permute rows: llama.cpp rotates neighboring pairs, Hugging Face the two halves of a head."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def tensors_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the name and memory-mapped bfloat16 bits of every tensor."""
    import numpy as np

    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, _ = entry["data_offsets"]
        shape = tuple(entry["shape"])
        yield name, np.memmap(path, np.uint16, "r", offset=8 + length + begin, shape=shape)

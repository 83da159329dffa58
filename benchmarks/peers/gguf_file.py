"""A safetensors checkpoint as a GGUF in bfloat16, with the ``gguf`` package."""

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
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(checkpoint: Path, target: Path) -> None:
    """Without a vocabulary: only token ids are used."""
    import gguf
    import numpy as np

    config = json.loads((checkpoint / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(str(target), config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config.get("head_dim", config["hidden_size"] // heads))
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    for name, bits in _tensors(checkpoint / "model.safetensors"):
        if bits.ndim == 1:
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            writer.add_tensor(gguf_name(name), values)
            continue
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            bits = _interleaved(bits, heads if "q_proj" in name else kv_heads)
        writer.add_tensor(
            gguf_name(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """``model.layers.3.mlp.up_proj.weight`` -> ``blk.3.ffn_up.weight``."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _interleaved(rows: Any, heads: int) -> Any:
    """llama.cpp rotates neighbouring pairs, Hugging Face the two halves of a head."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Name and bfloat16 bits, mapped, of every tensor."""
    import numpy as np

    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, _ = entry["data_offsets"]
        shape = tuple(entry["shape"])
        yield name, np.memmap(path, np.uint16, "r", offset=8 + length + begin, shape=shape)

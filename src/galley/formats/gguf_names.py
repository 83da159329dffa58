"""Names of tensors in GGUF files and in Hugging Face's checkpoints; the rows that llama.cpp permutes."""

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAMES: Final = {hf: name for name, hf in (_NAMES | _LAYER_NAMES).items()}
_LAYER: Final = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)", re.ASCII)
_HF_LAYER: Final = re.compile(r"model\.layers\.(\d{1,6})\.([\w.]+)", re.ASCII)
_WHOLE: Final = frozenset({"self_attn.sinks"})
"""Parameters without the suffix ``.weight`` in Hugging Face's checkpoints."""
_PERMUTED: Final = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}


def hf_name(name: str, names: Mapping[str, str]) -> str:
    """Return the name in Hugging Face's checkpoints; unknown names stay, and are refused by that name.

    Args:
        name: name in the file.
        names: names of a layer's tensors where the family differs from most others.
    """
    if layer := _LAYER.fullmatch(name):
        role = names.get(layer[2]) or _LAYER_NAMES.get(layer[2], layer[2])
        whole = f"model.layers.{int(layer[1])}.{role}"
        return whole if role in _WHOLE else f"{whole}.{layer[3]}"
    stem, _, suffix = name.rpartition(".")
    return f"{_NAMES[stem]}.{suffix}" if stem in _NAMES else name


def gguf_name(name: str) -> str | None:
    """Return the name in GGUF files; None for a tensor that has no name there."""
    stem, _, suffix = name.rpartition(".")
    layer = _HF_LAYER.fullmatch(stem)
    known = _GGUF_NAMES.get(layer[2] if layer else stem)
    if known is None or suffix not in ("weight", "bias"):
        return None
    return f"blk.{layer[1]}.{known}.{suffix}" if layer else f"{known}.{suffix}"


def permuted_heads(name: str) -> str | None:
    """Return the field of config.json with the number of heads that share the rows of llama's q and k.

    Args:
        name: name of a tensor in a GGUF file; tensors other than q and k have no permuted rows: None.
    """
    layer = _LAYER.fullmatch(name)
    return None if layer is None else _PERMUTED.get(layer[2])


def permuted(rows: Any, heads: int) -> Any:
    """Permute rows of llama's q and k to the order of GGUF files.

    llama.cpp's converter interleaves the halves of each head, since it rotates neighbors.
    """
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def unpermuted(rows: Any, heads: int) -> Any:
    """Permute the same rows back to Hugging Face's order."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

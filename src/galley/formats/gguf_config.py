"""A GGUF file's metadata as ``config.json`` and ``generation_config.json`` would have it.

The keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Standardized key-value pairs".
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from galley.errors import CheckpointError, UnsupportedModel, shown
from galley.formats.quantization import QUANTIZED_KEY

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""``general.architecture`` of what is read; Mistral's models call themselves llama."""

ROPE_FACTORS: Final = "rope_freqs.weight"
_ROPE_KINDS: Final = ("none", "linear", "yarn")
"""Tensor of divisors of the rotary frequencies: what llama.cpp keeps of Llama 3.1's scaling."""

_SIZES: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rope_theta": "rope.freq_base",
}
"""Field of config.json -> key, without the architecture in front."""

_REFUSED: Final = (
    "expert_count",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.scale",
    "attention.temperature_scale",
    "attention.temperature_length",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "use_parallel_residual",
)
"""Keys of what the models here do not do, where they are neither 0 nor false."""

SAMPLING: Final = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Field of generation_config.json -> key, without ``general.sampling`` in front."""

RECEIPT: Final = {"method": str, "calibration": str, "kl": float, "kl99": float, "top1": float}
"""What ``galley quantize`` says of its file: key, without ``galley.quantize`` in front, and type."""

_END_IDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS: Final = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>"}
)
"""Tokens that end a turn, whatever the file says; llama.cpp's list."""


class Metadata:
    """Metadata of one file, read key by key; every wrong value is named."""

    def __init__(self, raw: Mapping[str, Any], file: str) -> None:
        self.raw = raw
        self.file = file

    @property
    def architecture(self) -> str:
        """Raises UnsupportedModel unless it is one of ARCHITECTURES."""
        found = self.raw.get("general.architecture")
        if found not in ARCHITECTURES:
            raise UnsupportedModel(
                f"{self.file}: general.architecture {shown(found)} is not supported; known: "
                f"{', '.join(ARCHITECTURES)}"
            )
        return str(found)

    def own(self, key: str) -> Any:
        """The value of the architecture's ``key``; of equal numbers, one for each layer, that number.

        Raises:
            UnsupportedModel: layers differ.
        """
        value = self.raw.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModel(
                    f"{self.file}: {self.architecture}.{key} differs from layer to layer, which is not "
                    "supported"
                )
            return value[0]
        return value

    def strings(self, key: str) -> list[str]:
        """A list of texts; empty if there is none. Raises CheckpointError if it is anything else."""
        value = self.raw.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CheckpointError("is no list of texts", file=self.file, field=key)
        return value

    def token(self, name: str) -> int | None:
        """A token id, ``tokenizer.ggml.NAME``; None if there is none."""
        value = self.raw.get(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if type(value) is not int or value < 0:
            raise CheckpointError(
                f"is {shown(value)}, expected a token id",
                file=self.file,
                field=f"tokenizer.ggml.{name}",
            )
        return value


def config_of(
    metadata: Metadata, tensors: Collection[str], vocabulary: int, factors: list[float] | None
) -> dict[str, Any]:
    """``config.json`` in transformers' words.

    Args:
        metadata: of the file.
        tensors: names of its tensors.
        vocabulary: rows of the embedding.
        factors: values of ROPE_FACTORS, if there is such a tensor.

    Raises:
        UnsupportedModel: for what the models here do not do.
    """
    architecture = metadata.architecture
    for key in _REFUSED:
        if metadata.own(key):
            raise UnsupportedModel(
                f"{metadata.file}: {architecture}.{key} is {shown(metadata.own(key))}, "
                "which is not supported"
            )
    found = {field: metadata.own(key) for field, key in _SIZES.items()}
    config = {field: value for field, value in found.items() if value is not None}
    config |= {
        "model_type": architecture,
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors and architecture != "qwen2",
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "rope_parameters": _rope(metadata, config, factors),
    }
    if config.get("sliding_window"):
        if architecture != "llama":
            raise UnsupportedModel(
                f"{metadata.file}: {architecture}.attention.sliding_window is not supported"
            )
        config["model_type"] = "mistral"
    if receipt := receipt_of(metadata):
        config[QUANTIZED_KEY] = receipt
    return config


def _rope(metadata: Metadata, config: Mapping[str, Any], factors: list[float] | None) -> Any:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    dim, rotated = config.get("head_dim"), metadata.own("rope.dimension_count")
    if dim is None and type(heads) is int and type(hidden) is int and heads:
        dim = hidden // heads
    for key, value in (
        ("rope.dimension_count", rotated),
        ("attention.value_length", metadata.own("attention.value_length")),
    ):
        if value is not None and value != dim:
            raise UnsupportedModel(
                f"{metadata.file}: {metadata.architecture}.{key} is {shown(value)}, but heads are "
                f"{shown(dim)} wide, which is not supported"
            )
    rope = {"rope_theta": config.get("rope_theta", 10000.0)}
    kind = metadata.own("rope.scaling.type") or "none"
    if kind not in _ROPE_KINDS:
        raise UnsupportedModel(
            f"{metadata.file}: rope.scaling.type {shown(kind)} is not supported; known: "
            f"{', '.join(_ROPE_KINDS)}"
        )
    factor = metadata.own("rope.scaling.factor") or metadata.own("rope.scale_linear")
    if factors is not None:
        if kind not in ("none", "linear") or (kind == "linear" and factor not in (None, 1.0)):
            raise UnsupportedModel(
                f"{metadata.file}: rope.scaling.type {shown(kind)} together with {ROPE_FACTORS}"
            )
        return {**rope, "rope_type": "factors", "factors": factors}
    if kind == "none" and factor in (None, 1.0):
        return {**rope, "rope_type": "default"}
    rope |= {} if factor is None else {"factor": factor}
    if kind in ("none", "linear"):
        return {**rope, "rope_type": "linear"}
    names = {
        "original_max_position_embeddings": "original_context_length",
        "attention_factor": "attn_factor",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    given = {name: metadata.own(f"rope.scaling.{key}") for name, key in names.items()}
    rope |= {name: value for name, value in given.items() if value is not None}
    return {**rope, "rope_type": kind}


def generation_of(metadata: Metadata) -> dict[str, Any]:
    """``generation_config.json``: what ends a text, and defaults of sampling if the file has any."""
    ids = {metadata.token(name) for name in _END_IDS} - {None}
    tokens = metadata.strings("tokenizer.ggml.tokens")
    ids |= {token for token, text in enumerate(tokens) if text in END_TEXTS}
    generation: dict[str, Any] = {
        "eos_token_id": sorted(token for token in ids if token is not None)
    }
    for name, key in SAMPLING.items():
        if (value := metadata.raw.get(f"general.sampling.{key}")) is not None:
            # A float32 as people write it: 0.7, not 0.699999988.
            generation[name] = float(f"{value:.7g}") if isinstance(value, float) else value
    return generation


def receipt_of(metadata: Metadata) -> dict[str, Any]:
    """What ``galley quantize`` measured when it wrote the file; empty if it did not.

    Raises:
        CheckpointError: a value is of another type.
    """
    found = {}
    for name, kind in RECEIPT.items():
        key = f"galley.quantize.{name}"
        value = metadata.raw.get(key)
        odd = isinstance(value, float) and not math.isfinite(value)
        if value is not None and (odd or type(value) is not kind):
            raise CheckpointError(f"is {shown(value)}", file=metadata.file, field=key)
        if value is not None:
            found[name] = value
    return found

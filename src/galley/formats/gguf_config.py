"""Conversion of a GGUF file's metadata to ``config.json`` and ``generation_config.json``.

The keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Standardized key-value pairs".
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from galley.errors import CheckpointError, shown
from galley.formats.gguf_families import Family
from galley.formats.gguf_metadata import Metadata
from galley.formats.gguf_rope import Factors, rope_of
from galley.formats.quantization import QUANTIZED_KEY

_SIZES: Final = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "head_dim": "attention.key_length",
}
"""Field of config.json -> GGUF key without the architecture's prefix, for all families."""

_REFUSED: Final[Mapping[str, tuple[Any, ...]]] = {
    "expert_count": (),
    "expert_weights_scale": (1.0,),
    "expert_weights_norm": (True,),
    "expert_gating_func": (1,),
    "expert_group_count": (1,),
    "expert_group_used_count": (1,),
    "router_logit_softcapping": (),
    "swiglu_clamp_exp": (),
    "swiglu_clamp_shexp": (),
    "nextn_predict_layers": (),
    "deepstack_mapping": (-1,),
    "attention.clamp_kqv": (),
    "attention.max_alibi_bias": (),
    "attention.scale": (),
    "attention.output_scale": (),
    "attention.value_scale": (),
    "attention.temperature_scale": (),
    "attention.temperature_length": (),
    "attention.key_length_swa": (),
    "attention.value_length_swa": (),
    "attention.sliding_window": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (),
    "embedding_scale": (),
    "residual_scale": (),
    "use_parallel_residual": (),
    "rope.dimension_count_swa": (),
    "rope.dimension_sections": (),
    "rope.scaling.alpha": (),
    "rope.global.freq_base": (),
    "rope.local.freq_base": (),
    "rope.scaling.yarn_log_multiplier": (),
}
"""Keys of features that are supported only if the family reads them -> values, in addition to 0 and false,
that leave the feature off."""

_PATTERN: Final = "attention.sliding_window_pattern"
_MAX_LAYERS: Final = 1 << 12
"""Maximum layers for which a list of layer types is made; a config with more is refused later."""

SAMPLING: Final = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Field of generation_config.json -> GGUF key without the prefix ``general.sampling``."""

RECEIPT: Final = {"method": str, "calibration": str, "kl": float, "kl99": float, "top1": float}
"""Values that ``galley quantize`` stores: key, without the prefix ``galley.quantize``, and type."""

_END_IDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS: Final = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<end_of_turn>"}
    | {"<|return|>", "<|call|>"}
)
"""Tokens that always end a turn, even if the file does not list them; from llama.cpp."""
_HARMONY: Final = frozenset({"<|return|>", "<|call|>"})
"""If both are tokens, ``<|end|>`` ends one message of an answer that can have several."""


def config_of(
    metadata: Metadata, tensors: Collection[str], vocabulary: int, factors: Factors
) -> dict[str, Any]:
    """Return ``config.json`` with transformers' field names.

    Args:
        metadata: metadata of the file.
        tensors: names of its tensors.
        vocabulary: rows of the embedding.
        factors: values of the tensors that divide rotary frequencies.

    Raises:
        UnsupportedModel: a feature is not supported by the models here.
        CheckpointError: a key contradicts others.
    """
    family = metadata.family
    _check(metadata, family)
    found = {field: metadata.own(key) for field, key in _SIZES.items()}
    config = {field: value for field, value in found.items() if value is not None}
    config = {**_head_dim(config), **config, **family.defaults}
    for field, key in family.keys.items():
        if (value := metadata.own(key)) is not None:
            config[field] = value or family.defaults.get(field)
    window = config.get("sliding_window")
    config |= {field: tensor in tensors for field, tensor in family.flags.items()}
    config |= {
        "model_type": (window and family.windowed) or family.model_type,
        "hidden_act": config.get("hidden_act", "silu"),
        "vocab_size": vocabulary,
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": rope_of(
            metadata, family, head_dim=config.get("head_dim"), window=window, factors=factors
        ),
    }
    if metadata.own("attention.causal") is False:
        config["is_causal"] = False
    config |= _layer_types(metadata, family, config) | _scales(family, config)
    if receipt := receipt_of(metadata):
        config[QUANTIZED_KEY] = receipt
    return config


def _check(metadata: Metadata, family: Family) -> None:
    for key, harmless in _REFUSED.items():
        value = metadata.own(key)
        if value and value not in harmless and key not in family.keys.values():
            raise metadata.unsupported(key)
    for key, wanted in family.required.items():
        if metadata.own(key) not in (None, wanted):
            raise metadata.unsupported(key)


def _head_dim(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of a head where no key specifies it.

    Families have their own defaults; files use the hidden size divided by the number of heads.
    """
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if type(heads) is not int or type(hidden) is not int or heads < 1 or hidden % heads:
        return {}
    return {"head_dim": hidden // heads}


def _layer_types(
    metadata: Metadata, family: Family, config: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return which layers have the window, by the file's pattern or the architecture's."""
    pattern = metadata.raw.get(f"{metadata.architecture}.{_PATTERN}")
    layers = config.get("num_hidden_layers")
    if not config.get("sliding_window"):
        return {}
    if not family.period:
        if pattern:
            raise metadata.unsupported(_PATTERN)
        return {}
    if type(layers) is not int or not 0 < layers <= _MAX_LAYERS:
        return {}  # reported when the config is read
    period = family.period if pattern is None else pattern
    if type(period) is int and period >= 0:
        slides = [period == 0 or layer % period < period - 1 for layer in range(layers)]
    elif isinstance(period, list) and len(period) == layers and set(period) <= {0, 1}:
        slides = [bool(value) for value in period]
    else:
        raise CheckpointError(
            f"is {shown(period)}, expected a period of layers without a window, or true or false for each "
            f"of {layers} layers",
            file=metadata.file,
            field=f"{metadata.architecture}.{_PATTERN}",
        )
    return {"layer_types": ["sliding_attention" if s else "full_attention" for s in slides]}


def _scales(family: Family, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scale of queries, where the file does not state it explicitly."""
    sizes: list[Any] = [config.get(f) for f in ("head_dim", "num_attention_heads", "hidden_size")]
    if not all(type(size) is int and size > 0 for size in sizes):
        return {}  # reported when the config is read
    dim, heads, hidden = sizes
    if "attention_multiplier" in family.keys:
        return {"attention_multiplier": config.get("attention_multiplier") or dim**-0.5}
    if family.scaled_by_width is None:
        return {}
    wide = config.get("num_hidden_layers") == family.scaled_by_width
    return {"query_pre_attn_scalar": hidden // heads if wide else dim}


def generation_of(metadata: Metadata) -> dict[str, Any]:
    """Return ``generation_config.json``: tokens that end a text, and sampling defaults if there are any."""
    ids = {metadata.token(name) for name in _END_IDS} - {None}
    tokens = metadata.strings("tokenizer.ggml.tokens")
    ends = END_TEXTS - {"<|end|>"} if set(tokens) >= _HARMONY else END_TEXTS
    ids |= {token for token, text in enumerate(tokens) if text in ends}
    generation: dict[str, Any] = {
        "eos_token_id": sorted(token for token in ids if token is not None)
    }
    for name, key in SAMPLING.items():
        if (value := metadata.raw.get(f"general.sampling.{key}")) is not None:
            # The shortest decimal of the float32: 0.7, not 0.699999988.
            generation[name] = float(f"{value:.7g}") if isinstance(value, float) else value
    return generation


def receipt_of(metadata: Metadata) -> dict[str, Any]:
    """Return the measurements that ``galley quantize`` stored in the file; empty if there are none.

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

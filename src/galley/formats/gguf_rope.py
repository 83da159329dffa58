"""A GGUF file's rotation of queries and keys, converted to ``rope_parameters`` of ``config.json``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from galley.errors import UnsupportedModel, shown
from galley.formats.gguf_families import Family
from galley.formats.gguf_metadata import Metadata

ROPE_FACTORS: Final = "rope_freqs.weight"
"""Tensor of divisors of the rotary frequencies, in which llama.cpp stores Llama 3.1's scaling."""

LONG_FACTORS: Final = "rope_factors_long.weight"
SHORT_FACTORS: Final = "rope_factors_short.weight"
"""LongRoPE's divisors, for texts longer than the original training context, and for shorter ones."""

FACTORS: Final = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)

Factors = Mapping[str, Sequence[float]]
"""Tensors of divisors that the file has."""

_KINDS: Final = ("none", "linear", "yarn", "longrope")
_YARN: Final = {
    "original_max_position_embeddings": "original_context_length",
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}


def rope_of(
    metadata: Metadata, family: Family, *, head_dim: Any, window: Any, factors: Factors
) -> dict[str, Any]:
    """Return the parameters, by layer type where layers with a ``window`` are rotated differently.

    Raises:
        UnsupportedModel: the file needs a feature that the models here do not support; names the key.
    """
    theta = metadata.own("rope.freq_base") or 10000.0
    whole = {"rope_theta": theta, **family.rope, **_share(metadata, family, head_dim)}
    whole |= _scaling(metadata, factors)
    key = "rope.freq_base_swa"
    local = metadata.own(key)
    if family.local_theta is None:
        if local not in (None, theta):
            raise metadata.unsupported(key)
        return whole
    if not window:
        return whole
    local = local or family.local_theta or theta
    return {
        "full_attention": whole,
        "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }


def _share(metadata: Metadata, family: Family, head_dim: Any) -> dict[str, float]:
    turned, width = metadata.own("rope.dimension_count"), metadata.own("attention.value_length")
    wrong = {"attention.value_length": width} if width not in (None, head_dim) else {}
    if turned not in (None, head_dim) and not (
        family.partial and type(turned) is type(head_dim) is int and 0 < turned < head_dim
    ):
        wrong["rope.dimension_count"] = turned
    for key, value in wrong.items():
        raise UnsupportedModel(
            f"{metadata.file}: {metadata.architecture}.{key} is {shown(value)}, but heads "
            f"have {shown(head_dim)} columns, which is not supported"
        )
    if not family.partial:
        return {}
    return {"partial_rotary_factor": 1.0 if turned in (None, head_dim) else turned / head_dim}


def _scaling(metadata: Metadata, factors: Factors) -> dict[str, Any]:
    kind = metadata.own("rope.scaling.type") or "none"
    if kind not in _KINDS:
        raise UnsupportedModel(
            f"{metadata.file}: rope.scaling.type {shown(kind)} is not supported; known: "
            f"{', '.join(_KINDS)}"
        )
    factor = metadata.own("rope.scaling.factor") or metadata.own("rope.scale_linear")
    if kind == "longrope" or LONG_FACTORS in factors or SHORT_FACTORS in factors:
        return _longrope(metadata, kind, factors)
    if metadata.own("rope.scaling.attn_factor") not in (None, 1.0):
        raise metadata.unsupported("rope.scaling.attn_factor")
    if kind == "yarn":
        given = {name: metadata.own(f"rope.scaling.{key}") for name, key in _YARN.items()}
        given = {"factor": factor, **given}
        _without_factors(metadata, kind, factors)
        if metadata.own("rope.scaling.yarn_ext_factor") not in (None, 1.0, -1.0):
            raise metadata.unsupported("rope.scaling.yarn_ext_factor")
        return {"rope_type": kind} | {n: v for n, v in given.items() if v is not None}
    if ROPE_FACTORS in factors:
        if kind == "linear" and factor not in (None, 1.0):
            _without_factors(metadata, kind, factors)
        return {"rope_type": "factors", "factors": list(factors[ROPE_FACTORS])}
    if kind == "none" and factor in (None, 1.0):
        return {"rope_type": "default"}
    return {"rope_type": "linear"} | ({} if factor is None else {"factor": factor})


def _longrope(metadata: Metadata, kind: str, factors: Factors) -> dict[str, Any]:
    """Return LongRoPE's parameters.

    A file that has these tensors need not name the type: that of Phi-3 does not.
    """
    missing = [name for name in (LONG_FACTORS, SHORT_FACTORS) if name not in factors]
    if missing or kind not in ("none", "longrope") or ROPE_FACTORS in factors:
        raise UnsupportedModel(
            f"{metadata.file}: rope.scaling.type {shown(kind)} with "
            f"{', '.join(sorted(factors)) or 'no tensors'}; expected longrope with {LONG_FACTORS} and "
            f"{SHORT_FACTORS}"
        )
    trained = metadata.own("rope.scaling.original_context_length")
    return {
        "rope_type": "longrope",
        "long_factor": list(factors[LONG_FACTORS]),
        "short_factor": list(factors[SHORT_FACTORS]),
        "attention_factor": metadata.own("rope.scaling.attn_factor") or 1.0,
    } | ({} if trained is None else {"original_max_position_embeddings": trained})


def _without_factors(metadata: Metadata, kind: str, factors: Factors) -> None:
    for name in factors:
        raise UnsupportedModel(
            f"{metadata.file}: rope.scaling.type {shown(kind)} together with {name}"
        )

"""Rotary position embedding frequencies: default, linear, llama3, yarn, longrope, GGUF's factors."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from galley.errors import CheckpointError, UnsupportedModel
from galley.models.fields import FILE, Fields
from galley.types import MAX_COUNT

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "factors")
SECTIONS: Final = ("rope_scaling", "rope_parameters")
"""Sections of config.json with the parameters.

The first takes precedence, as in transformers, unless it is empty.
"""
Angles = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of one model.

    Attributes:
        inv_freq: radians per position, one for each rotated pair of columns; these are the first
            columns of a head, as many as ``partial_rotary_factor`` specifies.
        scale: multiplies sine and cosine.
        max_positions: context length that the frequencies are made for.
        adjacent: whether a pair is two adjacent columns, not one of each half of the rotated ones.
    """

    inv_freq: tuple[float, ...]
    scale: float
    max_positions: int
    adjacent: bool = False


def read_rope(
    config: Fields,
    *,
    head_dim: int,
    max_positions: int,
    rope: Fields | None = None,
    theta: float | None = None,
    partial: float | None = None,
) -> Rope:
    """Read ``rope_theta`` and ``rope_scaling``, or ``rope_parameters`` (transformers 5).

    "dynamic" frequencies are those of the base up to ``max_positions``, which is the context: a
    longer text would change the frequencies of all tokens.

    Args:
        config: fields of the model.
        head_dim: columns of a head.
        max_positions: context length of the model, in tokens.
        rope: the parameters, where the layers do not share those of ``config``.
        theta: the base if ``rope`` has none; default: that of ``config``, or 10,000.
        partial: the family's share of a head's columns that are rotated, if config.json does not
            specify it; None for families that always rotate all.

    Raises:
        UnsupportedModel: ``rope_type`` is unknown, or a part of a head is to be rotated in a family
            that rotates all.
        CheckpointError: a field is missing or wrong.
    """
    rope = config.section(*SECTIONS) if rope is None else rope
    kind = rope.choice(("rope_type", "type"), KINDS, default="default")
    theta = config.number("rope_theta", 10000.0) if theta is None else theta
    theta = rope.number("rope_theta", theta)
    share = config.number("partial_rotary_factor", 1.0 if partial is None else partial)
    share = rope.number("partial_rotary_factor", share)
    if partial is None and share != 1.0:
        raise UnsupportedModel(f"{FILE}: partial_rotary_factor other than 1 is not supported")
    rotated = int(head_dim * share)
    if not 2 <= rotated <= head_dim or rotated % 2:
        raise rope.wrong("partial_rotary_factor", f"an even part of {head_dim} columns")
    try:
        with np.errstate(all="ignore"):
            made = _scaled(config, rope, kind, theta, rotated, max_positions)
    except ArithmeticError:  # each field is valid, but not with the others: yarn's theta of 1
        made = None
    if made is None or not np.isfinite([*made.inv_freq, made.scale]).all():
        raise CheckpointError(
            f"its values do not give finite frequencies (rope_type {kind}, rope_theta {theta:g})",
            file=FILE,
            field=next((name for name in SECTIONS if config.has(name)), "rope_theta"),
        )
    return made


def _scaled(
    config: Fields, rope: Fields, kind: str, theta: float, head_dim: int, max_positions: int
) -> Rope:
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    inv_freq: Angles = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
    scale = 1.0
    if kind == "linear":
        inv_freq = inv_freq / np.float32(rope.number("factor"))
    elif kind == "factors":
        factors = rope.numbers("factors")
        if len(factors) != len(inv_freq):
            raise rope.wrong("factors", f"{len(inv_freq)} numbers")
        divisors: Angles = np.array(factors, np.float32)
        inv_freq = inv_freq / divisors
    elif kind in ("longrope", "su"):
        return _longrope(config, rope, inv_freq, max_positions)
    elif kind == "llama3":
        trained = _trained_positions(
            config, rope, config.count("max_position_embeddings", max_positions)
        )
        inv_freq = _llama3(inv_freq, rope, trained)
    elif kind == "yarn":
        trained = _trained_positions(config, rope, max_positions)
        factor = rope.number("factor", max_positions / trained)
        inv_freq = _yarn(inv_freq, rope, trained, factor, theta)
        scale = _yarn_scale(rope, factor)
        # Configs edited to use yarn, as Qwen's model cards recommend, keep the trained length there.
        if trained * factor > MAX_COUNT:
            raise rope.wrong("factor", f"at most {MAX_COUNT} positions, {trained} of them trained")
        max_positions = max(max_positions, int(trained * factor))
    return Rope(tuple(inv_freq.tolist()), scale, max_positions)


def _llama3(inv_freq: Angles, rope: Fields, original: int) -> Angles:
    """Apply Llama 3.1's scaling: stretch long wavelengths by ``factor``, keep short ones.

    Wavelengths in between are interpolated. ``original`` positions were trained.
    """
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    wavelength = 2 * math.pi / inv_freq
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * inv_freq / factor + smooth * inv_freq
    scaled = np.where(wavelength > original / low, inv_freq / factor, inv_freq)
    is_between = (wavelength <= original / low) & (wavelength >= original / high)
    return np.where(is_between, between, scaled).astype(np.float32)


def _longrope(config: Fields, rope: Fields, inv_freq: Angles, max_positions: int) -> Rope:
    """Read LongRoPE (arXiv:2402.13753): one set of factors up to the trained length, one beyond it.

    A longer text has other frequencies from its first token on, so a cache of keys could not grow
    beyond the trained length. That length is the model's context, unless a longer one is requested;
    then all texts get the frequencies of the longer one.
    """
    trained = min(_trained_positions(config, rope, max_positions), max_positions)
    for name in ("short_factor", "long_factor"):
        if len(rope.numbers(name)) != len(inv_freq):
            raise rope.wrong(name, f"{len(inv_freq)} numbers")
    factor = rope.number("factor", max_positions / trained)
    scale = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    scale = rope.number("attention_factor", scale)
    long = config.context is not None and config.context > trained
    divisors = np.array(rope.numbers("long_factor" if long else "short_factor"), np.float32)
    return Rope(tuple((inv_freq / divisors).tolist()), scale, max_positions if long else trained)


def _trained_positions(config: Fields, rope: Fields, max_positions: int) -> int:
    name = "original_max_position_embeddings"
    return config.count(name, rope.count(name, max_positions))


def _yarn(inv_freq: Angles, rope: Fields, trained: int, factor: float, theta: float) -> Angles:
    """Apply YaRN (arXiv:2309.00071): per-dimension ramp between interpolation and extrapolation.

    ``trained`` positions are stretched ``factor`` times.
    """
    head_dim = 2 * len(inv_freq)

    def dimension(rotations: float) -> float:
        return head_dim * math.log(trained / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(rope.number("beta_fast", 32.0))
    high = dimension(rope.number("beta_slow", 1.0))
    if rope.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(head_dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    extrapolate = (1 - ramp).astype(np.float32)
    mixed = inv_freq / np.float32(factor) * (1 - extrapolate) + inv_freq * extrapolate
    return np.asarray(mixed, dtype=np.float32)


def _yarn_scale(rope: Fields, factor: float) -> float:
    if rope.has("attention_factor"):
        return rope.number("attention_factor")
    if multiplies(rope, "mscale") and multiplies(rope, "mscale_all_dim"):
        both = (yarn_scale(factor, rope.number(n)) for n in ("mscale", "mscale_all_dim"))
        return next(both) / next(both)
    return yarn_scale(factor, 1.0)


def multiplies(rope: Fields, name: str) -> bool:
    """Return whether a multiplier of YaRN is present; 0 counts as absent."""
    return rope.has(name) and rope.number(name, least=0.0) > 0


def yarn_scale(factor: float, multiplier: float) -> float:
    """Return YaRN's multiplier of attention where positions are stretched ``factor`` times."""
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

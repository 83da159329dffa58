"""Llama 4 (text): experts with inputs scaled by the router, layers without rotations, plain norms.

Layers with rotations see the tokens of the current chunk of ``attention_chunk_size`` tokens; the
others see all, and their queries grow with the position. Norms of q and k have no weights.
"""

from dataclasses import replace

from galley.errors import CheckpointError, UnsupportedModel
from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, Names, read_decoder
from galley.models.experts import Experts, read_counts
from galley.models.fields import FILE, Fields


def build(config: Fields) -> Program:
    """Trace the model.

    A model that also reads images has its text model as ``text_config``; images are not supported.
    """
    if config.has("text_config"):
        text = read_llama4(config.section("text_config"))
        return build_decoder(replace(text, prefix="language_model."))
    return build_decoder(read_llama4(config))


def read_llama4(config: Fields) -> DecoderConfig:
    """Read the decoder.

    ``intermediate_size`` is the width of an expert, ``intermediate_size_mlp`` that of a dense
    layer.
    """
    c = read_decoder(config, head_dim=128, kv_heads=8, max_positions=131072, eps=1e-5, theta=5e5)
    turns = _turns(config, c.layers)
    normed = config.flag("use_qk_norm", True)
    ropes = tuple(
        replace(rope, adjacent=True) if rope and turn else None
        for rope, turn in zip(c.ropes, turns, strict=True)
    )
    # The norm is applied after the rotation. It is invariant to it unless the rotation scales.
    if normed and any(rope and rope.scale != 1.0 for rope in ropes):
        raise UnsupportedModel(
            f"{FILE}: a rope_type with a scale is not supported together with use_qk_norm"
        )
    bias = config.flag("attention_bias", False)
    experts, per_token = read_counts(config, "num_local_experts", per_token=1)
    return replace(
        c,
        intermediate_size=config.width("intermediate_size_mlp", 16384),
        ropes=ropes,
        windows=tuple(_chunk(config) if turn else 0 for turn in turns),
        chunked=True,
        growth=_growth(config),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="plain" if normed else "",
        names=Names(mlp="feed_forward"),
        experts=Experts(
            sparse=_sparse(config, c.layers),
            experts=experts,
            per_token=per_token,
            width=c.intermediate_size,
            normalize=False,
            scores="sigmoid",
            scaled_inputs=True,
            shared_width=c.intermediate_size,
            router="router",
            block="feed_forward",
        ),
    )


def _turns(config: Fields, layers: int) -> list[bool]:
    """Return for each layer whether it has rotations.

    ``no_rope_layers`` has a 0 for each layer without, every fourth by default.
    """
    interval = config.count("no_rope_layer_interval", 4)
    said = config.tokens("no_rope_layers")
    turns = [bool(turn) for turn in said] or [(i + 1) % interval != 0 for i in range(layers)]
    if len(turns) != layers:
        raise config.wrong("no_rope_layers", f"{layers} numbers")
    kinds = config.words("layer_types")
    own = ["chunked_attention" if turn else "full_attention" for turn in turns]
    if kinds is not None and kinds != own:
        raise UnsupportedModel(
            f"{FILE}: layer_types that contradict no_rope_layers are not supported"
        )
    return turns


def _sparse(config: Fields, layers: int) -> tuple[bool, ...]:
    """Return for each layer whether it has experts.

    These are ``moe_layers``, or every ``interleave_moe_layer_step``-th layer.
    """
    if config.has("moe_layers"):
        chosen = config.tokens("moe_layers")
        return tuple(layer in chosen for layer in range(layers))
    step = config.count("interleave_moe_layer_step", 1)
    return tuple((layer + 1) % step == 0 for layer in range(layers))


def _chunk(config: Fields) -> int:
    """Return the chunk's size in tokens; 0: layers with rotations see all tokens, too."""
    if config.is_null("attention_chunk_size"):
        return 0
    return config.count("attention_chunk_size", 8192)


def _growth(config: Fields) -> tuple[int, float] | None:
    """Return (interval in tokens, factor) of the growth of queries in layers without rotations."""
    if not _tunes(config):
        return None
    return config.count("floor_scale", 8192), config.number("attn_scale", 0.1)


def _tunes(config: Fields) -> bool:
    """Return whether queries grow; the first checkpoints have a number instead of true."""
    try:
        return config.flag("attn_temperature_tuning", True)
    except CheckpointError:
        return config.whole("attn_temperature_tuning", 4) > 0

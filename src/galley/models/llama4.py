"""Llama 4 (text): experts whose inputs the router scales, layers that turn nothing, norms without weights.

Layers that turn see chunks of ``attention_chunk_size`` tokens, and queries of the others grow with the
position from ``floor_scale`` on. Neither is done here: the context ends where they would begin.
"""

from dataclasses import replace

from galley.errors import CheckpointError, UnsupportedModel
from galley.graph.program import Program
from galley.models.decoder import DecoderConfig, Names, build_decoder, read_decoder
from galley.models.experts import Experts, read_counts
from galley.models.fields import FILE, Fields


def build(config: Fields) -> Program:
    """A model that reads images, too, has that of its texts as ``text_config``: images are not read."""
    if config.has("text_config"):
        text = read_llama4(config.section("text_config"))
        return build_decoder(replace(text, prefix="language_model."))
    return build_decoder(read_llama4(config))


def read_llama4(config: Fields) -> DecoderConfig:
    """``intermediate_size`` is that of an expert, ``intermediate_size_mlp`` that of a dense layer."""
    c = read_decoder(config, head_dim=128, kv_heads=8, max_positions=131072, eps=1e-5, theta=5e5)
    turns = _turns(config, c.layers)
    normed = config.flag("use_qk_norm", True)
    ropes = tuple(
        replace(rope, adjacent=True) if rope and turn else None
        for rope, turn in zip(c.ropes, turns, strict=True)
    )
    # The norm is behind the rotation, which it does not see, unless that scales.
    if normed and any(rope and rope.scale != 1.0 for rope in ropes):
        raise UnsupportedModel(f"{FILE}: a rope_type that scales is not supported with use_qk_norm")
    bias = config.flag("attention_bias", False)
    experts, per_token = read_counts(config, "num_local_experts", per_token=1)
    return replace(
        c,
        intermediate_size=config.width("intermediate_size_mlp", 16384),
        max_positions=_context(config, c.max_positions, turns),
        ropes=ropes,
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
    """``no_rope_layers`` has a 0 for each layer without rotation, every fourth by default."""
    interval = config.count("no_rope_layer_interval", 4)
    said = config.tokens("no_rope_layers")
    turns = [bool(turn) for turn in said] or [(i + 1) % interval != 0 for i in range(layers)]
    if len(turns) != layers:
        raise config.wrong("no_rope_layers", f"{layers} numbers")
    kinds = config.words("layer_types")
    own = ["chunked_attention" if turn else "full_attention" for turn in turns]
    if kinds is not None and kinds != own:
        raise UnsupportedModel(
            f"{FILE}: layer_types other than what no_rope_layers says is not supported"
        )
    return turns


def _sparse(config: Fields, layers: int) -> tuple[bool, ...]:
    """``moe_layers``, or every ``interleave_moe_layer_step``-th layer."""
    if config.has("moe_layers"):
        chosen = config.tokens("moe_layers")
        return tuple(layer in chosen for layer in range(layers))
    step = config.count("interleave_moe_layer_step", 1)
    return tuple((layer + 1) % step == 0 for layer in range(layers))


def _context(config: Fields, positions: int, turns: list[bool]) -> int:
    """Within the first chunk, and where no temperature is tuned yet."""
    if any(turns) and not config.is_null("attention_chunk_size"):
        positions = min(positions, config.count("attention_chunk_size", 8192))
    if not all(turns) and _tunes(config):
        # Queries of position p grow with log(1 + floor((p + 1) / floor_scale)).
        positions = min(positions, config.count("floor_scale", 8192, least=2) - 1)
    return positions


def _tunes(config: Fields) -> bool:
    """The first checkpoints have a number for true."""
    try:
        return config.flag("attn_temperature_tuning", True)
    except CheckpointError:
        return config.whole("attn_temperature_tuning", 4) > 0

"""GLM-4 (arXiv:2406.12793): Llama that turns half of each head, neighbour with neighbour."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import DecoderConfig, build_decoder, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Of ``model_type`` glm."""
    return build_decoder(read_glm(config))


def read_glm(config: Fields) -> DecoderConfig:
    """``attention_bias``, true unless config.json says otherwise, covers q, k and v."""
    c = read_decoder(
        config,
        head_dim=128,
        kv_heads=2,
        max_positions=131072,
        eps=1.5625e-7,
        partial=0.5,
    )
    return replace(
        c,
        ropes=tuple(rope and replace(rope, adjacent=True) for rope in c.ropes),
        qkv_bias=config.flag("attention_bias", True),
        fused_mlp=True,
    )

"""GLM-4 (arXiv:2406.12793): Llama that rotates half of each head, in pairs of adjacent columns."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace a model of ``model_type`` glm."""
    return build_decoder(read_glm(config))


def read_glm(config: Fields) -> DecoderConfig:
    """Read the decoder.

    ``attention_bias``, true by default, covers q, k and v.
    """
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

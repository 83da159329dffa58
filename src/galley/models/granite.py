"""Granite 3 (dense): Llama with multipliers of embeddings, scores, the residual stream and logits."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; ``attention_bias`` and ``mlp_bias`` are separate flags."""
    c = multiplied(config, read_decoder(config))
    bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    return build_decoder(replace(c, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias))


def multiplied(config: Fields, c: DecoderConfig) -> DecoderConfig:
    """Return ``c`` with the multipliers; each is 1 if config.json does not specify it."""
    return replace(
        c,
        embedding_scale=config.number("embedding_multiplier", 1.0),
        attention_scale=config.number("attention_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logit_scale=1.0 / config.number("logits_scaling", 1.0),
    )

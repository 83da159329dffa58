"""A model family as an external package or a new contributor would write it: Seed-OSS."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Llama with biases on q, k and v, and on o if config.json says so."""
    return build_decoder(
        replace(
            read_decoder(config, head_dim=128),
            qkv_bias=config.flag("attention_bias", True),
            o_bias=config.flag("attention_out_bias", False),
            mlp_bias=config.flag("mlp_bias", False),
        )
    )

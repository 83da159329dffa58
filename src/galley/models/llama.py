"""Llama 2, 3, 3.1, 3.2 and every checkpoint whose ``model_type`` is ``llama``."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; ``attention_bias`` covers q, k, v and o."""
    bias = config.flag("attention_bias", False)
    mlp_bias = config.flag("mlp_bias", False)
    c = read_decoder(config)
    return build_decoder(replace(c, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias))

"""Qwen3 (dense): Llama with RMSNorm on each head of q and k."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import optional_windows, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; ``head_dim`` defaults to 128, whatever the hidden size."""
    bias = config.flag("attention_bias", False)
    c = read_decoder(config, head_dim=128)
    windows = optional_windows(config)
    return build_decoder(replace(c, windows=windows, qkv_bias=bias, o_bias=bias, qk_norm="head"))

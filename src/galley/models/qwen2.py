"""Qwen2 and Qwen2.5: Llama with biases on q, k and v."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import optional_windows, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; the bias is fixed by the family, and config.json has no field for it."""
    c = read_decoder(config)
    return build_decoder(replace(c, windows=optional_windows(config), qkv_bias=True))

"""Mistral 7B and its kin: Llama with a sliding window on every layer, unless it is null."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """A missing ``sliding_window`` is 4096, as in transformers; null is full attention."""
    window = config.count("sliding_window", 4096) if not config.is_null("sliding_window") else 0
    c = read_decoder(config, kv_heads=8)
    return build_decoder(replace(c, windows=(window,) * c.layers))

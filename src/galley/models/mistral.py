"""Mistral 7B and its kin: Llama with a sliding window on every layer, or on those that the config names."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder, read_decoder, windows_of
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """A missing ``sliding_window`` is 4096, as in transformers; null is full attention.

    Ministral's ``layer_types`` says which layers have the window, whatever the model calls itself.
    """
    c = read_decoder(config, kv_heads=8)
    return build_decoder(replace(c, windows=windows_of(config, [True] * c.layers)))

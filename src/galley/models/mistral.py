"""Mistral 7B and its relatives: Llama with a sliding window on all layers, or those the config names."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder, windows_of
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    A missing ``sliding_window`` is 4096, as in transformers; null is full attention. Ministral's
    ``layer_types`` names the layers with the window, whatever the ``model_type``.
    """
    c = read_decoder(config, kv_heads=8)
    return build_decoder(replace(c, windows=windows_of(config, [True] * c.layers)))

"""Gemma 3 (arXiv:2503.19786): Gemma 2 with norms of q and k, and two sets of rotations.

Layers with a window have other rotations than those without.
"""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, rope_by_window
from galley.models.fields import Fields
from galley.models.gemma2 import read_gemma


def build(config: Fields) -> Program:
    """Trace the model.

    A model that also reads images has its text model as ``text_config``; images are not supported.
    """
    if config.has("text_config"):
        text = config.section("text_config").with_defaults(vocab_size=262208, num_attention_heads=8)
        return build_decoder(replace(read_gemma3(text), prefix="language_model."))
    return build_decoder(read_gemma3(config))


def read_gemma3(config: Fields) -> DecoderConfig:
    """Read the decoder.

    Every sixth layer, or each ``sliding_window_pattern``-th, sees the whole context.
    """
    period = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
    c = read_gemma(config, period=period, max_positions=131072)
    theta, local_theta = (
        config.number("rope_theta", 1e6),
        config.number("rope_local_base_freq", 1e4),
    )
    c = rope_by_window(config, c, theta=theta, local_theta=local_theta)
    return replace(c, qk_norm="head")

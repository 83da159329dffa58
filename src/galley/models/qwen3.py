"""Qwen3 (dense): Llama with RMSNorm on each head of q and k."""

from galley.graph.program import Program
from galley.models.decoder import build_decoder, optional_windows, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """``head_dim`` defaults to 128, whatever the hidden size."""
    bias = config.flag("attention_bias", False)
    return build_decoder(
        read_decoder(
            config,
            windows=optional_windows(config),
            head_dim=128,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm=True,
        )
    )

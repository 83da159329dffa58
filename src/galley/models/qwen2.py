"""Qwen2 and Qwen2.5: Llama with biases on q, k and v."""

from galley.models.decoder import DecoderConfig, optional_windows, read_decoder
from galley.models.fields import Fields


def read_config(config: Fields) -> DecoderConfig:
    """The bias is the family's; config.json does not name it."""
    return read_decoder(config, windows=optional_windows(config), qkv_bias=True)

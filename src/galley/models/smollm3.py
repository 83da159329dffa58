"""SmolLM3: Llama with some layers without rotations (NoPE, arXiv:2501.18795)."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder, windows_of
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    ``no_rope_layers`` has a 0 for each layer without rotations, every fourth by default.
    """
    c = read_decoder(config, kv_heads=4, max_positions=32768, theta=2e6, tied=True)
    interval = config.count("no_rope_layer_interval", 4)
    turns = config.tokens("no_rope_layers") or [(i + 1) % interval for i in range(c.layers)]
    if len(turns) != c.layers:
        raise config.wrong("no_rope_layers", f"{c.layers} numbers")
    windows = c.windows
    if config.flag("use_sliding_window", False) and config.has("sliding_window"):
        windows = windows_of(config, [not turn for turn in turns])
    bias = config.flag("attention_bias", False)
    return build_decoder(
        replace(
            c,
            ropes=tuple(rope if turn else None for rope, turn in zip(c.ropes, turns, strict=True)),
            windows=windows,
            qkv_bias=bias,
            o_bias=bias,
            mlp_bias=config.flag("mlp_bias", False),
        )
    )

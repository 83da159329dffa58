"""Phi-3, Phi-3.5 and Phi-4 (text): Llama with q, k, v in one tensor and gate and up in one."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.fields import Fields
from galley.models.rope import SECTIONS


def build(config: Fields) -> Program:
    """Trace the model.

    LongRoPE models have the context that their short factors are for; see ``models/rope.py``.
    """
    rope = config.section(*SECTIONS)
    rope.choice(("rope_type", "type"), ("default", "longrope", "su"), default="default")
    window = config.count("sliding_window") if config.has("sliding_window") else 0
    c = read_decoder(config, max_positions=4096, eps=1e-5, partial=1.0)
    return build_decoder(replace(c, windows=(window,) * c.layers, fused_qkv="all", fused_mlp=True))

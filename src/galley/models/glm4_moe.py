"""GLM-4.5 and GLM-4.6 (arXiv:2508.06471): Llama with experts, chosen as in DeepSeek-V3."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.experts import read_deepseek
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    Half of each head's columns are rotated, unless config.json specifies another share.
    """
    c = read_decoder(config, kv_heads=8, max_positions=131072, eps=1e-5, partial=0.5)
    return build_decoder(
        replace(
            c,
            qkv_bias=config.flag("attention_bias", False),
            qk_norm="head" if config.flag("use_qk_norm", False) else "",
            experts=read_deepseek(config, c.layers),
        )
    )

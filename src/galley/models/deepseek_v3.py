"""DeepSeek-V3 and R1 (arXiv:2412.19437): V2's latent attention, experts chosen by sigmoid scores."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.deepseek_v2 import read_latent_decoder
from galley.models.experts import read_deepseek
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    Rotated pairs are adjacent columns, unless ``rope_interleave`` is false.
    """
    adjacent = config.flag("rope_interleave", True)
    c = read_latent_decoder(config, max_positions=4096, adjacent=adjacent)
    return build_decoder(replace(c, experts=read_deepseek(config, c.layers, dense=3)))

"""Cohere's Command R7B and Command A: Command R with windows, and rotations only in layers with one."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.cohere import read_cohere
from galley.models.decoder import build_decoder
from galley.models.decoder_config import windows_of
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    Every fourth layer, or each ``sliding_window_pattern``-th, sees the whole context.
    """
    c = read_cohere(config, theta=1e4)
    period = config.count("sliding_window_pattern", 4)
    windows = windows_of(config, [(layer + 1) % period > 0 for layer in range(c.layers)])
    ropes = (rope if window else None for rope, window in zip(c.ropes, windows, strict=True))
    return build_decoder(replace(c, windows=windows, ropes=tuple(ropes)))

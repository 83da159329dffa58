"""OLMo 3: OLMo 2 with windows; rotations are scaled in layers without one."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import rope_by_window, windows_of
from galley.models.fields import Fields
from galley.models.olmo2 import read_olmo2


def build(config: Fields) -> Program:
    """Trace the model.

    Every fourth layer sees the whole context, if config.json has no ``layer_types``.
    """
    c = read_olmo2(config)
    c = replace(c, windows=windows_of(config, [(layer + 1) % 4 > 0 for layer in range(c.layers)]))
    theta = config.number("rope_theta", 5e5)
    return build_decoder(rope_by_window(config, c, theta=theta, local_theta=theta))

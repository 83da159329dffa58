"""gpt-oss (arXiv:2508.10925): experts with biases, attention sinks, and windows in every other layer."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder, windows_of
from galley.models.experts import Experts, read_counts
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    ``intermediate_size`` is the width of an expert; experts are named as in ``formats/stacked.py``.
    """
    c = read_decoder(config, head_dim=64, max_positions=131072, eps=1e-5, theta=150000.0)
    experts, per_token = read_counts(config, "num_local_experts", per_token=4)
    mixture = Experts(
        sparse=(True,) * c.layers,
        experts=experts,
        per_token=per_token,
        width=c.intermediate_size,
        normalize=True,
        router="router",
        router_bias=True,
        expert_bias=True,
        alpha=config.number("swiglu_alpha", 1.702),
        limit=config.number("swiglu_limit", 7.0),
    )
    bias = config.flag("attention_bias", True)
    windows = windows_of(
        config.with_defaults(sliding_window=128), [i % 2 == 0 for i in range(c.layers)]
    )
    return build_decoder(
        replace(c, windows=windows, qkv_bias=bias, o_bias=bias, sinks=True, experts=mixture)
    )

"""Mixtral (arXiv:2401.04088): Mistral with experts in every layer."""

from dataclasses import replace

from galley.graph.program import Program
from galley.graph.trace import ExpertNames
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.experts import Experts, read_counts
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    ``intermediate_size`` is the width of an expert. Without ``sliding_window``, attention is full.
    """
    c = read_decoder(config, kv_heads=8, max_positions=4096 * 32, eps=1e-5, theta=1e6)
    window = config.count("sliding_window", 0) if config.has("sliding_window") else 0
    experts, per_token = read_counts(config, "num_local_experts", per_token=2)
    mixture = Experts(
        sparse=(True,) * c.layers,
        experts=experts,
        per_token=per_token,
        width=c.intermediate_size,
        normalize=True,
        block="block_sparse_moe",
        parts=ExpertNames(gate="w1", up="w3", down="w2"),
    )
    return build_decoder(replace(c, windows=(window,) * c.layers, experts=mixture))

"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with experts, and with an MLP that all tokens share."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder, windows_of
from galley.models.experts import Experts, read_counts, sparse_layers
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; layers without experts have an MLP of ``intermediate_size``."""
    c = read_decoder(config)
    experts, per_token = read_counts(config, "num_experts", "num_local_experts", per_token=4)
    mixture = Experts(
        sparse=sparse_layers(config),
        experts=experts,
        per_token=per_token,
        width=config.width("moe_intermediate_size"),
        normalize=config.flag("norm_topk_prob", False),
        shared_width=config.width("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    windows = c.windows
    if config.flag("use_sliding_window", False):
        first = config.whole("max_window_layers", 28)
        windows = windows_of(config, [i % 2 == 0 and i < first for i in range(c.layers)])
    bias = config.flag("qkv_bias", True)
    return build_decoder(replace(c, windows=windows, qkv_bias=bias, experts=mixture))

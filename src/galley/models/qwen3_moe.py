"""Qwen3-MoE (arXiv:2505.09388): Qwen3 with experts in its layers."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.experts import Experts, read_counts, sparse_layers
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; a sliding window, if it is used, applies to all layers."""
    bias = config.flag("attention_bias", False)
    c = read_decoder(config)
    experts, per_token = read_counts(config, "num_experts", "num_local_experts", per_token=8)
    mixture = Experts(
        sparse=sparse_layers(config),
        experts=experts,
        per_token=per_token,
        width=config.width("moe_intermediate_size"),
        normalize=config.flag("norm_topk_prob", False),
    )
    slides = config.flag("use_sliding_window", False) and not config.is_null("sliding_window")
    window = config.count("sliding_window", 4096) if slides else 0
    return build_decoder(
        replace(
            c,
            windows=(window,) * c.layers,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="head",
            experts=mixture,
        )
    )

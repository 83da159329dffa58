"""Qwen3-Next: Qwen3-MoE with the gated delta rule in place of most attention, and gates on the rest."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import layer_kinds, read_decoder
from galley.models.delta_rule import read_delta_rule
from galley.models.experts import Experts, read_counts, sparse_layers
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model; every fourth layer has attention, unless config.json specifies others."""
    bias = config.flag("attention_bias", False)
    c = read_decoder(config, head_dim=256, kv_heads=2, max_positions=32768, partial=0.25)
    interval = config.count("full_attention_interval", 4)
    kinds = ["linear_attention" if (i + 1) % interval else "attention" for i in range(c.layers)]
    recurrent = layer_kinds(config, c.layers, default=kinds)
    return build_decoder(
        replace(
            c,
            qkv_bias=bias,
            o_bias=bias,
            qk_norm="head",
            norm_offset=1.0,
            output_gate=True,
            experts=_experts(config),
            recurrent=read_delta_rule(config, recurrent) if any(recurrent) else None,
        )
    )


def _experts(config: Fields) -> Experts | None:
    """Read the experts; return None if all layers have an MLP of ``intermediate_size``."""
    sparse = sparse_layers(config)
    if not any(sparse):
        return None
    experts, per_token = read_counts(config, "num_experts", "num_local_experts", per_token=10)
    return Experts(
        sparse=sparse,
        experts=experts,
        per_token=per_token,
        width=config.width("moe_intermediate_size", 512),
        normalize=config.flag("norm_topk_prob", True),
        shared_width=config.width("shared_expert_intermediate_size", 512),
        shared_gate=True,
    )

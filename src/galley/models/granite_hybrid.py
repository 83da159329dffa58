"""Granite 4: Granite with Mamba-2 in place of most attention, and with experts in addition to the MLP."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, Names, layer_kinds, read_decoder
from galley.models.experts import Experts, read_counts
from galley.models.fields import Fields
from galley.models.granite import multiplied
from galley.models.mamba import Mamba, read_mamba


def build(config: Fields) -> Program:
    """Trace the model.

    ``intermediate_size`` is the width of an expert; there are rotations if
    ``position_embedding_type`` is "rope".
    """
    config.choice(("normalization_function",), ("rmsnorm",), default="rmsnorm")
    turns = config.choice(("position_embedding_type",), ("nope", "rope"), default="nope") == "rope"
    c = multiplied(config, read_decoder(config))
    bias = config.flag("attention_bias", False)
    return build_decoder(
        replace(
            c,
            intermediate_size=config.width("shared_intermediate_size", 1024),
            ropes=c.ropes if turns else (None,) * c.layers,
            qkv_bias=bias,
            o_bias=bias,
            fused_mlp=True,
            names=Names(mlp="shared_mlp", gate_up="input_linear", down="output_linear"),
            experts=_experts(config, c),
            recurrent=_mamba(config, c),
        )
    )


def _experts(config: Fields, c: DecoderConfig) -> Experts | None:
    if config.whole("num_local_experts", 8) == 0:
        return None
    experts, per_token = read_counts(
        config.with_defaults(num_local_experts=8), "num_local_experts", per_token=2
    )
    return Experts(
        sparse=(True,) * c.layers,
        experts=experts,
        per_token=per_token,
        width=c.intermediate_size,
        normalize=True,
        added_to_mlp=True,
        block="block_sparse_moe",
        router="router.layer",
    )


def _mamba(config: Fields, c: DecoderConfig) -> Mamba | None:
    """Read the Mamba-2 layers; return None if all layers have attention."""
    recurrent = layer_kinds(config, c.layers, default=["mamba"] * c.layers)
    return read_mamba(config, recurrent, c.hidden_size) if any(recurrent) else None

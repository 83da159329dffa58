"""GPT-NeoX and Pythia (arXiv:2204.06745, arXiv:2304.01373): attention parallel to an ungated MLP."""

from dataclasses import replace
from typing import Final

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import Names, Norms, read_decoder
from galley.models.fields import Fields

NAMES: Final = Names(
    embedding="gpt_neox.embed_in",
    layers="gpt_neox.layers",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    attention="attention",
    qkv="query_key_value",
    o="dense",
    up="dense_h_to_4h",
    down="dense_4h_to_h",
)
_TANH: Final = ("gelu_fast", "gelu_new", "gelu_pytorch_tanh")
"""Names of the tanh approximation."""


def build(config: Fields) -> Program:
    """Trace the model.

    ``rotary_pct`` of each head's columns are rotated, a quarter by default. With
    ``use_parallel_residual``, the default, the MLP has a separate norm of the layer's input.
    """
    c = read_decoder(
        config,
        activations=("gelu", *_TANH),
        theta=config.number("rotary_emb_base", 1e4),
        partial=config.number("rotary_pct", 0.25),
    )
    bias = config.flag("attention_bias", True)
    exact = config.choice(("hidden_act",), ("gelu", *_TANH), default="gelu") == "gelu"
    return build_decoder(
        replace(
            c,
            kv_heads=c.heads,
            eps=config.number("layer_norm_eps", 1e-5),
            norms=Norms(kind="layer"),
            parallel=config.flag("use_parallel_residual", True),
            fused_qkv="head",
            activation="gelu" if exact else "gelu_tanh",
            gated=False,
            names=NAMES,
            qkv_bias=bias,
            o_bias=bias,
            mlp_bias=True,
        )
    )

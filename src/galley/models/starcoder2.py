"""StarCoder2 (arXiv:2402.19173): layer norms, biases, and an MLP without a gate."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import Names, Norms, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    ``use_bias``, true by default, covers all linear layers but the last.
    """
    c = read_decoder(
        config, kv_heads=2, activations=("gelu_pytorch_tanh",), max_positions=4096, tied=True
    )
    bias = config.flag("use_bias", True)
    window = config.count("sliding_window") if config.has("sliding_window") else 0
    return build_decoder(
        replace(
            c,
            eps=config.number("norm_epsilon", 1e-5),
            windows=(window,) * c.layers,
            norms=Norms(kind="layer"),
            activation="gelu_tanh",
            gated=False,
            names=Names(up="c_fc", down="c_proj"),
            qkv_bias=bias,
            o_bias=bias,
            mlp_bias=bias,
        )
    )

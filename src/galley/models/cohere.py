"""Cohere's Command R and Aya: parallel attention and MLP, layer norms without biases, scaled logits."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, Norms, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace the model.

    With ``use_qk_norm``, as in Command R+, each head of q and k is normed with separate weights.
    """
    c = read_cohere(config, theta=5e5)
    return build_decoder(replace(c, qk_norm="head" if config.flag("use_qk_norm", False) else ""))


def read_cohere(config: Fields, *, theta: float) -> DecoderConfig:
    """Read the fields that both generations share.

    ``theta`` is the base of their rotations, if config.json does not specify it.
    """
    c = read_decoder(config, max_positions=8192, theta=theta, tied=True)
    bias = config.flag("attention_bias", False)
    return replace(
        c,
        eps=config.number("layer_norm_eps", 1e-5),
        ropes=tuple(rope and replace(rope, adjacent=True) for rope in c.ropes),
        norms=Norms(kind="unbiased", before_mlp=None),
        parallel=True,
        qkv_bias=bias,
        o_bias=bias,
        logit_scale=config.number("logit_scale", 0.0625),
    )

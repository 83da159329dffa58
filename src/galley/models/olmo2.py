"""OLMo 2 (arXiv:2501.00656): Llama with norms after attention and MLP, and over all heads of q and k."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, Norms, read_decoder
from galley.models.fields import Fields


def build(config: Fields) -> Program:
    """Trace a model of ``model_type`` olmo2."""
    return build_decoder(read_olmo2(config))


def read_olmo2(config: Fields) -> DecoderConfig:
    """Read the decoder; ``attention_bias`` covers q, k, v and o."""
    bias = config.flag("attention_bias", False)
    return replace(
        read_decoder(config, eps=1e-5),
        qkv_bias=bias,
        o_bias=bias,
        qk_norm="width",
        norms=Norms(
            before_attention=None,
            after_attention="post_attention_layernorm",
            before_mlp=None,
            after_mlp="post_feedforward_layernorm",
        ),
    )

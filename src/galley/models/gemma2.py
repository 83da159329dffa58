"""Gemma 2 (arXiv:2408.00118): sandwich norms, capped scores and logits, a window on every other layer."""

from dataclasses import replace

from galley.errors import UnsupportedModel
from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, Norms, read_decoder, windows_of
from galley.models.fields import FILE, Fields


def build(config: Fields) -> Program:
    """Trace the model.

    Scores are capped at 50 and logits at 30, unless config.json specifies other values.
    """
    return build_decoder(read_gemma(config, period=2, attention_cap=50.0, logit_cap=30.0))


def read_gemma(
    config: Fields,
    *,
    period: int,
    attention_cap: float = 0.0,
    logit_cap: float = 0.0,
    max_positions: int = 8192,
) -> DecoderConfig:
    """Read the fields that Gemma 2 and 3 share.

    Norms multiply by their weights plus one. ``norm_offset_in_weights``, which only configs of GGUF
    files have, means that the weights already include the one.

    Args:
        config: fields of the model.
        period: each ``period``-th layer has no window, if config.json has no ``layer_types``.
        attention_cap, logit_cap: caps if config.json does not specify them; with 0 or null there is
            none.
        max_positions: context length if config.json does not specify it.
    """
    if config.flag("use_bidirectional_attention", False):
        raise UnsupportedModel(f"{FILE}: use_bidirectional_attention is not supported")
    c = read_decoder(
        config,
        head_dim=256,
        kv_heads=4,
        activations=("gelu_pytorch_tanh",),
        max_positions=max_positions,
        tied=True,
    )
    bias = config.flag("attention_bias", False)
    return replace(
        c,
        windows=windows_of(config, [(layer + 1) % period > 0 for layer in range(c.layers)]),
        attention_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=_cap(config, "attn_logit_softcapping", attention_cap),
        logit_cap=_cap(config, "final_logit_softcapping", logit_cap),
        embedding_scale=c.hidden_size**0.5,
        norm_offset=0.0 if config.flag("norm_offset_in_weights", False) else 1.0,
        norms=Norms(
            after_attention="post_attention_layernorm",
            before_mlp="pre_feedforward_layernorm",
            after_mlp="post_feedforward_layernorm",
        ),
        activation="gelu_tanh",
        qkv_bias=bias,
        o_bias=bias,
    )


def _cap(config: Fields, name: str, default: float) -> float:
    if config.is_null(name) or (default == 0.0 and not config.has(name)):
        return 0.0
    return config.number(name, default)

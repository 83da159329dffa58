"""DeepSeek-V2 (arXiv:2405.04434): latent attention, and routed and shared experts after dense layers."""

from dataclasses import replace

from galley.errors import UnsupportedModel
from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import DecoderConfig, read_decoder
from galley.models.experts import Experts, read_deepseek
from galley.models.fields import FILE, Fields
from galley.models.latent import attention_scale, read_latent


def build(config: Fields) -> Program:
    """Trace the model.

    V2's experts are scored by softmax, and a group by its best expert.
    """
    c = read_latent_decoder(config, max_positions=2048, adjacent=True)
    method = config.choice(("topk_method",), ("greedy", "group_limited_greedy"), "greedy")
    if config.flag("norm_topk_prob", False):
        raise UnsupportedModel(
            f"{FILE}: norm_topk_prob is true, which is not supported for DeepSeek-V2"
        )
    experts = read_deepseek(config, c.layers, grouped=method != "greedy", dense=0)
    return build_decoder(replace(c, experts=_softmax(experts)))


def _softmax(experts: Experts) -> Experts:
    return replace(experts, scores="softmax", correction=False, normalize=False, group_best=1)


def read_latent_decoder(config: Fields, *, max_positions: int, adjacent: bool) -> DecoderConfig:
    """Read a decoder with latent attention, without its experts.

    Args:
        config: fields of the model.
        max_positions: context length if config.json does not specify it.
        adjacent: whether rotated pairs are adjacent columns.
    """
    latent = read_latent(config)
    c = read_decoder(config, head_dim=latent.rotated, max_positions=max_positions)
    ropes = tuple(None if rope is None else replace(rope, adjacent=adjacent) for rope in c.ropes)
    scale = attention_scale(config, latent)
    mlp_bias = config.flag("mlp_bias", False)
    return replace(c, latent=latent, ropes=ropes, attention_scale=scale, mlp_bias=mlp_bias)

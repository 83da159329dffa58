"""OLMoE (arXiv:2409.02060): OLMo with experts in every layer, and norms over all heads of q and k."""

from dataclasses import replace

from galley.errors import UnsupportedModel
from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import read_decoder
from galley.models.experts import Experts, read_counts
from galley.models.fields import FILE, Fields


def build(config: Fields) -> Program:
    """Trace the model; ``intermediate_size`` is the width of an expert.

    Raises:
        UnsupportedModel: ``clip_qkv`` is set, which it is in no published checkpoint.
    """
    if config.has("clip_qkv"):
        raise UnsupportedModel(f"{FILE}: clip_qkv is not supported")
    bias = config.flag("attention_bias", False)
    c = read_decoder(config, max_positions=4096, eps=1e-5)
    experts, per_token = read_counts(config, "num_experts", "num_local_experts", per_token=8)
    mixture = Experts(
        sparse=(True,) * c.layers,
        experts=experts,
        per_token=per_token,
        width=c.intermediate_size,
        normalize=config.flag("norm_topk_prob", False),
    )
    return build_decoder(replace(c, qkv_bias=bias, o_bias=bias, qk_norm="width", experts=mixture))

"""GLM-4-0414 and GLM-Z1: GLM-4 with norms before and after attention and MLP."""

from dataclasses import replace

from galley.graph.program import Program
from galley.models.decoder import build_decoder
from galley.models.decoder_config import Norms
from galley.models.fields import Fields
from galley.models.glm import read_glm


def build(config: Fields) -> Program:
    """Trace a model of ``model_type`` glm4."""
    norms = Norms(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm")
    return build_decoder(replace(read_glm(config), norms=norms))

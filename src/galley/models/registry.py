"""``model_type`` -> family. A family's module is imported only when a checkpoint needs it."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from galley.errors import UnsupportedModel, shown
from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.models.fields import FILE, UNBOUNDED, Bounds, Fields
from galley.models.heads import own_head, untied

FAMILIES: Final[Mapping[str, str]] = {
    "cohere": "galley.models.cohere",
    "cohere2": "galley.models.cohere2",
    "deepseek_v2": "galley.models.deepseek_v2",
    "deepseek_v3": "galley.models.deepseek_v3",
    "gemma2": "galley.models.gemma2",
    "gemma3": "galley.models.gemma3",
    "gemma3_text": "galley.models.gemma3",
    "glm": "galley.models.glm",
    "glm4": "galley.models.glm4",
    "glm4_moe": "galley.models.glm4_moe",
    "gpt_neox": "galley.models.gpt_neox",
    "gpt_oss": "galley.models.gpt_oss",
    "granite": "galley.models.granite",
    "granitemoehybrid": "galley.models.granite_hybrid",
    "llama": "galley.models.llama",
    "llama4": "galley.models.llama4",
    "llama4_text": "galley.models.llama4",
    "ministral": "galley.models.mistral",
    "mistral": "galley.models.mistral",
    "mixtral": "galley.models.mixtral",
    "olmo2": "galley.models.olmo2",
    "olmo3": "galley.models.olmo3",
    "olmoe": "galley.models.olmoe",
    "phi3": "galley.models.phi3",
    "qwen2": "galley.models.qwen2",
    "qwen2_moe": "galley.models.qwen2_moe",
    "qwen3": "galley.models.qwen3",
    "qwen3_moe": "galley.models.qwen3_moe",
    "qwen3_next": "galley.models.qwen3_next",
    "smollm3": "galley.models.smollm3",
    "starcoder2": "galley.models.starcoder2",
    "whisper": "galley.models.whisper",
}

ENCODERS: Final[Mapping[str, str]] = {
    "bert": "galley.models.bert",
    "modernbert": "galley.models.modernbert",
    "nomic_bert": "galley.models.nomic_bert",
    "roberta": "galley.models.bert",
    "xlm-roberta": "galley.models.bert",
}
"""Encoder families, which read whole texts; their programs end in rows, not in logits."""


def build_program(
    config: Mapping[str, Any], weights: Weights | None = None, *, context: int | None = None
) -> Program:
    """Trace the model that ``config.json`` describes.

    Args:
        config: contents of ``config.json``.
        weights: weights of the checkpoint; sizes that none of its tensors can have are refused
            before anything is allocated for them.
        context: tokens of the longest text to be supported; some models compute all texts
            differently if that exceeds the length that they were first trained for.

    Raises:
        UnsupportedModel: the family (the message lists the known ones) or a feature is unknown.
        CheckpointError: a field is missing or wrong.
    """
    family = config.get("model_type")
    known = {**FAMILIES, **ENCODERS}
    if not isinstance(family, str) or family not in known:
        raise UnsupportedModel(
            f"{FILE}: model_type {shown(family)} is not supported; known: {', '.join(sorted(known))}"
        )
    if family in FAMILIES and config.get("is_causal") is False:
        raise UnsupportedModel(
            f"{FILE}: is_causal is false; {family} with bidirectional attention is not supported"
        )
    module = importlib.import_module(known[family])
    bounds = UNBOUNDED if weights is None else Bounds.of(weights)
    program: Program = module.build(Fields(config, bounds=bounds, context=context))
    if weights is not None and own_head(program, weights) is not None:
        program = module.build(Fields(untied(config), bounds=bounds, context=context))
    return program

"""``model_type`` -> family. A family's module is imported only when a checkpoint asks for it."""

import importlib
from collections.abc import Mapping
from typing import Any, Final

from galley.errors import UnsupportedModel, shown
from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.models.fields import FILE, UNBOUNDED, Bounds, Fields

FAMILIES: Final[Mapping[str, str]] = {
    "gemma2": "galley.models.gemma2",
    "gemma3": "galley.models.gemma3",
    "gemma3_text": "galley.models.gemma3",
    "granite": "galley.models.granite",
    "llama": "galley.models.llama",
    "mistral": "galley.models.mistral",
    "olmo2": "galley.models.olmo2",
    "phi3": "galley.models.phi3",
    "qwen2": "galley.models.qwen2",
    "qwen3": "galley.models.qwen3",
    "smollm3": "galley.models.smollm3",
    "whisper": "galley.models.whisper",
}


def build_program(config: Mapping[str, Any], weights: Weights | None = None) -> Program:
    """Trace the model that ``config.json`` describes.

    Args:
        config: as it is.
        weights: of the checkpoint; sizes that no tensor of it could have are refused before anything is
            made for them.

    Raises:
        UnsupportedModel: an unknown family (the message lists the known ones) or feature.
        CheckpointError: a field is missing or wrong.
    """
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedModel(
            f"{FILE}: model_type {shown(family)} is not supported; known: {', '.join(sorted(FAMILIES))}"
        )
    module = importlib.import_module(FAMILIES[family])
    bounds = UNBOUNDED if weights is None else Bounds.of(weights)
    program: Program = module.build(Fields(config, bounds=bounds))
    return program

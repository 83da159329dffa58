"""Tensors of a checkpoint that the model does not read: its config is wrong, or they are harmless."""

import re
from collections.abc import Mapping
from typing import Any, Final

from galley.errors import CheckpointError
from galley.formats.weights import DenseWeight, Weights
from galley.graph.program import Program
from galley.models.fields import FILE, Fields
from galley.models.heads import is_head

HARMLESS: Final = re.compile(
    r".*\.rotary_emb\.(inv_freq|cos_cached|sin_cached)"  # buffers saved by early versions of transformers
    r"|.*\.(masked_bias|attn\.bias|attention\.bias)"  # causal masks, saved as buffers
    r"|(model\.)?mtp(_layers)?\..*"  # multi-token prediction
    r"|(vision_tower|vision_model|multi_modal_projector)\..*"  # the image part of a text model
)
"""Tensors that may be ignored: they follow from the config, or are for draft tokens or images."""

_LAYER: Final = re.compile(r"(.+?\.layers)\.(\d{1,9})\.")
_LAYER_FIELDS: Final = {
    "model.layers": "num_hidden_layers",
    "gpt_neox.layers": "num_hidden_layers",
    "model.encoder.layers": "encoder_layers",
    "model.decoder.layers": "decoder_layers",
}
_SHOWN: Final = 4


def check_surplus(
    program: Program,
    weights: Weights,
    config: Mapping[str, Any],
    *,
    folder: str,
    unread: re.Pattern[str] | None = None,
) -> None:
    """Refuse a checkpoint with tensors that the program does not read.

    Its config describes another model. Not refused are tensors that :data:`HARMLESS` or ``unread``
    match, the layers of multi-token prediction that ``num_nextn_predict_layers`` counts, output
    layers that copy the embedding, biases of zeros, which some GPTQ tools add, and tensors without
    values.

    Raises:
        CheckpointError: there is such a tensor; the error names the first ones, and the field of
            config.json if one belongs to a further layer.
    """
    used = program.all_shapes
    stacks = _stacks(used)
    drafting = Fields(config).whole("num_nextn_predict_layers", 0)
    surplus = [
        name
        for name in weights
        if name not in used
        and not is_head(name)
        and not HARMLESS.fullmatch(name)
        and not (unread and unread.fullmatch(name))
        and not _drafts(name, stacks, drafting)
        and not _zero_bias(name, weights)
        and 0 not in weights.info(name).shape
    ]
    if not surplus:
        return
    names = ", ".join(surplus[:_SHOWN])
    if len(surplus) > _SHOWN:
        names += f" and {len(surplus) - _SHOWN} more"
    for name in surplus:
        layer = _LAYER.match(name)
        if layer and int(layer[2]) >= stacks.get(layer[1], 0) > 0 and layer[1] in _LAYER_FIELDS:
            raise CheckpointError(
                f"is {stacks[layer[1]]}, but {folder} has tensors of more layers: {names}",
                file=FILE,
                field=_LAYER_FIELDS[layer[1]],
            )
    raise CheckpointError(
        f"the model in {FILE} (model_type {config.get('model_type')}) does not use {names}; without "
        "them, answers would be wrong",
        file=folder,
        field=surplus[0],
    )


def _stacks(names: Mapping[str, object]) -> dict[str, int]:
    """Return the name of each stack of layers -> the number of layers that the program has."""
    stacks: dict[str, int] = {}
    for name in names:
        if layer := _LAYER.match(name):
            stacks[layer[1]] = max(stacks.get(layer[1], 0), int(layer[2]) + 1)
    return stacks


def _zero_bias(name: str, weights: Weights) -> bool:
    if not name.endswith(".bias") or len(weights.info(name).shape) != 1:
        return False
    weight = weights[name]
    return isinstance(weight, DenseWeight) and not weight.data.any()


def _drafts(name: str, stacks: Mapping[str, int], layers: int) -> bool:
    layer = _LAYER.match(name)
    return layer is not None and 0 <= int(layer[2]) - stacks.get(layer[1], 0) < layers

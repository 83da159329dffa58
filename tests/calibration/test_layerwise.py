"""A model run slice by slice gives the bits of the whole, and accepts replaced weights."""

import numpy as np
import pytest

from galley.calibration.forward import TeacherForced
from galley.calibration.layerwise import Layerwise
from galley.engine.read_model import read_model
from galley.formats.values import dequantize
from galley.formats.weights import DenseWeight
from galley.ops.choice import choose_executor
from galley.quant.rtn import quantize_int8
from galley.settings.engine import EngineSettings
from tests.checkpoints import random_ids
from tests.conftest import CheckpointMaker

SETTINGS = EngineSettings(dtype="float32", kv_dtype="float32", threads=1)
LENGTHS = (70, 3, 130)


def texts() -> list[list[int]]:
    return [random_ids(seed, length) for seed, length in enumerate(LENGTHS)]


@pytest.mark.parametrize("variant", ["llama", "llama-mha-tied", "mistral-window", "qwen3"])
def test_slices_give_the_logits_of_the_whole(checkpoint: CheckpointMaker, variant: str) -> None:
    folder = checkpoint(variant)
    _, factory = choose_executor("auto", "cpu")
    model = read_model(SETTINGS, folder)
    layers = Layerwise(model.program, model.weights, texts(), factory, model.options)
    seen = [op.tensor("weight") for b in layers.kept for op in layers.linears(b)]
    linears = [op.tensor("weight") for op in model.program.ops if op.name == "linear"]
    assert sorted(seen) == sorted(linears)
    for buffer in layers.kept:
        assert len(layers.advance(buffer)) == sum(LENGTHS)
        assert len(layers.values) <= 2
    sliced = np.concatenate([logits.copy() for _, logits in layers.logits()])
    with TeacherForced(SETTINGS, folder, longest=max(LENGTHS)) as whole:
        expected = np.concatenate([x.copy() for t in texts() for _, x in whole.logits(t)])
    assert np.array_equal(sliced, expected)


def test_later_slices_see_replaced_weights(checkpoint: CheckpointMaker) -> None:
    _, factory = choose_executor("auto", "cpu")
    model = read_model(SETTINGS, checkpoint("llama"))
    layers = Layerwise(model.program, model.weights, texts(), factory, model.options)
    buffer = next(b for b in layers.kept if layers.linears(b))
    for each in layers.kept[: layers.kept.index(buffer) + 1]:
        rows = layers.advance(each)
    name = "model.layers.0.self_attn.v_proj.weight"
    weight = model.weights[name]
    assert isinstance(weight, DenseWeight)
    layers.replace(quantize_int8(weight))
    attended = layers.advance(layers.kept[layers.kept.index(buffer) + 1])
    # The first token of a text attends to itself alone.
    value = rows[:1] @ dequantize(quantize_int8(weight)).T
    heads = np.repeat(value.reshape(2, -1), 2, axis=0).reshape(1, -1)
    assert np.abs(attended[:1] - heads).max() < 1e-5

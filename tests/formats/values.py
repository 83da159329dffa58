"""Values of typed weights, and the logits of a model that has them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from galley.engine.read_model import read_model
from galley.formats.values import to_float32
from galley.formats.weights import DenseWeight, IntWeight, Weight
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import forward
from galley.settings.engine import EngineSettings
from tests.native.harness import ragged

Floats = Any


def values_of(weight: Weight) -> Floats:
    """Return float32 [outputs, depth], by the definition of the kinds."""
    if isinstance(weight, DenseWeight):
        return to_float32(weight)
    assert isinstance(weight, IntWeight)
    q = weight.q.astype(np.float32)
    group = weight.group or q.shape[1]
    groups = np.arange(q.shape[1]) // group
    scales = weight.scales[:, groups]
    if weight.minima is not None:
        return q * scales + weight.minima[:, groups]
    if weight.bits == 4:
        zeros = 8.0 if weight.zeros is None else weight.zeros[:, groups].astype(np.float32)
        return (q - zeros) * scales
    return q * scales


def galleys_logits(path: Path, ids: list[int], **settings: Any) -> Floats:
    """Return logits in float32, by the native executor."""
    floats: dict[str, Any] = {
        "activations": "float32",
        "weight_dtype": "float32",
        "kv_dtype": "float32",
    }
    model = read_model(EngineSettings(**{**floats, **settings}), path)
    options = dataclasses.replace(model.options, weight_cache=None, threads=1)
    executor = CpuExecutor(model.program, model.weights, options)
    groups = len(model.program.kv_groups)
    executor.allocate_kv(4 * groups)
    return forward(executor, ragged([(ids, len(ids))], first_block=0, groups=groups)).copy()


def relative(got: Floats, expected: Floats) -> float:
    """Return the greatest difference, as a share of the greatest value."""
    return float(np.abs(got - expected).max() / np.abs(expected).max())

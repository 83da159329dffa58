"""Quantization of the experts of a mixture: each is calibrated with the rows that are routed to it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.calibration.compressed import names_in
from galley.engine.read_model import Model
from galley.errors import UnsupportedModel
from galley.formats.stacked import is_stacked
from galley.formats.values import dequantize, to_float32
from galley.formats.weights import DenseWeight, Floats, IntWeight
from galley.graph.program import Op, Program

EXPERT_METHODS: Final = ("rtn", "mse", "gptq")
"""Methods that quantize experts; the others scale the inputs of all experts at once."""

ROLES: Final = ("gate", "up", "down")
"""Matrices of an expert, in the order in which they are quantized."""

Values: TypeAlias = dict[str, Floats]
"""Matrix -> its values."""

Calibrated: TypeAlias = Callable[[Sequence[str], Floats, Floats], list[IntWeight]]
"""Names of matrices, their inputs and the original inputs [rows, depth] -> their integers."""


@dataclass(frozen=True)
class Quantized:
    """The experts of one layer, quantized.

    Attributes:
        calibrated: matrices whose integers follow from their inputs.
        nearest: matrices with fewer rows of inputs than columns, rounded to nearest.
        rows: expert with such matrices -> rows that were routed to it.
    """

    calibrated: list[IntWeight]
    nearest: list[IntWeight]
    rows: dict[str, int]


class Inputs(NamedTuple):
    """The inputs of a layer's experts.

    Attributes:
        rows: [tokens, depth], as they are at present.
        originals: the same rows in the original model.
        routes: [tokens, 2 * per_token]; see ``route`` in ``graph/signatures.py``.
    """

    rows: Floats
    originals: Floats
    routes: Floats


def expert_ops(program: Program) -> list[Op]:
    """Return the ops that run experts."""
    return [op for op in program.ops if op.name == "experts"]


def expert_weights(op: Op) -> list[str]:
    """Return the matrices of all experts, one expert after another."""
    return [name for names in _matrices(op) for name in names]


def check_experts(model: Model, method: str) -> None:
    """Raise UnsupportedModel for experts that cannot be quantized, or not with this method.

    Files for other programs have one tensor for each matrix of an expert.
    """
    ops = expert_ops(model.program)
    if not ops:
        return
    if method not in EXPERT_METHODS:
        raise UnsupportedModel(
            f"--method {method} does not support models with experts; use {', '.join(EXPERT_METHODS)}"
        )
    files = model.checkpoint.folder.glob("*.safetensors")
    stored = (name for path in files for name in names_in(path))
    for name in filter(is_stacked, stored):
        raise UnsupportedModel(
            f"tensor {name} holds all experts of a layer; galley quantize supports only experts in "
            "separate tensors. Serve this model with --weight-dtype int4 or int8"
        )
    assert not any("gate_bias" in op.weights or op.attrs["limit"] for op in ops), "only in stacks"


def quantize_experts(
    model: Model,
    op: Op,
    names: Collection[str],
    inputs: Inputs,
    calibrated: Calibrated,
    nearest: Callable[[str], IntWeight],
) -> Quantized:
    """Quantize the experts of a layer.

    A row counts by its weight in the sum of its experts. With fewer rows than columns, GPTQ fits these rows
    only: on others, its error is not smaller than that of the nearest steps.

    Args:
        model: with the experts' original matrices.
        op: that runs the experts.
        names: the matrices that are to be quantized, of these and other ops.
        inputs: that the op reads.
        calibrated: the method.
        nearest: the rounding of a matrix that has too few inputs.
    """
    made = Quantized([], [], {})

    def quantize(parts: Sequence[str], x: Floats, original: Floats, weights: Floats) -> Values:
        chosen = [name for name in parts if name in names]
        if len(x) >= x.shape[1]:
            found = calibrated(chosen, x * weights, original * weights)
            made.calibrated.extend(found)
        else:
            found = [nearest(name) for name in chosen]
            made.nearest.extend(found)
            made.rows.update({_expert(name): len(x) for name in chosen})
        return {one.name: dequantize(one) for one in found}

    for number, (gate, up, down) in enumerate(_matrices(op)):
        at, weights = _routed(inputs.routes, number)
        x, original = inputs.rows[at], inputs.originals[at]
        before = {name: _dense(model, name) for name in (gate, up)}
        now = before | quantize((gate, up), x, original, weights)
        inner = _inner(x, now[gate], now[up]), _inner(original, before[gate], before[up])
        quantize((down,), *inner, weights)
    return made


def _matrices(op: Op) -> list[tuple[str, str, str]]:
    """Return (gate, up, down) of each expert."""
    return list(zip(*(op.weights[role] for role in ROLES), strict=True))


def _expert(name: str) -> str:
    """Return ``model.layers.3.mlp.experts.5`` of ``model.layers.3.mlp.experts.5.up_proj.weight``."""
    return name.rsplit(".", 2)[0]


def _routed(routes: Floats, expert: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the rows that go to an expert, and their weights [rows, 1]."""
    numbers, weights = np.split(routes, 2, axis=1)
    at, choice = np.nonzero(numbers == expert)
    return at, weights[at, choice][:, None]


def _inner(x: Floats, gate: Floats, up: Floats) -> Floats:
    """Return what an expert's down projection reads: silu(x gate') * (x up')."""
    made = x @ gate.T
    with np.errstate(over="ignore"):  # exp of a large number is infinite, and its quotient 0
        made /= 1 + np.exp(-made)
    inner: Floats = made * (x @ up.T)
    return inner


def _dense(model: Model, name: str) -> Floats:
    weight = model.weights[name]
    assert isinstance(weight, DenseWeight)
    return to_float32(weight)

"""Factors by which int4 keys are divided, column by column, before a token's columns are rounded together.

Some columns of keys have a far larger range than others (KIVI, arXiv:2402.02750), and would use up all the
steps of a scale that a token's columns share. The range of a column is derived from the weights that
produce it, which gives per-channel scales as in KIVI, without waiting for a group of tokens. Queries are
multiplied by the same factors, so scores do not change (SmoothAttention of QServe, arXiv:2405.04532, with
factors from weights, not from samples).
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from galley.formats.values import dequantize, to_float32
from galley.formats.weights import BlockWeight, DenseWeight, Floats, Weights
from galley.graph.program import Op, Program

Squares: TypeAlias = npt.NDArray[np.float64]
"""Mean square of each column of a buffer, over tokens."""

LEAST: Final = 2.0**-12
"""Smallest factor of a head; the largest is 1."""


def key_factors(program: Program, weights: Weights) -> list[Floats]:
    """Return factors [kv_heads, key_dim] for each KV layer: powers of two, so products are exact."""
    written: dict[int, tuple[_Columns, int]] = {}
    for traced in (program, program.encoder):
        if traced is None:
            continue
        columns = _Columns(traced, weights)
        for op in traced.ops:
            if op.name in ("attention", "cross_kv"):
                written[op.attrs["layer"]] = columns, op.inputs[-2]
    factors = []
    for layer, kv in enumerate(program.kv):
        columns, keys = written[layer]
        squares = columns.squares(keys).reshape(kv.kv_heads, kv.key_dim)
        greatest = np.maximum(squares.max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
        relative = np.maximum(np.sqrt(squares / greatest), LEAST)
        factors.append(np.exp2(np.rint(np.log2(relative))).astype(np.float32))
    return factors


class _Columns:
    """Estimates the range of the columns of a program's buffers from the weights.

    The output of a norm, before its weight, is assumed to have a mean square of 1 and uncorrelated columns.
    The same is assumed of every output that the weights do not determine, so all its columns are alike.
    """

    def __init__(self, program: Program, weights: Weights) -> None:
        self._weights = weights
        self._writers = {b: op for op in program.ops for b in op.outputs}
        self._rules: Mapping[str, Callable[[Op], Squares]] = {
            "linear": self._linear,
            "rms_norm": self._norm,
            "layer_norm": self._norm,
            "rope": self._rope,
            "scale": self._passed,
            "lora": self._passed,
            "columns": self._columns,
            "head_columns": self._head_columns,
            "join_heads": self._join_heads,
        }

    def squares(self, buffer: int) -> Squares:
        op = self._writers[buffer]
        rule = self._rules.get(op.name)
        return np.ones(op.widths[op.outputs.index(buffer)]) if rule is None else rule(op)

    def _values(self, name: str) -> Floats | None:
        weight = self._weights[name]
        if isinstance(weight, BlockWeight):
            return None
        return to_float32(weight) if isinstance(weight, DenseWeight) else dequantize(weight)

    def _passed(self, op: Op) -> Squares:
        return self.squares(op.inputs[0])

    def _linear(self, op: Op) -> Squares:
        source = self.squares(op.inputs[0]).astype(np.float32)
        parts: list[Squares] = []
        for name in op.weights["weight"]:
            values = self._values(name)
            if values is None:
                return np.ones(op.width)
            # numpy sums in a fixed order, so another process computes the same factors.
            parts.append((np.square(values) * source).sum(axis=1, dtype=np.float64))
        squares: Squares = np.concatenate(parts)
        found = [self._values(name) for name in op.weights.get("bias", ())]
        biases = [bias for bias in found if bias is not None]
        return squares + np.square(np.concatenate(biases)) if biases else squares

    def _norm(self, op: Op) -> Squares:
        squares = np.ones(op.width)
        for role in ("weight", "bias"):
            values = self._values(op.tensor(role)) if role in op.weights else None
            if values is None:
                continue
            if role == "weight":
                squares = np.resize(np.square(values + op.attrs.get("offset", 0.0)), op.width)
            else:
                squares = squares + np.resize(np.square(values), op.width)
        return squares

    def _rope(self, op: Op) -> Squares:
        """Give both columns of a rotated pair the mean of their squares."""
        pairs = len(op.attrs["inv_freq"])
        heads = self.squares(op.inputs[0]).reshape(-1, op.attrs["head_dim"]).copy()
        turned = heads[:, : 2 * pairs]
        shape, member = ((pairs, 2), 2) if op.attrs["adjacent"] else ((2, pairs), 1)
        split = turned.reshape(len(heads), *shape)
        mean = np.broadcast_to(split.mean(axis=member, keepdims=True), split.shape)
        heads[:, : 2 * pairs] = op.attrs["scale"] ** 2 * mean.reshape(turned.shape)
        return heads.reshape(-1)

    def _columns(self, op: Op) -> Squares:
        start = op.attrs["start"]
        return self.squares(op.inputs[0])[start : start + op.width]

    def _head_columns(self, op: Op) -> Squares:
        start, size = op.attrs["start"], op.attrs["size"]
        heads = self.squares(op.inputs[0]).reshape(-1, op.attrs["stride"])
        return heads[:, start : start + size].reshape(-1)

    def _join_heads(self, op: Op) -> Squares:
        heads = op.attrs["heads"]
        parts = [self.squares(buffer).reshape(heads, -1) for buffer in op.inputs]
        return np.concatenate(parts, axis=1).reshape(-1)

"""Conversion of a text's rows to one vector: pooled, put through layers and scaled to length 1.

The steps that a checkpoint needs are specified in the files of sentence-transformers
(``sentence_files.py``), or by its classifier, if it is a reranker (``classifier.py``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from galley.errors import UnsupportedModel
from galley.formats.values import dequantize, to_float32
from galley.formats.weights import DenseWeight, Floats, IntWeight, Weight

Pooling = Literal["cls", "mean", "mean_sqrt_len", "weightedmean", "last", "max"]
"""How a text's rows are pooled.

"cls" is the first row, "mean" the mean, "mean_sqrt_len" the sum divided by the root of the number
of rows, "weightedmean" the mean in which the n-th row has weight n, "last" the last row, and "max"
the maximum of each column.
"""


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer for a pooled vector, followed by an activation and a norm.

    Attributes:
        weight: [outputs, inputs].
        bias: [outputs], or None.
        activation: one of :data:`ACTIVATIONS`.
        norm: weight [outputs] of a layer norm without bias, or None.
        eps: epsilon of the norm.
    """

    weight: Floats
    bias: Floats | None
    activation: str = "identity"
    norm: Floats | None = None
    eps: float = 1e-5

    def run(self, x: Floats) -> Floats:
        """Apply the layer: [inputs] -> [outputs]."""
        y = self.weight @ x
        if self.bias is not None:
            y = y + self.bias
        y = _activated(y, self.activation)
        if self.norm is not None:
            y = y - y.mean()
            y = y / np.sqrt(np.square(y).mean() + np.float32(self.eps)) * self.norm
        return y


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Converts the rows of a text to its vector, or, for a reranker, those of a pair to its score.

    Attributes:
        task: the model's task.
        pooling: how rows are pooled; the vectors of several are concatenated.
        layers: layers that the pooled vector goes through.
        normalize: whether to scale the vector to length 1.
        sigmoid: whether a reranker's score becomes 1 / (1 + exp(-score)).
        max_tokens: maximum number of tokens in a text, if it is below the model's number of
            positions.
        dimensions: dimensions that a vector may be cut to (Matryoshka, arXiv:2205.13147); empty:
            any.
        truncate: number of columns to keep if a request does not specify it; 0: all.
        prompts: name -> text that is put before an input.
        default_prompt: name of the prompt for inputs without a prompt's name.
        tensors: the tensors of the checkpoint from which the layers are made.
    """

    task: Literal["embed", "rerank"]
    pooling: tuple[Pooling, ...]
    layers: tuple[Layer, ...] = ()
    normalize: bool = False
    sigmoid: bool = False
    max_tokens: int | None = None
    dimensions: tuple[int, ...] = ()
    truncate: int = 0
    prompts: Mapping[str, str] | None = None
    default_prompt: str | None = None
    tensors: frozenset[str] = frozenset()

    @property
    def all_rows(self) -> bool:
        """Whether pooling takes more than one row of a text."""
        return self.pooling not in (("cls",), ("last",))

    def width(self, hidden: int) -> int:
        """Return the number of columns of a vector, for rows of ``hidden`` columns."""
        return len(self.layers[-1].weight) if self.layers else hidden * len(self.pooling)

    def vector(self, rows: Floats, dimensions: int = 0) -> Floats:
        """Return the vector of one text from its rows, [rows, hidden], or from the only row needed.

        Each text is computed separately, so that its bits do not depend on other texts.
        ``dimensions`` is the number of leading columns to return; 0: as many as the checkpoint
        specifies.
        """
        x = np.concatenate([_pooled(rows, how) for how in self.pooling])
        for layer in self.layers:
            x = layer.run(x)
        if self.sigmoid:
            x = (1.0 / (1.0 + np.exp(-x.astype(np.float64)))).astype(np.float32)
        if dimensions or self.truncate:
            x = x[: dimensions or self.truncate]
        if self.normalize:
            x = x / max(np.float32(np.sqrt(np.dot(x, x))), np.float32(1e-12))
        return np.ascontiguousarray(x, dtype=np.float32)


def _pooled(rows: Floats, how: Pooling) -> Floats:
    found: Floats
    match how:
        case "cls":
            found = rows[0]
        case "last":
            found = rows[-1]
        case "max":
            found = rows.max(axis=0)
        case "mean":  # summed row by row in float64, so that rounding has no effect
            found = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        case "mean_sqrt_len":
            found = (rows.sum(axis=0, dtype=np.float64) / math.sqrt(len(rows))).astype(np.float32)
        case "weightedmean":
            weights = np.arange(1, len(rows) + 1, dtype=np.float64)
            found = (weights @ rows / weights.sum()).astype(np.float32)
    return found


_ERF: Final = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: Final = ("identity", "tanh", "gelu", "relu", "sigmoid")
"""Activations of layers."""


def _activated(x: Floats, name: str) -> Floats:
    match name:
        case "tanh":
            return np.tanh(x)
        case "relu":
            return np.maximum(x, np.float32(0))
        case "gelu":
            gelu: Floats = (0.5 * x * (1.0 + _ERF(x / math.sqrt(2.0)))).astype(np.float32)
            return gelu
        case "sigmoid":
            return (1.0 / (1.0 + np.exp(-x))).astype(np.float32)
    assert name == "identity", name
    return x


def floats_of(weight: Weight) -> Floats:
    """Return the values of a head's tensor. Raise UnsupportedModel if it is quantized in blocks."""
    if isinstance(weight, DenseWeight):
        return np.ascontiguousarray(to_float32(weight), dtype=np.float32)
    if isinstance(weight, IntWeight):
        return dequantize(weight)
    raise UnsupportedModel(
        f"tensor {weight.name} is kept as {weight.kind}, which is not supported in an embedding head"
    )

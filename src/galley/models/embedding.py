"""What becomes of a text's rows: one vector, pooled, put through layers and scaled to length 1.

What a checkpoint wants is in the files of sentence-transformers (``sentence_files.py``), or in its own
classifier, if it is a reranker (``classifier.py``).
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
"""Of a text's rows: the first, the mean, their sum by the root of their number, the mean in which the n-th
weighs n, the last, or the greatest of each column."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of a pooled vector: activation, then norm.

    Attributes:
        weight: [outputs, inputs].
        bias: [outputs], or None.
        activation: one of :data:`ACTIVATIONS`.
        norm: weight [outputs] of a layer norm without bias, or None.
        eps: of the norm.
    """

    weight: Floats
    bias: Floats | None
    activation: str = "identity"
    norm: Floats | None = None
    eps: float = 1e-5

    def run(self, x: Floats) -> Floats:
        """[inputs] -> [outputs]."""
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
    """From the rows of a text to its vector; of a reranker to the score of a pair.

    Attributes:
        task: what the model does.
        pooling: several vectors are put side by side.
        layers: that the pooled vector goes through.
        normalize: scale the vector to length 1.
        sigmoid: a reranker's score becomes 1 / (1 + exp(-score)).
        max_tokens: of a text, if less than the model has positions.
        dimensions: that a vector may be cut to (Matryoshka, arXiv:2205.13147); empty: any.
        truncate: columns that are kept where a request does not say; 0: all.
        prompts: name -> what is put before a text.
        default_prompt: name of the one that is put before texts without a name.
        tensors: that the layers are made of, in the checkpoint's own files.
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
        """Whether it takes more than one row of a text."""
        return self.pooling not in (("cls",), ("last",))

    def width(self, hidden: int) -> int:
        """Columns of a vector, if rows have ``hidden``."""
        return len(self.layers[-1].weight) if self.layers else hidden * len(self.pooling)

    def vector(self, rows: Floats, dimensions: int = 0) -> Floats:
        """Of the [rows, hidden] of one text, or of the only one that is needed.

        Each text is computed by itself, so bits do not depend on others. ``dimensions``: the first columns
        that are wanted; 0: as many as the checkpoint says.
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
        case "mean":  # in float64: the sum is taken row by row, and the rounding does not show
            found = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        case "mean_sqrt_len":
            found = (rows.sum(axis=0, dtype=np.float64) / math.sqrt(len(rows))).astype(np.float32)
        case "weightedmean":
            weights = np.arange(1, len(rows) + 1, dtype=np.float64)
            found = (weights @ rows / weights.sum()).astype(np.float32)
    return found


_ERF: Final = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS: Final = ("identity", "tanh", "gelu", "relu", "sigmoid")
"""Of layers."""


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
    """The values of a head's tensor. Raises UnsupportedModel for one in blocks."""
    if isinstance(weight, DenseWeight):
        return np.ascontiguousarray(to_float32(weight), dtype=np.float32)
    if isinstance(weight, IntWeight):
        return dequantize(weight)
    raise UnsupportedModel(
        f"tensor {weight.name} is kept as {weight.kind}, which a head of embeddings cannot be"
    )

"""A model as data: a flat list of ops over ragged ``[tokens, width]`` buffers.

The token count is the only dynamic size. Buffers are numbered in the order they are written (each is
written once); weights are named as in the checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from galley.errors import CheckpointError
from galley.formats.weights import Weights
from galley.graph.signatures import SIGNATURES


@dataclass(frozen=True, slots=True)
class Op:
    """One call of the op vocabulary (``graph/signatures.py``).

    Attributes:
        name: the op.
        inputs: buffers read.
        output: buffer written.
        width: columns of the output buffer.
        weights: role -> checkpoint tensor name, e.g. ``{"weight": ..., "bias": ...}``.
        attrs: static numbers and tuples.
    """

    name: str
    inputs: tuple[int, ...]
    output: int
    width: int
    weights: Mapping[str, str]
    attrs: Mapping[str, Any]

    def __post_init__(self) -> None:
        signature = SIGNATURES[self.name]
        assert len(self.inputs) == signature.inputs, self
        assert set(self.attrs) == set(signature.attrs), self
        assert signature.weights <= set(self.weights) <= signature.weights | signature.optional


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What one layer keeps per token: keys and values, each ``kv_heads * head_dim`` wide."""

    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model. The last op's output is the logits, ``[wanted rows, vocab_size]``.

    Attributes:
        ops: in order of execution.
        kv: one entry for each attention op, indexed by its ``layer`` attribute.
        shapes: checkpoint tensor name -> the shape the ops expect.
        vocab_size: columns of the logits.
        max_positions: the longest context the model was made for, in tokens.
    """

    ops: tuple[Op, ...]
    kv: tuple[KVLayout, ...]
    shapes: Mapping[str, tuple[int, ...]]
    vocab_size: int
    max_positions: int

    def check_weights(self, weights: Weights, *, folder: str) -> None:
        """Raises CheckpointError for the first tensor that is missing or of another shape."""
        for name, shape in self.shapes.items():
            if name not in weights:
                raise CheckpointError("tensor is missing", file=folder, field=name)
            if weights[name].shape != shape:
                raise CheckpointError(
                    f"has shape {list(weights[name].shape)}, config.json implies {list(shape)}",
                    file=folder,
                    field=name,
                )

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values over all layers for one token."""
        return sum(2 * kv.kv_heads * kv.head_dim * element_bytes for kv in self.kv)

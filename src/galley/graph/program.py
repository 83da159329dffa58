"""A model as data: a flat list of ops over ragged ``[tokens, width]`` buffers.

The token count is the only dynamic size. Buffers are numbered in the order they are written (each is
written once); weights are named as in the checkpoint.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from galley.errors import CheckpointError
from galley.formats.weights import Weights
from galley.graph.signatures import SIGNATURES


@dataclass(frozen=True, slots=True)
class Op:
    """One call of the op vocabulary (``graph/signatures.py``).

    Attributes:
        name: the op.
        inputs: buffers read.
        outputs: buffers written.
        widths: columns of each output.
        weights: role -> checkpoint tensors, e.g. ``{"weight": ("lm_head.weight",)}``; a linear layer
            may have several, its outputs are theirs one after another.
        attrs: static numbers and tuples.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    widths: tuple[int, ...]
    weights: Mapping[str, tuple[str, ...]]
    attrs: Mapping[str, Any]

    def __post_init__(self) -> None:
        signature = SIGNATURES[self.name]
        assert len(self.inputs) == signature.inputs, self
        assert len(self.outputs) == len(self.widths) == signature.outputs, self
        assert set(self.attrs) == set(signature.attrs), self
        assert signature.weights <= set(self.weights) <= signature.weights | signature.optional

    @property
    def output(self) -> int:
        """The only output of an op that has one."""
        (output,) = self.outputs
        return output

    @property
    def width(self) -> int:
        """Columns of the only output."""
        (width,) = self.widths
        return width

    def tensor(self, role: str) -> str:
        """The only checkpoint tensor in ``role``."""
        (name,) = self.weights[role]
        return name

    def reading(self, names: Mapping[int, int]) -> Self:
        """This op with other inputs: ``names`` maps old buffers to new ones, where they differ."""
        return dataclasses.replace(self, inputs=tuple(names.get(b, b) for b in self.inputs))


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

    @property
    def logits(self) -> int:
        """The buffer of the last op."""
        return self.ops[-1].output

    def readers(self) -> dict[int, list[int]]:
        """Buffer -> indices of the ops that read it, ascending; none for a buffer nobody reads."""
        readers: dict[int, list[int]] = {b: [] for op in self.ops for b in op.outputs}
        for i, op in enumerate(self.ops):
            for b in dict.fromkeys(op.inputs):
                readers[b].append(i)
        return readers

    def widths(self) -> dict[int, int]:
        """Buffer -> columns."""
        return {b: w for op in self.ops for b, w in zip(op.outputs, op.widths, strict=True)}

    def new_buffer(self) -> int:
        """A number from which on no buffer is in use."""
        return 1 + max(b for op in self.ops for b in op.outputs)

    def with_ops(self, ops: Iterable[Op]) -> Self:
        """The same model computed by other ops; buffers are numbered anew."""
        numbers: dict[int, int] = {}
        renumbered = []
        for op in ops:
            inputs = tuple(numbers[b] for b in op.inputs)
            for b in op.outputs:
                assert b not in numbers, f"buffer {b} is written twice"
                numbers[b] = len(numbers)
            outputs = tuple(numbers[b] for b in op.outputs)
            renumbered.append(dataclasses.replace(op, inputs=inputs, outputs=outputs))
        return dataclasses.replace(self, ops=tuple(renumbered))

    def operations(self) -> tuple[int, int]:
        """Of linear layers, for each row and for each wanted row; a product and its addition are two."""
        rows = wanted = 0
        selected = False
        for op in self.ops:
            selected |= op.name == "select_rows"
            for name in op.weights["weight"] if op.name == "linear" else ():
                outputs, depth = self.shapes[name]
                rows += 0 if selected else 2 * outputs * depth
                wanted += 2 * outputs * depth if selected else 0
        return rows, wanted

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values over all layers for one token."""
        return sum(2 * kv.kv_heads * kv.head_dim * element_bytes for kv in self.kv)

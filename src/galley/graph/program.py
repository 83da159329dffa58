"""A model as data: a flat list of ops on ragged ``[rows, width]`` buffers.

The row count (tokens, or frames of audio) is the only dynamic size. Buffers are numbered in the order
they are written (each is written once); weights are named as in the checkpoint.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from galley.errors import CheckpointError
from galley.formats.weights import FlatWeights, Kinds, WeightKind, Weights
from galley.graph.signatures import SIGNATURES, Signature
from galley.types import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Op:
    """One call of the op vocabulary (``graph/signatures.py``).

    Attributes:
        name: the op.
        inputs: buffers read.
        outputs: buffers written.
        widths: columns of each output.
        weights: role -> checkpoint tensors, e.g. ``{"weight": ("lm_head.weight",)}``; a linear layer may
            have several, whose outputs are concatenated.
        attrs: static numbers and tuples.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    widths: tuple[int, ...]
    weights: Mapping[str, tuple[str, ...]]
    attrs: Mapping[str, Any]

    def __post_init__(self) -> None:
        signature = self.signature
        assert len(self.inputs) == signature.inputs, self
        assert len(self.outputs) == len(self.widths) == signature.outputs, self
        assert set(self.attrs) == set(signature.attrs), self
        assert signature.weights <= set(self.weights) <= signature.weights | signature.optional

    @property
    def signature(self) -> Signature:
        """The op's line in the op table."""
        return SIGNATURES[self.name]

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
        """Return the only checkpoint tensor in ``role``."""
        (name,) = self.weights[role]
        return name

    def for_a_row(self, whole: int) -> int:
        """Return the part of ``whole``, an amount for all tensors of a role, that one row needs.

        For an op with experts, that is the part of the experts that a row is routed to.
        """
        if not self.signature.routed:
            return whole
        return whole * int(self.attrs["per_token"]) // len(self.weights["gate"])

    def reading(self, names: Mapping[int, int]) -> Self:
        """Return this op with other inputs: ``names`` maps old buffers to new ones if they differ."""
        return dataclasses.replace(self, inputs=tuple(names.get(b, b) for b in self.inputs))


def first_seen(position: int, window: int, *, chunked: bool) -> int:
    """Return the first token that attention at a position sees, among those up to its own.

    Args:
        position: the position, counted from 0.
        window: number of tokens that it sees, or 0 for all.
        chunked: it sees the tokens from the last multiple of ``window`` on, instead (Llama 4).
    """
    if not window:
        return 0
    return position // window * window if chunked else max(0, position - window + 1)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The cache of a layer per token and KV head: a key, ``key_dim`` wide, and a value, ``value_dim``.

    Attributes:
        window: number of the latest tokens that are kept; 0 keeps all.
        chunked: the tokens from the last multiple of ``window`` on are kept, instead.
        shared: values are the first columns of keys, and not stored separately.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    shared: bool = False

    @property
    def stretches(self) -> tuple[int, ...]:
        """The numbers of consecutive columns of a key that share a scale in an integer cache.

        They are all columns, or with ``shared`` the value's columns, rounded up to an even number, and then
        the others, if any.
        """
        first = (
            min(self.key_dim, self.value_dim + self.value_dim % 2) if self.shared else self.key_dim
        )
        return (first, self.key_dim - first) if first < self.key_dim else (first,)

    @property
    def elements(self) -> int:
        """The number of elements of one token, over all KV heads."""
        return self.kv_heads * (self.key_dim + (0 if self.shared else self.value_dim))


@dataclass(frozen=True, slots=True)
class StateLayout:
    """A recurrent layer's state of a sequence, whatever its length: [rows, width] of float32."""

    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that keep the same tokens and so share one block table for each sequence.

    Attributes:
        layers: indices into ``Program.kv``.
        window: number of the latest tokens that the layers retain; 0 retains all.
        chunked: the tokens from the last multiple of ``window`` on are retained, instead.
    """

    layers: tuple[int, ...] = ()
    window: int = 0
    chunked: bool = False

    def first_block(self, tokens: int) -> int:
        """Return the first block that a row after ``tokens`` tokens can see."""
        return first_seen(tokens, self.window, chunked=self.chunked) // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model. The last op's output is the logits, ``[wanted rows, vocab_size]``.

    For an embedding model, the last output is instead the rows that its vectors are computed from, with
    ``vocab_size`` columns for each wanted row. Such a model has no cache; its sequences are whole texts.

    An encoder ends in ``cross_kv`` instead: its output is in the KV cache. An aligner ends in
    ``cross_weights``: it is a decoder that returns cross-attention weights.

    Attributes:
        ops: the ops, in order of execution.
        kv: layouts of the KV layers, indexed by the ``layer`` attribute of the ops that use them.
        shapes: checkpoint tensor name -> its shape in the checkpoint. A convolution's kernel has three
            dimensions, [n, c, size]; ``linear`` uses it as the matrix [n, c * size].
        vocab_size: columns of the logits; 0 for an encoder and an aligner.
        max_positions: the longest context that the model was made for, in tokens; for an encoder the
            longest input, in frames.
        states: layouts of the recurrent layers' states, indexed by the ``state`` attribute of the ops that
            use them.
        encoder: the program that a speech model runs once on an encoder input, for its sequences to attend
            to.
        aligner: a speech model's decoder up to the last alignment head, which computes the attention
            weights of these heads.
        kinds: matrix name -> weight type that an executor keeps it as; empty until :meth:`with_kinds`.
        adapted: the matrices whose products ``lora`` ops add to, in the order of their numbers.
    """

    ops: tuple[Op, ...]
    kv: tuple[KVLayout, ...]
    shapes: Mapping[str, tuple[int, ...]]
    vocab_size: int
    max_positions: int
    states: tuple[StateLayout, ...] = ()
    encoder: "Program | None" = None
    aligner: "Program | None" = None
    kinds: Kinds = field(default_factory=dict)
    adapted: tuple[str, ...] = ()

    def take_weights(self, weights: Weights, *, folder: str) -> Weights:
        """Return the tensors that this program and its encoder use, with convolution kernels as matrices.

        Their shapes are checked; their values are not read.

        Raises:
            CheckpointError: a tensor is missing or has another shape; the first such tensor is named.
        """
        for name, shape in self.all_shapes.items():
            if name not in weights:
                raise CheckpointError("tensor is missing", file=folder, field=name)
            found = weights.info(name).shape
            if found != shape:
                raise CheckpointError(
                    f"has shape {list(found)}, but config.json implies {list(shape)}",
                    file=folder,
                    field=name,
                )
        return FlatWeights(weights, tuple(self.all_shapes))

    @property
    def all_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """``shapes`` of this program and its encoder."""
        return {**self.shapes, **(self.encoder.shapes if self.encoder else {})}

    @property
    def matrices(self) -> frozenset[str]:
        """Tensors of this program and its encoder that executors pack; the others stay as they are."""
        programs = (self,) if self.encoder is None else (self, self.encoder)
        return frozenset(
            name
            for program in programs
            for op in program.ops
            for role in op.signature.matrices
            for name in op.weights[role]
        )

    def with_kinds(self, kinds: Kinds) -> Self:
        """Return the same program, encoder and aligner with ``kinds`` as the types of the matrices."""
        encoder, aligner = (
            None if program is None else program.with_kinds(kinds)
            for program in (self.encoder, self.aligner)
        )
        return dataclasses.replace(self, encoder=encoder, aligner=aligner, kinds=kinds)

    @property
    def routers(self) -> frozenset[str]:
        """The matrices whose products choose experts."""
        routed = {op.inputs[0] for op in self.ops if op.name == "route"}
        return frozenset(
            name
            for op in self.ops
            if op.name == "linear" and op.output in routed
            for name in op.weights["weight"]
        )

    def kind_of(self, op: Op) -> WeightKind:
        """Return the type of the matrix that ``op`` packs; tensors of a merged matrix have one type."""
        return self.kinds[op.weights["weight"][0]]

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The layers by the tokens that they retain, in groups of one size, so a block takes one page.

        If more layers retain the same tokens than the smallest such set has, they form several groups.
        """
        kinds: dict[tuple[int, bool], list[int]] = {}
        for layer, kv in enumerate(self.kv):
            kinds.setdefault((kv.window, kv.chunked), []).append(layer)
        size = min(map(len, kinds.values()), default=1)
        return tuple(
            KVGroup(tuple(layers[i : i + size]), *kind)
            for kind, layers in kinds.items()
            for i in range(0, len(layers), size)
        )

    @property
    def token_ids(self) -> int:
        """The number of token ids, which is the number of rows of the embedding."""
        [table] = {op.tensor("weight") for op in self.ops if op.name == "embed"}
        return self.shapes[table][0]

    @property
    def aligned_heads(self) -> int:
        """The number of heads whose weights an aligner returns."""
        return sum(len(op.attrs["chosen"]) for op in self.ops if op.name == "cross_weights")

    def rows_of(self, frames: int) -> int:
        """Return the number of rows that an encoder's ``cross_kv`` ops keep of ``frames`` frames."""
        for op in self.ops:
            if op.name == "im2col":
                frames = -(-frames // op.attrs["stride"])
        return frames

    @property
    def max_rows(self) -> int:
        """The number of rows that an encoder's ``cross_kv`` ops keep of the longest input."""
        return self.rows_of(self.max_positions)

    @property
    def given_width(self) -> int:
        """The columns of the rows that an encoder returns to its caller; 0 if it returns none."""
        return next((op.attrs["columns"] for op in self.ops if op.name == "encoder_rows"), 0)

    @property
    def mels(self) -> int:
        """The number of values in a frame of an encoder input."""
        return self.ops[0].width

    def readers(self) -> dict[int, list[int]]:
        """Return a mapping from each buffer to the ascending indices of the ops that read it, if any."""
        readers: dict[int, list[int]] = {b: [] for op in self.ops for b in op.outputs}
        for i, op in enumerate(self.ops):
            for b in dict.fromkeys(op.inputs):
                readers[b].append(i)
        return readers

    def widths(self) -> dict[int, int]:
        """Return a mapping from each buffer to its number of columns."""
        return {b: w for op in self.ops for b, w in zip(op.outputs, op.widths, strict=True)}

    def new_buffer(self) -> int:
        """Return a buffer number that, like all larger numbers, is not in use."""
        return 1 + max(b for op in self.ops for b in op.outputs)

    def with_ops(self, ops: Iterable[Op]) -> Self:
        """Return the same model computed by other ops; buffers are renumbered."""
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
        """Return the linear layers' operations per row and per wanted row; a multiply-add counts as two."""
        rows = wanted = 0
        selected = False
        for op in self.ops:
            selected |= op.name == "select_rows"
            products = op.for_a_row(self.products(op))
            rows += 0 if selected else 2 * products
            wanted += 2 * products if selected else 0
        return rows, wanted

    def products(self, op: Op) -> int:
        """Return the number of matrix elements of a linear layer, or of all experts; 0 for other ops."""
        roles = op.signature.matrices if op.signature.multiplies else ()
        return sum(math.prod(self.shapes[name]) for role in roles for name in op.weights[role])

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Return the bytes of one token's keys and values over all layers."""
        return sum(kv.elements for kv in self.kv) * element_bytes

"""A model as data: a flat list of ops over ragged ``[rows, width]`` buffers.

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
        """The only checkpoint tensor in ``role``."""
        (name,) = self.weights[role]
        return name

    def for_a_row(self, whole: int) -> int:
        """How much one row needs of what all tensors of a role take: those of its experts."""
        if not self.signature.routed:
            return whole
        return whole * int(self.attrs["per_token"]) // len(self.weights["gate"])

    def reading(self, names: Mapping[int, int]) -> Self:
        """This op with other inputs: ``names`` maps old buffers to new ones, where they differ."""
        return dataclasses.replace(self, inputs=tuple(names.get(b, b) for b in self.inputs))


def first_seen(position: int, window: int, *, chunked: bool) -> int:
    """The first token that attention at a position sees, of those up to its own.

    Args:
        position: from 0 on.
        window: 0 for all, or how many it sees.
        chunked: it sees those from the last multiple of ``window`` on, instead (Llama 4).
    """
    if not window:
        return 0
    return position // window * window if chunked else max(0, position - window + 1)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What a layer keeps per token and KV head: a key, ``key_dim`` wide, and a value, ``value_dim``.

    Attributes:
        window: of how many of the latest tokens; 0 keeps all.
        chunked: of the tokens from the last multiple of ``window`` on, instead.
        shared: values are the first columns of keys, and kept nowhere else.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    shared: bool = False

    @property
    def stretches(self) -> tuple[int, ...]:
        """Columns of a key that integers round together: all, or those that are the value, made even."""
        first = (
            min(self.key_dim, self.value_dim + self.value_dim % 2) if self.shared else self.key_dim
        )
        return (first, self.key_dim - first) if first < self.key_dim else (first,)

    @property
    def elements(self) -> int:
        """Of one token, over all KV heads."""
        return self.kv_heads * (self.key_dim + (0 if self.shared else self.value_dim))


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What a recurrent layer keeps for a sequence, however long that is: [rows, width] of float32."""

    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that keep the same tokens, so that they share one block table for each sequence.

    Attributes:
        layers: indices into ``Program.kv``.
        window: how many of the latest tokens the layers retain; 0 retains all.
        chunked: they retain those from the last multiple of ``window`` on, instead.
    """

    layers: tuple[int, ...] = ()
    window: int = 0
    chunked: bool = False

    def first_block(self, tokens: int) -> int:
        """The first block that a row behind so many tokens can see."""
        return first_seen(tokens, self.window, chunked=self.chunked) // BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Program:
    """A traced model. The last op's output is the logits, ``[wanted rows, vocab_size]``.

    Of a model of embeddings that is what its vectors are made of, instead: ``vocab_size`` columns for each
    wanted row. It has no cache; its sequences are whole texts.

    An encoder ends in ``cross_kv`` instead: the encoder output lies in the KV cache. An aligner ends
    in ``cross_weights``: it is a decoder that says where it looks.

    Attributes:
        ops: in order of execution.
        kv: what each layer of the cache holds, indexed by the ``layer`` attribute of the ops that use it.
        shapes: checkpoint tensor name -> the shape it has there. That of a convolution's kernel has three
            dimensions, [n, c, size]; ``linear`` takes it as the matrix [n, c * size].
        vocab_size: columns of the logits; 0 for an encoder and an aligner.
        max_positions: the longest context the model was made for, in tokens; for an encoder the longest
            input, in frames.
        states: what each recurrent layer keeps for a sequence, indexed by the ``state`` attribute of the
            ops that use it.
        encoder: what a speech model runs once over an encoder input, for its sequences to attend to.
        aligner: a speech model's decoder up to the last head that follows the speech, for the weights of
            these heads.
        kinds: matrix name -> how an executor keeps it; empty until that is decided (:meth:`with_kinds`).
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
        """The tensors that this program and its encoder use, kernels of convolutions as matrices.

        Their shapes are checked, their values not read.

        Raises:
            CheckpointError: for the first one that is missing or of another shape.
        """
        for name, shape in self.all_shapes.items():
            if name not in weights:
                raise CheckpointError("tensor is missing", file=folder, field=name)
            found = weights.info(name).shape
            if found != shape:
                raise CheckpointError(
                    f"has shape {list(found)}, config.json implies {list(shape)}",
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
        """Tensors of this program and its encoder that executors pack; all others they keep as they are."""
        programs = (self,) if self.encoder is None else (self, self.encoder)
        return frozenset(
            name
            for program in programs
            for op in program.ops
            for role in op.signature.matrices
            for name in op.weights[role]
        )

    def with_kinds(self, kinds: Kinds) -> Self:
        """The same program, its encoder and its aligner too, with its matrices kept as ``kinds``."""
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
        """Of the matrix that ``op`` packs; all tensors of a merged one are of one kind."""
        return self.kinds[op.weights["weight"][0]]

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        """The layers by what they retain, in groups of one size: a block of any group takes one page.

        A kind of layers that is larger than the smallest kind makes several groups.
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
        """How many there are: rows of the embedding."""
        [table] = {op.tensor("weight") for op in self.ops if op.name == "embed"}
        return self.shapes[table][0]

    @property
    def aligned_heads(self) -> int:
        """Of an aligner: how many heads' weights it gives."""
        return sum(len(op.attrs["chosen"]) for op in self.ops if op.name == "cross_weights")

    def rows_of(self, frames: int) -> int:
        """Of an encoder: how many rows its ``cross_kv`` ops keep of an input of ``frames``."""
        for op in self.ops:
            if op.name == "im2col":
                frames = -(-frames // op.attrs["stride"])
        return frames

    @property
    def max_rows(self) -> int:
        """Of an encoder: the same of the longest input."""
        return self.rows_of(self.max_positions)

    @property
    def given_width(self) -> int:
        """Of an encoder: columns of the rows that it gives to its caller; 0 if it gives none."""
        return next((op.attrs["columns"] for op in self.ops if op.name == "encoder_rows"), 0)

    @property
    def mels(self) -> int:
        """Of an encoder: values in a frame."""
        return self.ops[0].width

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
            products = op.for_a_row(self.products(op))
            rows += 0 if selected else 2 * products
            wanted += 2 * products if selected else 0
        return rows, wanted

    def products(self, op: Op) -> int:
        """Of linear layers: elements of their matrices; of experts, those of all."""
        roles = op.signature.matrices if op.signature.multiplies else ()
        return sum(math.prod(self.shapes[name]) for role in roles for name in op.weights[role])

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of keys and values over all layers for one token."""
        return sum(kv.elements for kv in self.kv) * element_bytes

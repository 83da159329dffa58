"""From a program to native steps, and where in the arena their buffers lie."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from galley import _native
from galley.formats.weights import Weights
from galley.graph.plan import Lifetime, plan_arena
from galley.graph.program import Op, Program
from galley.ops.packing import Matrices
from galley.quant.weights import to_float32

_ROW_ALIGNMENT: Final = 64
"""Bytes; rows begin on a cache line."""
_IN_PLACE: Final = frozenset(
    {
        *("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"),
        *("rope", "silu_mul", "gelu", "add"),
        *("rope_attention", "window_attention", "cross_attention"),
    }
)
"""Steps that may write where they read: they are done with a row's inputs, or with each of their
elements, before they write there. A sum is written before its norm, and attention has all rows' keys and
values in the cache when it attends.

They do so where the rows of both are of one size. What ``silu_mul`` rounds for the next layer is narrower
than what it reads and gets room of its own: in its input's, rows would lie 64 KiB apart for 8192 columns,
all in the same sets of a cache. So the passes may cost an arena up to one rounded row."""
_VIEW: Final = "columns"
_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": ("layer", "heads", "scale", "window"),
    "rope_attention": ("inv_freq", "rope_scale", "layer", "heads", "scale", "window"),
    "cross_kv": ("layer",),
    "cross_attention": ("layer", "heads", "scale"),
    "cross_weights": ("layer", "heads", "chosen", "first", "scale"),
}
"""Steps whose arguments are attributes of the op alone."""


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A method of ``_native.Program``, what to call it with, and the buffers that follow.

    ``weight_bytes``: what it reads of weights to compute one row.
    """

    name: str
    arguments: tuple[Any, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer's rows begin ``column`` bytes into the rows of buffer ``root``."""

    root: int
    column: int


@dataclass(frozen=True, slots=True)
class Cost:
    """Of computing one row.

    Attributes:
        steps: native calls.
        weight_bytes: read of weights; of an embedding one row.
        activation_bytes: read and written of buffers, keys and values in the cache not counted.
        arena_bytes: memory that the buffers share.
    """

    steps: int
    weight_bytes: int
    activation_bytes: int
    arena_bytes: int


@dataclass(frozen=True)
class Lowered:
    """A program in native steps over buffers 0, 1, ...

    ``row_bytes``: one entry for each buffer. ``logits``: the buffer of the logits; none for an encoder
    or an aligner.
    A ``columns`` step is none: it only names a part of the buffer it reads, ``arguments[0]`` bytes into
    each row.
    """

    steps: tuple[NativeStep, ...]
    row_bytes: tuple[int, ...]
    logits: tuple[int, ...]

    @property
    def calls(self) -> list[NativeStep]:
        """The steps that do something."""
        return [step for step in self.steps if step.name != _VIEW]

    def cost(self) -> Cost:
        """For one row."""
        return Cost(
            steps=len(self.calls),
            weight_bytes=sum(step.weight_bytes for step in self.calls),
            activation_bytes=sum(
                self.row_bytes[b] for step in self.calls for b in (*step.reads, *step.writes)
            ),
            arena_bytes=self.slots[1],
        )

    def built(self, runtime: _native.Runtime, vocab_size: int) -> _native.Program:
        """As ``runtime`` can run it, which has the layers of keys and values already."""
        slots, arena_bytes = self.slots
        program = _native.Program(runtime, arena_bytes, vocab_size)
        for step in self.calls:
            buffers = [slots[b] for b in (*step.reads, *step.writes)]
            getattr(program, step.name)(*step.arguments, *buffers)
        return program

    @cached_property
    def slots(self) -> "tuple[list[_native.Slot], int]":
        """The slot of each buffer, and the bytes of the arena for one row."""
        lifetimes, places = self.lifetimes(), self._places
        plan = plan_arena(lifetimes)
        slots = [
            (plan.offsets[place.root], _aligned(self.row_bytes[place.root]), place.column)
            for place in places
        ]
        for b in self.logits:
            slots[b] = (_native.LOGITS, self.row_bytes[b], 0)
        return slots, plan.size

    def lifetimes(self) -> list[Lifetime]:
        """Of each buffer's row, in steps; what lies in another's room or with the caller has no size."""
        last_use, places = self._last_use, self._places
        written = {b: i for i, step in enumerate(self.steps) for b in step.writes}
        last = dict(written)
        for b, place in enumerate(places):
            last[place.root] = max(last[place.root], last_use.get(b, written[b]))
        own = [_aligned(n) if places[b].root == b else 0 for b, n in enumerate(self.row_bytes)]
        for b in self.logits:
            own[b] = 0
        return [Lifetime(size, written[b], last[b]) for b, size in enumerate(own)]

    @cached_property
    def _last_use(self) -> dict[int, int]:
        return {b: i for i, step in enumerate(self.steps) for b in step.reads}

    @cached_property
    def _places(self) -> list[Place]:
        """Views lie in what they show; a result in the room of an input that is not needed again."""
        last_use = self._last_use
        places = [Place(b, 0) for b in range(len(self.row_bytes))]
        rooms: dict[int, list[int]] = {b: [] for b in range(len(places))}

        def is_free(x: int, i: int) -> bool:
            begin, end = places[x].column, places[x].column + self.row_bytes[x]
            others = (b for b in rooms[places[x].root] if b != x)
            return last_use[x] == i and all(
                last_use.get(b, i) < i
                or places[b].column >= end
                or places[b].column + self.row_bytes[b] <= begin
                for b in others
            )

        for i, step in enumerate(self.steps):
            for b in step.writes:
                if step.name == _VIEW:
                    parent = places[step.reads[0]]
                    places[b] = Place(parent.root, parent.column + step.arguments[0])
                elif step.name in _IN_PLACE:
                    same = (x for x in step.reads if self.row_bytes[x] == self.row_bytes[b])
                    places[b] = next((places[x] for x in same if is_free(x, i)), places[b])
                rooms[places[b].root].append(b)
        return places


def _aligned(row_bytes: int) -> int:
    return -(-row_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT


def lower(program: Program, weights: Weights, matrices: Matrices, activations: str) -> Lowered:
    """Turn each of the program's ops into a native step.

    ``matrices`` packs the weights, ``activations`` is what buffers become that are prepared for them.
    """
    prepared = {op.outputs[-1] for op in program.ops if op.name.endswith("prepare")}
    layouts = {
        op.inputs[0]: _native.InputLayout(matrices.packed(*op.weights["weight"]), activations)
        for op in program.ops
        if op.name == "linear" and op.inputs[0] in prepared
    }
    row_bytes: dict[int, int] = {}
    steps = []
    for op in program.ops:
        for b, width in zip(op.outputs, op.widths, strict=True):
            row_bytes[b] = layouts[b].row_bytes if b in layouts else 4 * width
        arguments = _arguments(op, weights, matrices, layouts)
        name = op.name.removesuffix("_prepare")
        read = _weight_bytes(op, matrices)
        steps.append(NativeStep(name, arguments, op.inputs, op.outputs, read))
    sizes = tuple(row_bytes[b] for b in range(len(row_bytes)))
    return Lowered(tuple(steps), sizes, program.ops[-1].outputs)


def _arguments(
    op: Op, weights: Weights, matrices: Matrices, layouts: Mapping[int, _native.InputLayout]
) -> tuple[Any, ...]:
    """``layouts``: of the buffers that are prepared; all others are float32."""
    a = op.attrs
    layout = layouts.get(op.outputs[-1]) if op.outputs else None
    match op.name.removesuffix("_prepare"):
        case "linear":
            weight = matrices.packed(*op.weights["weight"])
            return (weight, _bias(op, weights), layouts.get(op.inputs[0]))
        case "embed":
            return (matrices.packed(op.tensor("weight")),)
        case "embed_positions":
            return (to_float32(weights[op.tensor("weight")]).reshape(-1), op.width)
        case "prepare":
            return (layout,)
        case "rms_norm" | "add_rms_norm" | "layer_norm" | "add_layer_norm":
            return (*_norm(op, weights), layout)
        case "silu_mul" | "gelu":
            return (op.width, layout)
        case "rope":
            return (a["inv_freq"], a["scale"], op.width)
        case "neighbours":
            return (op.width // a["size"], a["size"], a["stride"])
        case "window_attention":
            exact = not layouts
            return (a["heads"], a["kv_heads"], a["key_dim"], a["value_dim"], a["scale"], exact)
        case "columns":
            return (4 * a["start"],)
        case name if name in _ATTRIBUTES:
            return tuple(a[attribute] for attribute in _ATTRIBUTES[name])
        case _:
            return (op.width,)


def _norm(op: Op, weights: Weights) -> tuple[Any, ...]:
    """A layer norm is as wide as its weights; an RMS norm may be over several groups."""
    vectors = (to_float32(weights[names[0]]) for names in op.weights.values())
    width = () if "bias" in op.weights else (op.widths[0],)
    return (*vectors, op.attrs["eps"], *width)


def _bias(op: Op, weights: Weights) -> Any:
    names = op.weights.get("bias")
    return None if names is None else np.concatenate([to_float32(weights[name]) for name in names])


def _weight_bytes(op: Op, matrices: Matrices) -> int:
    """Embeddings are read row by row, everything else whole."""
    if op.name == "embed":
        matrix = matrices.packed(op.tensor("weight"))
        return matrix.bytes // matrix.outputs
    if op.name == "linear":
        bias = 4 * op.width if "bias" in op.weights else 0
        return matrices.packed(*op.weights["weight"]).bytes + bias
    if "rms_norm" in op.name:
        return 4 * int(op.attrs["head_dim"])
    return 4 * sum(op.widths[:1]) * len(op.weights)

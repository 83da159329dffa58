"""From a program to native steps, and where in the arena their buffers lie."""

from dataclasses import dataclass
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
    {"rms_norm", "rope", "silu_mul", "add", "add_rms_norm", "rope_attention"}
)
"""Steps that may write where they read: they are done with a row's inputs, or with each of their
elements, before they write there. ``add_rms_norm`` has written the sum when it writes the norm, and
``rope_attention`` has all rows' keys and values in the cache when it attends."""
_VIEW: Final = "columns"


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


@dataclass(frozen=True, slots=True)
class Lowered:
    """A program in native steps over buffers 0, 1, ...; the last one is the logits.

    ``row_bytes``: one entry for each buffer. A ``columns`` step is none: it only names a part of the
    buffer it reads, ``arguments[0]`` bytes into each row.
    """

    steps: tuple[NativeStep, ...]
    row_bytes: tuple[int, ...]

    @property
    def calls(self) -> list[NativeStep]:
        """The steps that do something."""
        return [step for step in self.steps if step.name != _VIEW]

    def cost(self, arena_bytes: int) -> Cost:
        """For one row; ``arena_bytes`` as :meth:`slots` found."""
        return Cost(
            steps=len(self.calls),
            weight_bytes=sum(step.weight_bytes for step in self.calls),
            activation_bytes=sum(
                self.row_bytes[b] for step in self.calls for b in (*step.reads, *step.writes)
            ),
            arena_bytes=arena_bytes,
        )

    def slots(self) -> "tuple[list[_native.Slot], int]":
        """The slot of each buffer, and the bytes of the arena for one row."""
        lifetimes, places = self.lifetimes(), self._places()
        plan = plan_arena(lifetimes)
        slots = [
            (plan.offsets[place.root], _aligned(self.row_bytes[place.root]), place.column)
            for place in places
        ]
        slots[-1] = (_native.LOGITS, self.row_bytes[-1], 0)
        return slots, plan.size

    def lifetimes(self) -> list[Lifetime]:
        """Of each buffer's row, in steps; what lies in another's room or with the caller has no size."""
        last_use, places = self._last_use(), self._places()
        written = {b: i for i, step in enumerate(self.steps) for b in step.writes}
        last = dict(written)
        for b, place in enumerate(places):
            last[place.root] = max(last[place.root], last_use.get(b, written[b]))
        own = [_aligned(n) if places[b].root == b else 0 for b, n in enumerate(self.row_bytes)]
        own[-1] = 0
        return [Lifetime(size, written[b], last[b]) for b, size in enumerate(own)]

    def _last_use(self) -> dict[int, int]:
        return {b: i for i, step in enumerate(self.steps) for b in step.reads}

    def _places(self) -> list[Place]:
        """Views lie in what they show; a result in the room of an input that is not needed again."""
        last_use = self._last_use()
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
                elif step.name in _IN_PLACE and i + 1 < len(self.steps):
                    same = (x for x in step.reads if self.row_bytes[x] == self.row_bytes[b])
                    places[b] = next((places[x] for x in same if is_free(x, i)), places[b])
                rooms[places[b].root].append(b)
        return places


def _aligned(row_bytes: int) -> int:
    return -(-row_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT


def lower(program: Program, weights: Weights, matrices: Matrices) -> Lowered:
    """Turn each of the program's ops into a native step; ``matrices`` packs the weights."""
    row_bytes: dict[int, int] = {}
    layouts = {
        op.inputs[0]: matrices.packed(*op.weights["weight"])
        for op in program.ops
        if op.name == "linear"
    }
    steps = []
    for op in program.ops:
        prepares = op.name.endswith("prepare")
        for b, width in zip(op.outputs, op.widths, strict=True):
            row_bytes[b] = 4 * width
        layout = layouts[op.outputs[-1]] if prepares else None
        if layout is not None:
            row_bytes[op.outputs[-1]] = layout.activation_bytes
        arguments = _arguments(op, weights, matrices, layout)
        name = op.name.removesuffix("_prepare")
        read = _weight_bytes(op, matrices)
        steps.append(NativeStep(name, arguments, op.inputs, op.outputs, read))
    return Lowered(tuple(steps), tuple(row_bytes[b] for b in range(len(row_bytes))))


def _arguments(
    op: Op, weights: Weights, matrices: Matrices, layout: _native.Packed | None
) -> tuple[Any, ...]:
    """``layout``: how the op's last output is prepared; None leaves it float32."""
    a = op.attrs
    if op.name == "linear":
        return (matrices.packed(*op.weights["weight"]), _bias(op, weights))
    if op.name == "embed":
        return (matrices.packed(op.tensor("weight")),)
    if op.name == "prepare":
        return (layout,)
    if "rms_norm" in op.name:
        return (to_float32(weights[op.tensor("weight")]), a["eps"], op.widths[0], layout)
    if op.name.startswith("silu_mul"):
        return (op.width, layout)
    if op.name == "rope":
        return (list(a["inv_freq"]), a["scale"], op.width)
    if op.name == "attention":
        return (a["layer"], a["heads"], a["scale"], a["window"])
    if op.name == "rope_attention":
        rope = (list(a["inv_freq"]), a["rope_scale"])
        return (*rope, a["layer"], a["heads"], a["scale"], a["window"])
    if op.name == _VIEW:
        return (4 * a["start"],)
    return (op.width,)


def _bias(op: Op, weights: Weights) -> Any:
    names = op.weights.get("bias")
    return None if names is None else np.concatenate([to_float32(weights[name]) for name in names])


def _weight_bytes(op: Op, matrices: Matrices) -> int:
    """An embedding is read row by row, everything else whole."""
    if op.name == "embed":
        matrix = matrices.packed(op.tensor("weight"))
        return matrix.bytes // matrix.outputs
    if op.name == "linear":
        bias = 4 * op.width if "bias" in op.weights else 0
        return matrices.packed(*op.weights["weight"]).bytes + bias
    return 4 * op.attrs["head_dim"] if "rms_norm" in op.name else 0

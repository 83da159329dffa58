"""Lower a program to native steps: their arguments, their costs, and the places of buffers in the arena."""

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from galley import _native
from galley.formats.weights import flat
from galley.graph.plan import Lifetime, plan_arena
from galley.graph.program import Op, Program
from galley.ops.executor import NO_EXPERTS, ExpertMemory
from galley.ops.packed_files import Names
from galley.ops.packing import Matrices, packed_bytes
from galley.types.model_info import ExpertCosts

_ROW_ALIGNMENT: Final = 64
"""Alignment of rows in bytes: a cache line."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a buffer, whose rows begin ``column`` bytes into the rows of buffer ``root``."""

    root: int
    column: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of computing one row.

    Attributes:
        steps: number of native calls.
        weight_bytes: bytes read of weights; of an embedding, one row.
        activation_bytes: bytes read and written of buffers, without keys and values in the cache.
        arena_bytes: bytes of the memory that the buffers share.
    """

    steps: int
    weight_bytes: int
    activation_bytes: int
    arena_bytes: int


@dataclass(frozen=True)
class Lowered:
    """A program as native steps, one for each op that is not a view, over buffers 0, 1, ...

    Weights are only needed to build it.

    Attributes:
        program: the program after all passes, with the weight types of its matrices.
        layouts: buffer -> layout of its rows, for buffers that are not float32.
        row_bytes: bytes of a row of each buffer.
    """

    program: Program
    layouts: "dict[int, _native.InputLayout]"
    row_bytes: tuple[int, ...]

    @property
    def calls(self) -> list[Op]:
        """The ops that compute something."""
        return [op for op in self.program.ops if not op.signature.view]

    @property
    def logits(self) -> tuple[int, ...]:
        """The buffer of the logits; none for an encoder or an aligner."""
        return self.program.ops[-1].outputs

    def cost(self) -> Cost:
        """Return the cost of computing one row."""
        return Cost(
            steps=len(self.calls),
            weight_bytes=weight_bytes(self.program),
            activation_bytes=sum(
                self.row_bytes[b] for op in self.calls for b in (*op.inputs, *op.outputs)
            ),
            arena_bytes=self.slots[1],
        )

    def built(
        self,
        runtime: _native.Runtime,
        matrices: Matrices,
        vocab_size: int,
        communicator: "_native.Communicator | None" = None,
    ) -> _native.Program:
        """Build the program for ``runtime``, to which the KV layers have already been added.

        The program of one of several ranks needs their ``communicator``.
        """
        slots, arena_bytes = self.slots
        program = _native.Program(runtime, arena_bytes, vocab_size)
        for op in self.calls:
            arguments = [
                communicator if name == "communicator" else self._argument(op, name, matrices)
                for name in op.signature.arguments
            ]
            buffers = [slots[b] for b in (*op.inputs, *op.outputs)]
            getattr(program, op.signature.base or op.name)(*arguments, *buffers)
        return program

    def _argument(self, op: Op, name: str, matrices: Matrices) -> Any:
        """Return the value of the native argument ``name``, one of the signature's ``arguments``."""
        signature = op.signature
        if name == "work":
            return self.slots[0][self._working_at[op.output]]
        if signature.apart and name in signature.matrices:
            return [
                (matrices.packed((tensor,)), own_layout(self.program, op, tensor))
                for tensor in op.weights[name]
            ]
        if name == "cache":
            return matrices.expert_cache
        if name == "layout":
            return self.layouts.get(op.outputs[-1])
        if name == "input_layout":
            return self.layouts.get(op.inputs[0])
        if name == "width":
            return op.widths[0]
        if name in signature.matrices:
            return matrices.packed(op.weights[name])
        if name in signature.weights | signature.optional:
            offset = op.attrs.get("offset", 0.0) if name == "weight" else 0.0
            vectors = [matrices.vector(tensor).reshape(-1) for tensor in op.weights.get(name, ())]
            if not vectors:  # a norm without weights equals one whose weights are all ones
                return np.ones(op.attrs["head_dim"], np.float32) if name == "weight" else None
            # A norm's offset is added to its weights once, here.
            return np.concatenate(vectors) + np.float32(offset)
        return op.attrs[name]

    @cached_property
    def slots(self) -> "tuple[list[_native.Slot], int]":
        """The slots of all buffers and then of all working memory, and the arena's bytes per row."""
        lifetimes, places = self.lifetimes(), self._places
        plan = plan_arena(lifetimes)
        slots = [
            (plan.offsets[place.root], _aligned(self.row_bytes[place.root]), place.column)
            for place in places
        ]
        slots += [(plan.offsets[i], lifetimes[i].size, 0) for i in self._working_at.values()]
        for b in self._as_logits:
            slots[b] = (_native.LOGITS, self.row_bytes[b], 0)
        return slots, plan.size

    def lifetimes(self) -> list[Lifetime]:
        """Return the lifetime of each buffer's row, in steps.

        A buffer that lies in another's place or in the caller's memory has size 0. The lifetimes of ops'
        working memory follow those of the buffers and last one step.
        """
        last_use, places = self._last_use, self._places
        written = {b: i for i, op in enumerate(self.program.ops) for b in op.outputs}
        last = dict(written)
        for b, place in enumerate(places):
            last[place.root] = max(last[place.root], last_use.get(b, written[b]))
        own = [_aligned(n) if places[b].root == b else 0 for b, n in enumerate(self.row_bytes)]
        for b in self._as_logits:
            own[b] = 0
        working = [
            Lifetime(work_bytes(self.program, op), i, i)
            for i, op in enumerate(self.program.ops)
            if op.signature.works
        ]
        return [*(Lifetime(size, written[b], last[b]) for b, size in enumerate(own)), *working]

    @cached_property
    def _working_at(self) -> dict[int, int]:
        """Output of an op with working memory -> the index of that memory among lifetimes and slots."""
        outputs = [op.output for op in self.program.ops if op.signature.works]
        return {b: len(self.row_bytes) + i for i, b in enumerate(outputs)}

    @cached_property
    def _as_logits(self) -> list[int]:
        """The logits, and the buffers that one-input ops such as a soft cap turn into them in place."""
        writers = {b: op for op in self.program.ops for b in op.outputs}
        chain = list(self.logits)
        for b in chain:
            op = writers[b]
            if op.name != "linear" and len(op.inputs) == 1:
                [source] = op.inputs
                if self._places[source].root == self._places[b].root:
                    chain.append(source)
        return chain if chain and writers[chain[-1]].name == "linear" else list(self.logits)

    @cached_property
    def _last_use(self) -> dict[int, int]:
        return {b: i for i, op in enumerate(self.program.ops) for b in op.inputs}

    @cached_property
    def _places(self) -> list[Place]:
        """The place of each buffer: a view lies in its source, a result where a dead input lay.

        A result takes the place of an input only if the rows of both have the same size. The rounded
        result of ``silu_mul`` is narrower than its input and gets a separate place: in its input's, rows
        would lie 64 KiB apart for 8192 columns, all in the same sets of a cache. So the passes may enlarge
        an arena by up to one rounded row.
        """
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

        for i, op in enumerate(self.program.ops):
            for b in op.outputs:
                if op.signature.view:
                    parent = places[op.inputs[0]]
                    places[b] = Place(parent.root, parent.column + 4 * op.attrs["start"])
                elif op.signature.in_place:
                    same = (x for x in op.inputs if self.row_bytes[x] == self.row_bytes[b])
                    places[b] = next((places[x] for x in same if is_free(x, i)), places[b])
                rooms[places[b].root].append(b)
        return places


def _aligned(row_bytes: int) -> int:
    return -(-row_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT


def lower(program: Program) -> Lowered:
    """Lay out the buffers of ``program``, which has the weight types of its matrices."""
    layouts: dict[int, _native.InputLayout] = {}
    row_bytes: dict[int, int] = {}
    for op in program.ops:
        row_bytes |= {b: 4 * width for b, width in zip(op.outputs, op.widths, strict=True)}
        if layout := op.attrs.get("layout"):
            b = op.outputs[-1]
            layouts[b] = _native.InputLayout(
                layout.kind, op.widths[-1], layout.group, layout.inputs, layout.step
            )
            row_bytes[b] = layouts[b].row_bytes
    return Lowered(program, layouts, tuple(row_bytes[b] for b in range(len(row_bytes))))


def own_layout(program: Program, op: Op, tensor: str) -> "_native.InputLayout | None":
    """Return the layout to which an op itself rounds this matrix's inputs; None if they stay float32."""
    kind = program.kinds[tensor]
    inputs = op.attrs["inputs"].get(kind.name, "float32")
    if inputs == "float32":
        return None
    return _input_layout(kind.name, program.shapes[tensor][1], kind.group, inputs)


@functools.cache
def _input_layout(kind: str, depth: int, group: int, inputs: str) -> "_native.InputLayout":
    return _native.InputLayout(kind, depth, group, inputs)


def work_bytes(program: Program, op: Op) -> int:
    """Return the bytes of an op's working memory per input row, as laid out by its file in native/ops."""
    return _head_work(program, op) if op.name == "head_linear" else _expert_work(program, op)


def _head_work(program: Program, op: Op) -> int:
    """Return the bytes of the rounded inputs of all heads."""
    names = op.weights["weight"]
    layouts = (own_layout(program, op, tensor) for tensor in names)
    return len(names) * max(0 if x is None else _aligned(x.row_bytes) for x in layouts)


def _expert_work(program: Program, op: Op) -> int:
    """Return the working memory of ``experts``, in bytes.

    For each chosen expert there are three parts: the inputs in the layouts of gate and up, later the
    result; gate's product; and up's product, later the inputs in the layout of down.
    """

    def widest(role: str) -> int:
        layouts = (own_layout(program, op, tensor) for tensor in op.weights[role])
        depth = program.shapes[op.weights[role][0]][1]
        return max(_aligned(4 * depth if x is None else x.row_bytes) for x in layouts)

    hidden, width = program.shapes[op.weights["down"][0]]
    inner = _aligned(4 * width)
    row = max(widest("gate") + widest("up"), _aligned(4 * hidden)) + inner
    return int(op.attrs["per_token"]) * (row + max(inner, widest("down")))


def held_bytes(programs: Iterable[Program]) -> int:
    """Return the bytes in memory of the packed weights of a model's programs, each matrix counted once.

    The programs have the weight types of their matrices and have been through all passes.
    """
    programs = list(programs)
    vectors = sum(
        _held_bytes(program, role, names, op)
        for program in programs
        for op in program.ops
        for role, names in op.weights.items()
        if role not in op.signature.matrices
    )
    return vectors + sum(matrix_bytes(programs).values())


def matrix_bytes(programs: Iterable[Program]) -> dict[Names, int]:
    """Return a mapping from the tensors that form a matrix to its packed bytes; see :func:`held_bytes`."""
    matrices: dict[Names, int] = {}
    for program in programs:
        for op in program.ops:
            for role, names in op.weights.items():
                if role in op.signature.matrices:
                    parts = [(name,) for name in names] if op.signature.apart else [names]
                    matrices |= {part: _held_bytes(program, role, part, op) for part in parts}
    return matrices


def expert_matrices(program: Program) -> frozenset[Names]:
    """Return the tensor names of the matrices of all experts."""
    routed = (op for op in program.ops if op.signature.routed)
    return frozenset(
        (name,) for op in routed for role in op.signature.matrices for name in op.weights[role]
    )


def expert_memory(program: Program) -> ExpertMemory:
    """Return the memory needed for the matrices of all experts; NO_EXPERTS if there are none."""
    layers = [
        (_expert_sizes(program, op), int(op.attrs["per_token"]))
        for op in program.ops
        if op.signature.routed
    ]
    if not layers:
        return NO_EXPERTS
    return ExpertMemory(
        experts=sum(len(sizes) for sizes, _ in layers),
        bytes=sum(sum(sizes) for sizes, _ in layers),
        slot=max(max(sizes) for sizes, _ in layers),
        least=max(len(sizes) for sizes, _ in layers),
        token=sum(sum(sorted(sizes)[-chosen:]) for sizes, chosen in layers),
    )


def _expert_sizes(program: Program, op: Op) -> list[int]:
    """Return the bytes of the matrices of each expert of an op."""
    roles = sorted(op.signature.matrices)
    return [
        sum(_held_bytes(program, role, (op.weights[role][n],), op) for role in roles)
        for n in range(len(op.weights[roles[0]]))
    ]


def weight_bytes(program: Program) -> int:
    """Return the bytes of packed weights that are read to compute one row, including padding."""
    return sum(_weight_bytes(program, op) for op in program.ops)


def expert_costs(program: Program) -> ExpertCosts:
    """Return the costs of all experts of the program, as packed."""
    held = read = 0
    for op in program.ops:
        if op.signature.routed:
            held += sum(
                _held_bytes(program, role, (n,), op) for role, ns in op.weights.items() for n in ns
            )
            read += _weight_bytes(program, op)
    return ExpertCosts(held, read / held) if held else ExpertCosts()


def _weight_bytes(program: Program, op: Op) -> int:
    total = 0
    for role, names in op.weights.items():
        if op.signature.apart:
            sizes = (_held_bytes(program, role, (name,), op) for name in names)
            total += op.for_a_row(sum(sizes))
            continue
        size = _held_bytes(program, role, names, op)
        rows = sum(flat(program.shapes[name])[0] for name in names)
        total += size // rows if op.signature.reads_a_row else size
    return total


def _held_bytes(program: Program, role: str, names: tuple[str, ...], op: Op) -> int:
    """Return the bytes of the tensors in one role of an op, concatenated."""
    shapes = [flat(program.shapes[name]) for name in names]
    if role in op.signature.matrices:
        rows = sum(shape[0] for shape in shapes)
        return packed_bytes(program.kinds[names[0]], rows, shapes[0][1])
    return 4 * sum(map(math.prod, shapes))

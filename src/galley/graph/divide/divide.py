"""The program of one rank, from the program of the whole model."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from galley.errors import SettingsError
from galley.formats.parts import Part, PartWeights
from galley.formats.weights import Weights
from galley.graph.divide.columns import (
    Division,
    Range,
    count,
    evenly,
    held_before,
    is_everywhere,
    joined,
    scaled,
    within,
)
from galley.graph.divide.sharding import (
    RECURRENCES,
    divide_heads,
    divide_recurrence,
    head_units,
    propagate_shardings,
    recurrence_divisions,
)
from galley.graph.program import KVLayout, Op, Program, StateLayout


@dataclass(frozen=True, slots=True)
class Divided:
    """The part of a program that one rank computes.

    Attributes:
        rank, ranks: its number, and how many there are.
        program: its program.
        parts: names of its tensors that are rows of the checkpoint's -> these rows.
        adapted: adapted matrix -> its rows at this rank; for matrices that are whole, there is none.
    """

    rank: int
    ranks: int
    program: Program
    parts: Mapping[str, Part]
    adapted: Mapping[str, tuple[Range, ...]]

    def weights(self, weights: Weights) -> PartWeights:
        """Return this rank's tensors, of those of the whole model."""
        own = {name for op in self.program.ops for names in op.weights.values() for name in names}
        return PartWeights(weights, frozenset(own - self.parts.keys()), self.parts)

    def kinds(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """Return the weight types chosen for the model's matrices by the names of this rank's."""
        own = self.program.matrices
        parts = {n: chosen[p.source] for n, p in self.parts.items() if p.source in chosen}
        return {n: k for n, k in {**chosen, **parts}.items() if n in own}


def divide(program: Program, rank: int, ranks: int) -> Divided:
    """Return the program of one rank; the programs of all ranks have the same ops in the same order.

    The logits are whole at rank 0 only.

    Raises:
        SettingsError: the model cannot be divided among this many ranks; the message says why.
    """
    if program.encoder is not None:
        raise SettingsError(
            f"tensor_parallel is {ranks}, but speech models are not divided; leave it out"
        )
    return _Divider(program, rank, ranks).divided()


class _Divider:
    """Writes the ops of one rank.

    Buffers of the whole program are held as buffers of this rank: all columns, or those of a division.
    """

    def __init__(self, program: Program, rank: int, ranks: int) -> None:
        self._program = program
        self._rank = rank
        self._ranks = ranks
        self._shardings = propagate_shardings(program, ranks)
        self._routers = program.routers
        self._widths = program.widths()
        self._held: dict[int, tuple[int, Division | None]] = {}
        self._gathered: dict[int, int] = {}
        self._cut: dict[tuple[int, Division], int] = {}
        self._ops: list[Op] = []
        self._buffers = 0
        self._kv: dict[int, KVLayout] = {}
        self._states: dict[int, StateLayout] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._parts: dict[str, Part] = {}
        self._adapted: dict[str, tuple[Range, ...]] = {}

    def divided(self) -> Divided:
        for op in self._program.ops:
            self._divide(op)
        last = self._program.ops[-1].output
        if self._held[last][1] is not None:
            self._gather(last, leader_only=True)
        program = dataclasses.replace(
            self._program,
            ops=tuple(self._ops),
            kv=tuple(self._kv.get(i, kv) for i, kv in enumerate(self._program.kv)),
            states=tuple(self._states.get(i, one) for i, one in enumerate(self._program.states)),
            shapes=self._shapes,
        )
        return Divided(self._rank, self._ranks, program, self._parts, self._adapted)

    def _divide(self, op: Op) -> None:
        own = {
            "embed": self._embed,
            "linear": self._linear,
            "attention": self._attention,
            "encoder_attention": self._attention,
            "causal_conv": self._convolution,
            "columns": self._columns,
            "experts": self._experts,
            "lora": self._lora,
            **dict.fromkeys(RECURRENCES, self._recurrence),
        }
        if op.name in own:
            own[op.name](op)
        elif op.name == "sigmoid_scale":
            x, division = self._held[op.inputs[0]]
            self._emit(op, (x, self._whole(op.inputs[1])), division)
        elif op.name == "join_heads" and op.attrs["heads"] == 1:
            self._joined(op)
        elif op.signature.columnwise:
            inputs, division = self._alike(op.inputs)
            self._emit(op, inputs, division)
        elif (units := head_units(op, self._widths)) is not None:
            self._by_heads(op, units.made, units.read)
        else:
            self._emit(op, tuple(map(self._whole, op.inputs)), None)

    def _emit(
        self,
        op: Op,
        inputs: tuple[int, ...],
        division: Division | None,
        weights: Mapping[str, tuple[str, ...]] | None = None,
        **attrs: Any,
    ) -> None:
        """Add the op with these inputs; its outputs, of which a divided op has one, are divided."""
        weights = op.weights if weights is None else weights
        for names in weights.values():
            for name in names:
                self._shapes.setdefault(name, self._program.shapes.get(name, ()))
        widths = op.widths if division is None else (count(division[self._rank]),)
        outputs = tuple(range(self._buffers, self._buffers + len(op.outputs)))
        self._buffers += len(outputs)
        made = dataclasses.replace(
            op,
            inputs=inputs,
            outputs=outputs,
            widths=widths,
            weights=weights,
            attrs={**op.attrs, **attrs},
        )
        self._ops.append(made)
        for b, local in zip(op.outputs, outputs, strict=True):
            self._held[b] = (local, division)

    def _gather(self, buffer: int, *, leader_only: bool = False) -> int:
        local, division = self._held[buffer]
        assert division is not None
        assert all(len(ranges) == 1 for ranges in division)
        widths = tuple(count(ranges) for ranges in division)
        assert sum(widths) == self._widths[buffer], "the ranks' columns overlap"
        self._ops.append(
            Op(
                "all_gather",
                (local,),
                (self._buffers,),
                (self._widths[buffer],),
                {},
                {"ranks": widths, "leader_only": leader_only},
            )
        )
        self._buffers += 1
        return self._buffers - 1

    def _whole(self, buffer: int) -> int:
        """Return this rank's buffer with all columns, gathered once."""
        local, division = self._held[buffer]
        if division is None or is_everywhere(division, self._widths[buffer]):
            return local
        if buffer not in self._gathered:
            self._gathered[buffer] = self._gather(buffer)
        return self._gathered[buffer]

    def _part(self, buffer: int, division: Division) -> int:
        """Return this rank's buffer with the columns of a division."""
        local, held = self._held[buffer]
        if held == division:
            return local
        whole = self._whole(buffer)
        if is_everywhere(division, self._widths[buffer]):
            return whole
        if (buffer, division) not in self._cut:
            ((begin, end),) = division[self._rank]
            view = Op("columns", (whole,), (self._buffers,), (end - begin,), {}, {"start": begin})
            self._ops.append(view)
            self._cut[buffer, division] = self._buffers
            self._buffers += 1
        return self._cut[buffer, division]

    def _alike(self, buffers: tuple[int, ...]) -> tuple[tuple[int, ...], Division | None]:
        """Return the ranks' buffers as they are if they are divided alike, or else whole."""
        divisions = {self._held[b][1] for b in buffers}
        if len(divisions) == 1:
            return tuple(self._held[b][0] for b in buffers), divisions.pop()
        return tuple(map(self._whole, buffers)), None

    def _rows(self, name: str, ranges: tuple[Range, ...]) -> tuple[str, ...]:
        """Return the names of these rows of a tensor."""
        shape = self._program.shapes[name]
        if ranges == ((0, shape[0]),):
            return (name,)
        parts = [Part(name, begin, end) for begin, end in ranges]
        for part in parts:
            self._parts[part.name] = part
            self._shapes[part.name] = (part.end - part.begin, *shape[1:])
        return tuple(part.name for part in parts)

    def _embed(self, op: Op) -> None:
        """Divide the table by its rows, as the output layer that may be the same matrix is divided."""
        name = op.tensor("weight")
        division = evenly(self._program.shapes[name][0], self._ranks)
        if division is None:
            self._emit(op, (), None)
            return
        weights = {"weight": self._rows(name, division[self._rank])}
        ranks = tuple(count(ranges) for ranges in division)
        part = dataclasses.replace(op, name="embed_part", weights=weights, attrs={"ranks": ranks})
        self._emit(part, (), None, weights)

    def _linear(self, op: Op) -> None:
        inputs, sharding = (self._whole(op.inputs[0]),), self._shardings[op.output]
        division = sharding if isinstance(sharding, tuple) else evenly(op.width, self._ranks)
        if op.tensor("weight") in self._routers:
            division = None  # small, and all ranks need the choices
        if division is None or is_everywhere(division, op.width):
            self._emit(op, inputs, division)
            return
        own = division[self._rank]
        weights = {role: self._rows(op.tensor(role), own) for role in op.weights}
        self._emit(op, inputs, division, weights)

    def _attention(self, op: Op) -> None:
        own, attrs, rank = divide_heads(op.attrs, self._ranks), op.attrs, self._rank
        inputs = (
            self._part(op.inputs[0], own.of_heads(attrs["key_dim"])),
            self._part(op.inputs[1], own.of_kv_heads(attrs["key_dim"])),
            self._part(op.inputs[2], own.of_kv_heads(attrs["value_dim"])),
        )
        heads, kv_heads = (end - begin for begin, end in (own.heads[rank], own.kv_heads[rank]))
        if op.name == "attention":
            layout = self._program.kv[attrs["layer"]]
            self._kv[attrs["layer"]] = dataclasses.replace(layout, kv_heads=kv_heads)
        weights = {role: self._rows(op.tensor(role), (own.heads[rank],)) for role in op.weights}
        division = own.of_heads(attrs["value_dim"])
        self._emit(op, inputs, division, weights, heads=heads, kv_heads=kv_heads)

    def _convolution(self, op: Op) -> None:
        """Divide a convolution, whose columns are independent, as its input is divided."""
        (x,), division = self._alike(op.inputs)
        if division is None:
            self._emit(op, (x,), None)
            return
        own = division[self._rank]
        weights = {role: self._rows(op.tensor(role), own) for role in op.weights}
        layout = self._program.states[op.attrs["state"]]
        self._states[op.attrs["state"]] = StateLayout(layout.rows, count(own))
        self._emit(op, (x,), division, weights)

    def _recurrence(self, op: Op) -> None:
        divisions = recurrence_divisions(op, self._widths, self._ranks)
        own = divide_recurrence(op.attrs, self._ranks)
        if divisions is None or own is None:
            self._emit(op, tuple(map(self._whole, op.inputs)), None)
            return
        inputs = tuple(starmap(self._part, zip(op.inputs, divisions[0], strict=True)))
        mine = own.heads[self._rank]
        heads, groups = (end - begin for begin, end in (mine, own.kv_heads[self._rank]))
        layout = self._program.states[op.attrs["state"]]
        rows = layout.rows // op.attrs["heads"] * heads
        self._states[op.attrs["state"]] = StateLayout(rows, layout.width)
        weights = {role: self._rows(op.tensor(role), (mine,)) for role in op.weights}
        self._emit(op, inputs, divisions[1], weights, heads=heads, groups=groups)

    def _joined(self, op: Op) -> None:
        """Put this rank's columns of both inputs side by side."""
        first, second = (self._held[b][1] for b in op.inputs)
        if first is None or second is None:
            self._emit(op, tuple(map(self._whole, op.inputs)), None)
            return
        division = joined([(0, first), (self._widths[op.inputs[0]], second)])
        inputs = tuple(self._held[b][0] for b in op.inputs)
        self._emit(op, inputs, division, size=count(first[self._rank]))

    def _columns(self, op: Op) -> None:
        local, held = self._held[op.inputs[0]]
        start, whole = op.attrs["start"], self._widths[op.inputs[0]]
        if held is not None and not is_everywhere(held, whole):
            division = within(held, start, op.width)
            required = self._shardings[op.output] == division
            if required or all(len(ranges) == 1 for ranges in division):
                at = held_before(held[self._rank], start)
                self._emit(op, (local,), division, start=at)
                return
        self._emit(op, (self._whole(op.inputs[0]),), None)

    def _by_heads(self, op: Op, made: int, read: tuple[int, ...]) -> None:
        """Divide an op that computes head by head, as its inputs are divided."""
        found = [
            (division, unit)
            for b, unit in zip(op.inputs, read, strict=True)
            if (division := self._held[b][1]) is not None
        ]
        division = None if not found else scaled(found[0][0], found[0][1], made)
        if division is None or is_everywhere(division, op.width):
            self._emit(op, tuple(map(self._whole, op.inputs)), division)
            return
        inputs = []
        for b, unit in zip(op.inputs, read, strict=True):
            own = scaled(division, made, unit)
            assert own is not None
            inputs.append(self._part(b, own))
        heads = scaled(division, made, 1)
        assert heads is not None
        own_heads = heads[self._rank]
        weights, attrs = dict(op.weights), {}
        if op.name == "layer_norm":
            weights = {role: self._rows(op.tensor(role), own_heads) for role in weights}
        elif op.name == "head_linear":
            names = weights["weight"]
            weights["weight"] = tuple(n for begin, end in own_heads for n in names[begin:end])
        elif op.name == "join_heads":
            attrs["heads"] = count(own_heads)
        self._emit(op, tuple(inputs), division, weights, **attrs)

    def _experts(self, op: Op) -> None:
        """Divide each expert: gate and up by rows, whose products the op gathers, and down by rows."""
        inputs = tuple(map(self._whole, op.inputs))
        inner = evenly(self._program.shapes[op.weights["gate"][0]][0], self._ranks)
        made = evenly(op.width, self._ranks)
        if inner is None or made is None:
            self._emit(op, inputs, None)
            return
        weights = {}
        for role, names in op.weights.items():
            own = (made if role.startswith("down") else inner)[self._rank]
            weights[role] = tuple(part for name in names for part in self._rows(name, own))
        self._emit(op, inputs, made, weights, ranks=tuple(count(ranges) for ranges in inner))

    def _lora(self, op: Op) -> None:
        y, division = self._held[op.inputs[0]]
        inputs = (y, self._whole(op.inputs[1]))
        if division is None:
            self._emit(op, inputs, None)
            return
        ((number, _, _),) = op.attrs["modules"]
        own, name = division[self._rank], self._program.adapted[number]
        self._adapted[name] = own
        # Not a tensor of this rank, but the shape of what adapters add here.
        self._shapes[name] = (count(own), self._program.shapes[name][1])
        self._emit(op, inputs, division, modules=((number, 0, count(own)),))

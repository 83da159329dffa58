"""The sharding that the readers of each buffer require, propagated from the last op to the first."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from galley.errors import SettingsError
from galley.graph.divide.columns import (
    Division,
    Range,
    evenly,
    everywhere,
    is_everywhere,
    joined,
    scaled,
    within,
)
from galley.graph.program import Op, Program

RECURRENCES: Final = {"ssm": "vkqa", "delta_rule": "qkvab"}
"""Recurrences -> their inputs: queries and keys, which have groups of heads, and what has heads."""


class Placement(Enum):
    """Shardings that name no columns.

    ``ANY``: whatever the ranks hold can be gathered, or is read column by column. ``REPLICATED``: all
    columns are needed at once, gathered if each rank computes some.
    """

    ANY = "any"
    REPLICATED = "replicated"


ANY: Final = Placement.ANY
REPLICATED: Final = Placement.REPLICATED
Sharding: TypeAlias = Division | Placement


class Heads(NamedTuple):
    """The heads and KV heads of each rank."""

    heads: tuple[Range, ...]
    kv_heads: tuple[Range, ...]

    def of_heads(self, columns: int) -> Division:
        """Return the columns of heads that have this many columns each."""
        return tuple(((a * columns, b * columns),) for a, b in self.heads)

    def of_kv_heads(self, columns: int) -> Division:
        """Return the columns of KV heads that have this many columns each."""
        return tuple(((a * columns, b * columns),) for a, b in self.kv_heads)


def divide_heads(attrs: Mapping[str, Any], ranks: int) -> Heads:
    """Divide the heads of an attention op; ranks share a KV head if there are fewer than ranks.

    Raises:
        SettingsError: there are too few heads, or a rank would get heads of parts of two groups.
    """
    heads, kv_heads = attrs["heads"], attrs["kv_heads"]
    group = heads // kv_heads
    if kv_heads >= ranks:
        kv = tuple((kv_heads * r // ranks, kv_heads * (r + 1) // ranks) for r in range(ranks))
        return Heads(tuple((a * group, b * group) for a, b in kv), kv)
    own = tuple((heads * r // ranks, heads * (r + 1) // ranks) for r in range(ranks))
    kv = tuple((a // group, -(-b // group)) for a, b in own)
    cut = any(
        q - p > 1 and (a % group or b % group) for (a, b), (p, q) in zip(own, kv, strict=True)
    )
    if heads < ranks or cut:
        raise SettingsError(
            f"tensor_parallel is {ranks}, but the model's {heads} attention heads share {kv_heads} KV "
            f"heads and cannot be divided in this way; set it to at most {kv_heads}, or to a multiple of "
            f"{kv_heads} up to {heads}"
        )
    return Heads(own, kv)


def divide_recurrence(attrs: Mapping[str, Any], ranks: int) -> Heads | None:
    """Divide the heads of a recurrence, and their groups of keys and queries.

    None: there are too few, and all ranks compute all of them.
    """
    heads, groups = attrs["heads"], attrs["groups"]
    if groups == 1 and heads >= ranks:
        own = tuple((heads * r // ranks, heads * (r + 1) // ranks) for r in range(ranks))
        return Heads(own, ((0, 1),) * ranks)
    if groups < ranks:
        return None
    share = heads // groups
    kv = tuple((groups * r // ranks, groups * (r + 1) // ranks) for r in range(ranks))
    return Heads(tuple((a * share, b * share) for a, b in kv), kv)


def recurrence_divisions(
    op: Op, widths: Mapping[int, int], ranks: int
) -> tuple[tuple[Division, ...], Division] | None:
    """Return how the inputs and the result of a recurrence are divided; None: they are not."""
    if op.name not in RECURRENCES or (own := divide_recurrence(op.attrs, ranks)) is None:
        return None
    heads, groups = op.attrs["heads"], op.attrs["groups"]

    def of(role: str, buffer: int) -> Division:
        width = widths[buffer]
        return own.of_kv_heads(width // groups) if role in "qk" else own.of_heads(width // heads)

    inputs = zip(RECURRENCES[op.name], op.inputs, strict=True)
    return tuple(of(role, b) for role, b in inputs), own.of_heads(op.width // heads)


def propagate_shardings(program: Program, ranks: int) -> dict[int, Sharding]:
    """Return the sharding of each buffer: replicated if ops that read it require different ones.

    Raises:
        SettingsError: see :func:`divide_heads`.
    """
    return _Propagation(program, ranks).shardings()


class _Propagation:
    def __init__(self, program: Program, ranks: int) -> None:
        self._program = program
        self._ranks = ranks
        self._widths = program.widths()
        self._shardings: dict[int, Sharding] = {}
        self._views: dict[int, list[tuple[int, int, Sharding]]] = {}
        """Buffer -> start, width and sharding of each view of its columns."""
        self._made = self._divisions_of_heads()

    def shardings(self) -> dict[int, Sharding]:
        for op in reversed(self._program.ops):
            for b in op.outputs:
                if b in self._views:
                    self._require(b, self._of_views(b))
            for b, sharding in zip(op.inputs, self._of_inputs(op), strict=True):
                self._require(b, sharding)
        return {b: self._shardings.get(b, ANY) for b in self._widths}

    def _divisions_of_heads(self) -> dict[int, Division]:
        """Return how buffers are divided that follow from the heads of attention and recurrences.

        What is multiplied with such a buffer column by column is best divided in the same way.
        """
        made: dict[int, Division] = {}
        for op in self._program.ops:
            found: Division | None = None
            if op.name in ("attention", "encoder_attention"):
                found = divide_heads(op.attrs, self._ranks).of_heads(op.attrs["value_dim"])
            elif op.name in RECURRENCES:
                divisions = recurrence_divisions(op, self._widths, self._ranks)
                found = None if divisions is None else divisions[1]
            elif op.signature.columnwise:
                found = next((made[b] for b in op.inputs if b in made), None)
            elif (units := head_units(op, self._widths)) is not None and op.inputs[0] in made:
                found = scaled(made[op.inputs[0]], units.read[0], units.made)
            if found is not None:
                made[op.output] = found
        return made

    def _require(self, buffer: int, sharding: Sharding) -> None:
        before = self._shardings.get(buffer, ANY)
        if ANY in (before, sharding):
            self._shardings[buffer] = sharding if before is ANY else before
        elif before != sharding:
            self._shardings[buffer] = REPLICATED

    def _of_inputs(self, op: Op) -> tuple[Sharding, ...]:
        sharding = self._shardings.get(op.outputs[0], ANY) if op.outputs else REPLICATED
        lenient = ANY if sharding is REPLICATED else sharding
        if op.name in ("attention", "encoder_attention"):
            own, attrs = divide_heads(op.attrs, self._ranks), op.attrs
            keys = own.of_kv_heads(attrs["key_dim"])
            return own.of_heads(attrs["key_dim"]), keys, own.of_kv_heads(attrs["value_dim"])
        if op.name in RECURRENCES:
            divisions = recurrence_divisions(op, self._widths, self._ranks)
            return (REPLICATED,) * len(op.inputs) if divisions is None else divisions[0]
        if op.signature.columnwise:
            if lenient is ANY:
                lenient = next((self._made[b] for b in op.inputs if b in self._made), ANY)
            return (lenient,) * len(op.inputs)
        if op.name in ("linear", "experts", "lora", "sigmoid_scale"):
            first = lenient if op.name in ("lora", "sigmoid_scale") else ANY
            return (first, ANY if op.name == "lora" else REPLICATED)[: len(op.inputs)]
        if op.name == "columns":
            self._view(op, sharding)
            return (ANY,)
        return self._of_heads(op, sharding)

    def _of_heads(self, op: Op, sharding: Sharding) -> tuple[Sharding, ...]:
        """Return the inputs' shardings of ops that compute head by head, whose result has whole heads."""
        if (
            op.name == "join_heads"
            and op.attrs["heads"] == 1
            and not isinstance(sharding, Placement)
        ):
            first, second = (self._widths[b] for b in op.inputs)
            return within(sharding, 0, first), within(sharding, first, second)
        units = head_units(op, self._widths)
        if units is None or isinstance(sharding, Placement):
            return (ANY if op.name == "head_linear" else REPLICATED,) * len(op.inputs)
        found = [scaled(sharding, units.made, unit) for unit in units.read]
        return tuple(REPLICATED if division is None else division for division in found)

    def _view(self, op: Op, sharding: Sharding) -> None:
        if sharding is ANY:
            sharding = evenly(op.width, self._ranks) or REPLICATED
            self._shardings[op.output] = sharding
        self._views.setdefault(op.inputs[0], []).append((op.attrs["start"], op.width, sharding))

    def _of_views(self, buffer: int) -> Sharding:
        """Return the sharding of a buffer whose columns are read through views."""
        views, width = sorted(self._views[buffer], key=lambda view: view[:2]), self._widths[buffer]
        divisions = [(start, s) for start, _, s in views if not isinstance(s, Placement)]
        if len(divisions) < len(views):
            return REPLICATED
        if all(is_everywhere(s, n) for _, n, s in views if not isinstance(s, Placement)):
            return everywhere(width, self._ranks)
        ends = [start + n for start, n, _ in views]
        if [start for start, _, _ in views] != [0, *ends[:-1]] or ends[-1] != width:
            return REPLICATED
        return joined(divisions)


class HeadUnits(NamedTuple):
    """Columns that belong together in the result of an op and in each of its inputs."""

    made: int
    read: tuple[int, ...]


def head_units(op: Op, widths: Mapping[int, int]) -> HeadUnits | None:
    """Return the columns of a head, for ops that compute head by head; None for others.

    A norm of whole rows is an op with one head.
    """
    attrs = op.attrs
    if op.name in ("rope", "rms_norm", "layer_norm"):
        return HeadUnits(attrs["head_dim"], (attrs["head_dim"],))
    if op.name == "head_columns":
        return HeadUnits(attrs["size"], (attrs["stride"],))
    if op.name == "head_linear":
        heads = len(op.weights["weight"])
    elif op.name == "join_heads":
        heads = attrs["heads"]
    else:
        return None
    return HeadUnits(op.width // heads, tuple(widths[b] // heads for b in op.inputs))

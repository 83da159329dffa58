"""The types that weights may be served in: one table, which every part of Galley reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

WeightDtypeName = Literal["float32", "bf16", "f16", "int8", "int7", "int4"]
"""Types that dense matrices may be converted to when a model is loaded: those that an executor has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDtype:
    """One weight type.

    Attributes:
        name: as settings, kernels and reports spell it.
        bits: bits of one weight, without scales.
        aliases: other spellings that are accepted where a weight type is named.
        element: safetensors' name of it for a dense tensor; empty for integers and FP8.
        is_integer: whether weights are integers with scales.
        scales: element type of the scales, if there are any: of integers rounded at load, and of FP8.
        grouped: whether a row rounded at load has a scale for each group of columns, rather than one.
        zero_points: whether checkpoints may have a zero point for each group.
        executors: executors that run it.
        inputs: input types that executor "cpu" multiplies it by; the fastest on some instruction set first.
        products: machine type -> input types that it is multiplied by in a plan, of which the first that
            the machine supports is used; "" stands for the machine types that are not named.
        layout: type whose bytes it has in a plan, if that is a different one.
    """

    name: str
    bits: int
    aliases: tuple[str, ...] = ()
    element: Literal["", "F32", "BF16", "F16"] = ""
    is_integer: bool = False
    scales: Literal["F32", "BF16"] | None = None
    grouped: bool = False
    zero_points: bool = False
    executors: frozenset[str] = frozenset({"cpu", "reference"})
    inputs: tuple[str, ...] = ()
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    layout: str = ""

    @property
    def bytes(self) -> float:
        """Bytes of one weight, without scales."""
        return self.bits / 8

    def products_on(self, machine: str) -> tuple[str, ...]:
        """Return the input types on a machine type, preferred first; none if it does not run there."""
        return self.products.get(machine, self.products.get("", ()))


_WIDENED: Final = ("bfloat16", "float32")

_TABLE: Final = (
    WeightDtype(
        name="float32",
        bits=32,
        aliases=("f32",),
        element="F32",
        inputs=("float32",),
        products={"": ("float32",)},
    ),
    WeightDtype(
        name="bf16",
        bits=16,
        aliases=("bfloat16",),
        element="BF16",
        inputs=("bfloat16", "float32"),
        products={"": _WIDENED},
    ),
    WeightDtype(
        name="f16",
        bits=16,
        aliases=("float16",),
        element="F16",
        inputs=("float32",),
        products={"cpu": ("float32",), "": _WIDENED},
    ),
    WeightDtype(
        name="fp8",
        bits=8,
        scales="F32",
        executors=frozenset(),
        products={"gpu": ("fp8", "bfloat16")},
        layout="int8",
    ),
    WeightDtype(
        name="int8",
        bits=8,
        is_integer=True,
        scales="BF16",
        grouped=True,
        inputs=("int8", "bfloat16", "float32"),
        products={"cpu": ("int8",), "": ("int8", "bfloat16")},
    ),
    # Stored as int8. CPUs with AVX2 but not VNNI multiply it faster.
    WeightDtype(
        name="int7",
        bits=8,
        is_integer=True,
        scales="BF16",
        grouped=True,
        inputs=("int8", "bfloat16", "float32"),
        products={"cpu": ("int8",)},
        layout="int8",
    ),
    WeightDtype(
        name="int4",
        bits=4,
        is_integer=True,
        scales="BF16",
        grouped=True,
        zero_points=True,
        inputs=("int8", "bfloat16", "float32"),
        products={"cpu": ("int8",), "": _WIDENED},
    ),
)

WEIGHT_DTYPES: Final[Mapping[str, WeightDtype]] = {one.name: one for one in _TABLE}
"""Name -> type, the largest first."""

RUNNABLE: Final = tuple(name for name, one in WEIGHT_DTYPES.items() if one.executors)
"""Names of the types that some executor runs: the members of :data:`WeightDtypeName`."""

INTEGERS: Final = tuple(name for name, one in WEIGHT_DTYPES.items() if one.is_integer)
"""Names of the integer types, the largest first."""

SIZES: Final = tuple(name for name in INTEGERS if not WEIGHT_DTYPES[name].layout)
"""Names of one integer type of each size, the largest first."""

HALVES: Final = tuple(
    name for name, one in WEIGHT_DTYPES.items() if one.bits == 16 and not one.scales
)
"""Names of the 16-bit float types."""

COMPARED: Final = ("bf16", "int8", "int4")
"""Types that a plan compares by default."""

SMALLEST: Final = min(RUNNABLE, key=lambda name: WEIGHT_DTYPES[name].bits)
"""Name of the type with the fewest bits that some executor runs."""

SPELLINGS: Final[Mapping[str, str]] = {
    alias: name for name, one in WEIGHT_DTYPES.items() for alias in one.aliases
}
"""Other spelling -> name."""

ACTIVATION_SPELLINGS: Final[Mapping[str, str]] = {"bf16": "bfloat16", "f32": "float32"}
"""Other spelling -> long name of a type of inputs, keys, values or arithmetic."""


def smaller_than(name: str) -> tuple[str, ...]:
    """Return the names of runnable types with fewer bits, one of each size, the largest first."""
    fewer = (WEIGHT_DTYPES[other] for other in RUNNABLE)
    bits = WEIGHT_DTYPES[name].bits
    return tuple(one.name for one in fewer if one.bits < bits and not one.layout)

"""The table of weight types agrees with the native kernels, the executors and the other tables."""

import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from galley import _native
from galley.errors import UnsupportedModel
from galley.formats.weights import DENSE_KINDS, DenseWeight, WeightKind
from galley.formats.weights import WEIGHT_TYPES as ELEMENT_BYTES
from galley.ops.kinds import choose_activations
from galley.ops.packing import has_kernel, pack, packed_bytes
from galley.plan.hardware import TABLE, read_machines
from galley.plan.steps import peak_rate
from galley.quant.rtn import rounded_kind
from galley.settings.engine import WeightDType
from galley.types.weight_dtypes import (
    COMPARED,
    RUNNABLE,
    SPELLINGS,
    WEIGHT_DTYPES,
    WeightDtypeName,
    smaller_than,
)

NATIVE = Path(__file__).parents[2] / "native/bindings/module.cpp"
OUTPUTS, DEPTH = 64, 512


def test_the_table_has_the_kinds_of_the_native_kernels_and_no_others() -> None:
    text = NATIVE.read_text(encoding="utf-8")
    found = re.search(r"kKindNames\[\] = \{(.*?)\}", text)
    narrow = re.search(r'kNarrowName = "(\w+)"', text)
    assert found is not None
    assert narrow is not None
    native = {*re.findall(r'"(\w+)"', found[1]), narrow[1]}
    assert native == {name for name, one in WEIGHT_DTYPES.items() if "cpu" in one.executors}
    assert set(RUNNABLE) == set(get_args(WeightDtypeName)) == set(get_args(WeightDType)) - {"auto"}


@pytest.mark.parametrize("name", WEIGHT_DTYPES)
def test_a_type_has_a_kernel_if_the_table_says_so(name: str) -> None:
    one = WEIGHT_DTYPES[name]
    kind = rounded_kind(name, DEPTH)
    assert has_kernel(kind) == ("cpu" in one.executors)
    assert kind.is_integer == one.is_integer or name == "fp8"
    if "cpu" not in one.executors:
        with pytest.raises(ValueError, match=name):
            packed_bytes(kind, OUTPUTS, DEPTH)
        return
    dense = DenseWeight("w", "F32", (OUTPUTS, DEPTH), np.zeros(4 * OUTPUTS * DEPTH, np.uint8))
    groups = DEPTH // kind.group if kind.group else 1
    scales = OUTPUTS * groups * ELEMENT_BYTES[one.scales] if one.scales else 0
    extra = pack([dense], kind).bytes - OUTPUTS * DEPTH * one.bytes - scales
    assert 0 <= extra < OUTPUTS * DEPTH * one.bytes / 10  # padding and sums


@pytest.mark.parametrize("name", RUNNABLE)
def test_zero_points_have_a_kernel_if_the_table_says_so(name: str) -> None:
    one = WEIGHT_DTYPES[name]
    if not one.is_integer:
        return
    kind = WeightKind(name, 64, "F32", zeros=True)
    if one.zero_points:
        assert packed_bytes(kind, OUTPUTS, DEPTH) > 0
        return
    with pytest.raises(ValueError, match="zero points"):
        packed_bytes(kind, OUTPUTS, DEPTH)


@pytest.mark.parametrize("name", RUNNABLE)
def test_each_input_of_the_table_has_a_native_layout(name: str) -> None:
    group = rounded_kind(name, DEPTH).group
    for inputs in ("float32", "bfloat16", "int8"):
        if inputs in WEIGHT_DTYPES[name].inputs:
            assert choose_activations(name, inputs, _native.supported_isas()[0]) == inputs
            if inputs != "float32":
                assert _native.InputLayout(name, DEPTH, group, inputs).row_bytes > 0


def test_dense_types_are_those_of_checkpoints() -> None:
    dense = {one.element: WeightKind(name) for name, one in WEIGHT_DTYPES.items() if one.element}
    assert dense == DENSE_KINDS
    assert {element: WEIGHT_DTYPES[k.name].bytes for element, k in DENSE_KINDS.items()} == (
        ELEMENT_BYTES
    )


def test_spellings_name_a_type_and_none_twice() -> None:
    assert SPELLINGS["bfloat16"] == "bf16"
    assert not SPELLINGS.keys() & WEIGHT_DTYPES.keys()
    assert set(SPELLINGS.values()) <= WEIGHT_DTYPES.keys()
    assert set(COMPARED) <= set(RUNNABLE)


def test_types_are_listed_from_the_largest_to_the_smallest() -> None:
    bits = [one.bits for one in WEIGHT_DTYPES.values()]
    assert bits == sorted(bits, reverse=True)
    assert smaller_than("float32") == tuple(n for n in RUNNABLE[1:] if n != "int7")
    assert smaller_than("bf16") == smaller_than("f16") == ("int8", "int4")
    assert smaller_than("int4") == ()


def test_a_plan_multiplies_a_type_where_the_table_says_so() -> None:
    machines = read_machines(TABLE)
    for name, one in WEIGHT_DTYPES.items():
        for machine in machines:
            types = [t for t in one.products_on(machine.kind) if t in machine.tflops]
            assert peak_rate(name, machine) == (machine.tflops[types[0]] if types else 0)
            if "cpu" not in one.executors and machine.kind == "cpu":
                assert not types
            # A plan's assumptions about a CPU match the executor's choices on it.
            if machine.kind == "cpu" and types:
                assert set(one.products_on("cpu")) <= set(one.inputs)


def test_a_kind_of_the_table_without_a_kernel_is_refused_and_named() -> None:
    dense = DenseWeight("some.weight", "F32", (4, 64), np.zeros(4 * 4 * 64, np.uint8))
    with pytest.raises(UnsupportedModel, match=r"some\.weight is kept as .*fp8"):
        pack([dense], rounded_kind("fp8", 64))

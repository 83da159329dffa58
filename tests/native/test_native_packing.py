"""Native rounding and packing against ``quant/rtn.py``, bit for bit."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from galley import _native
from galley.errors import UnsupportedModel
from galley.formats.values import bf16_bits, to_float32
from galley.formats.weights import DenseWeight, WeightType
from galley.ops.packing import pack_integers
from galley.quant.rtn import GROUPS, QUANTIZERS, default_group, quantize_int4
from tests.native.harness import KINDS, Floats, as_weight, pack_as
from tests.thorough import examples

TAGS: tuple[WeightType, ...] = ("F32", "BF16", "F16")

# Halves of small integers make ties; the tiny ones make scales that are zero, denormal or near the
# smallest divisor.
EDGES = np.array(
    [*np.arange(-8, 8.5, 0.5), 0.0, -0.0, 1e-45, -1e-40, 1e-38, 2e-30, -1.3e-28, 65504.0, -6e-8],
    np.float32,
)


def matrix_of(seed: int, outputs: int, depth: int, size: float, edges: float) -> Floats:
    """Return normal values of ``size``, a share of them replaced by a few edge cases."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal((outputs, depth)) * size
    few = rng.choice(EDGES, rng.integers(1, 5))
    edge = rng.random((outputs, depth)) < edges
    return np.where(edge, rng.choice(few, (outputs, depth)), normal).astype(np.float32)


matrices = st.builds(
    matrix_of,
    seed=st.integers(0, 2**32 - 1),
    outputs=st.integers(1, 50),
    depth=st.integers(1, 400),
    size=st.sampled_from([0, 1, 0.02, 1e-30, 1e-36]),
    edges=st.sampled_from([0, 0.1, 1]),
)


def stored_as(matrix: Floats, tag: WeightType) -> DenseWeight:
    """Return the checkpoint tensor that results from rounding ``matrix`` to ``tag``."""
    raw: Any = matrix
    if tag == "F16":
        raw = matrix.astype(np.float16)
    elif tag == "BF16":
        raw = bf16_bits(matrix)
    return DenseWeight("w", tag, matrix.shape, np.ascontiguousarray(raw).reshape(-1).view(np.uint8))


def same_bytes(made: _native.Packed, truth: _native.Packed) -> bool:
    return np.array_equal(made.memory, truth.memory)


@settings(max_examples=examples(200))
@given(matrix=matrices, tag=st.sampled_from(TAGS))
@example(matrix=np.full((17, 33), -0.0, np.float32), tag="F32")
@example(matrix=np.full((3, 5), 3e38, np.float32), tag="F32")
def test_rounding_has_the_bits_of_the_truth(matrix: Floats, tag: WeightType) -> None:
    weight = stored_as(matrix, tag)
    threads = 1 + matrix.shape[0] % 3
    for kind, quantize in QUANTIZERS.items():
        made = pack_as(kind, weight, threads=threads)
        assert same_bytes(made, pack_integers([quantize(weight)]))


@settings(max_examples=examples(200))
@given(
    matrix=matrices,
    tag=st.sampled_from(TAGS),
    group=st.sampled_from(GROUPS),
    symmetric=st.booleans(),
)
@example(matrix=np.full((2, 40), -0.0, np.float32), tag="BF16", group=32, symmetric=False)
def test_every_group_with_and_without_zero_points(
    matrix: Floats, tag: WeightType, group: int, symmetric: bool
) -> None:
    weight = stored_as(matrix, tag)
    truth = quantize_int4(weight, group=group, symmetric=symmetric)
    outputs, depth = matrix.shape
    made = _native.Packed("int4", outputs, depth, group, "BF16", not symmetric)
    assert made.fill([(weight.data, tag)], 2) == -1
    assert same_bytes(made, pack_integers([truth]))


@settings(max_examples=examples(100))
@given(
    matrix=matrices,
    tag=st.sampled_from(TAGS),
    kind=st.sampled_from(["int8", "int7"]),
    group=st.sampled_from(GROUPS),
)
def test_every_group_of_int8(matrix: Floats, tag: WeightType, kind: str, group: int) -> None:
    weight = stored_as(matrix, tag)
    made = _native.Packed(kind, matrix.shape[0], matrix.shape[1], group, "BF16")
    assert made.fill([(weight.data, tag)], 2) == -1
    assert same_bytes(made, pack_integers([QUANTIZERS[kind](weight, group=group)]))


def test_seven_bits_hold_no_integer_beyond_63() -> None:
    packed = _native.Packed("int7", 16, 64)
    assert packed.kind == "int7"
    q = np.full(16 * 64, 63, np.int8)
    scales = np.zeros(4 * 16, np.uint8)
    packed.fill_integer(q.view(np.uint8), scales, None, 1)
    q[7] = -64
    with pytest.raises(ValueError, match="seven bits"):
        packed.fill_integer(q.view(np.uint8), scales, None, 1)


def test_half_steps_are_ties_to_even() -> None:
    """The groups have a scale of one, and each tie within their range."""
    matrix = np.array([[-8.0, *np.arange(-7.5, 7.0, 0.5), 0.0, 0.0]], np.float32)
    weight = as_weight(matrix)
    truth = quantize_int4(weight)
    assert truth.scales.tolist() == [[1.0]]
    assert truth.q[0, 1:4].tolist() == [0, 1, 2]  # -7.5, -7, -6.5
    assert same_bytes(pack_as("int4", weight), pack_integers([truth]))


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_any_type_follow_one_another(kind: str) -> None:
    rng = np.random.default_rng(5)
    parts = [
        stored_as(rng.standard_normal((rows, 70)).astype(np.float32), tag)
        for rows, tag in zip((5, 16, 1), TAGS, strict=True)
    ]
    whole = as_weight(np.concatenate([to_float32(part) for part in parts]))
    assert same_bytes(pack_as(kind, *parts, threads=3), pack_as(kind, whole))


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_integers_cannot_stand_for_is_refused(kind: str, bad: float) -> None:
    good = as_weight(np.ones((20, 40), np.float32))
    matrix = np.ones((20, 40), np.float32)
    matrix[18, 39] = bad
    broken = DenseWeight("layers.3.up", "F32", (20, 40), matrix.reshape(-1).view(np.uint8))
    with pytest.raises(UnsupportedModel, match=r"layers\.3\.up"):
        pack_as(kind, good, broken, good, threads=2)
    quantize = QUANTIZERS[kind]
    with pytest.raises(UnsupportedModel, match=r"layers\.3\.up"):
        quantize(broken)


def test_values_too_far_apart_for_a_zero_point_are_refused() -> None:
    weight = as_weight(np.array([[3e38, -3e38]], np.float32))
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(UnsupportedModel):
        quantize_int4(weight, symmetric=False)
    made = _native.Packed("int4", 1, 2, group=32, scale_type="BF16", zeros=True)
    assert made.fill([(weight.data, "F32")], 1) == 0


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_canonical_integers_pack_alike_on_any_number_of_threads(kind: str) -> None:
    values = np.random.default_rng(1).standard_normal((147, 70)).astype(np.float32)
    weight = QUANTIZERS[kind](as_weight(values))
    alone = pack_integers([weight])
    for threads in (2, 5):
        assert same_bytes(pack_integers([weight], threads=threads), alone)


def test_the_group_is_the_truths() -> None:
    """A view made later must have the layout in which the matrix was packed."""
    for kind, depth in product(("int4", "int8"), (256, 192, 96, 70, 5)):
        packed = pack_as(kind, as_weight(np.ones((3, depth), np.float32)))
        group = default_group(depth)
        view = _native.Packed(kind, 3, depth, group=group, scale_type="BF16", memory=packed.memory)
        assert same_bytes(view, packed)

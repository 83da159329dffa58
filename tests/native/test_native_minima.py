"""Integer weights with float minima and with nested scales, as in GGUF's types, against numpy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley import _native
from galley.formats.values import bf16_bits, dequantize
from galley.formats.weights import SUPER, IntWeight, Nested, ScaleType
from galley.ops.packing import pack_integers, packed_bytes
from tests.native.harness import ISAS, Floats, run_embed, run_linear
from tests.native.products import close, expected_integer, random_matrix
from tests.thorough import examples

INPUTS = ("int8", "bfloat16", "float32")


def exactly(values: Floats, scale_type: ScaleType) -> Floats:
    """Return the nearest values that the type can hold."""
    if scale_type == "BF16":
        return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32).reshape(values.shape)
    return values.astype(np.float16).astype(np.float32) if scale_type == "F16" else values


def made(
    seed: int, shape: tuple[int, int], bits: int, group: int, scale_type: ScaleType, minima: bool
) -> IntWeight:
    """Return random integers with random scales of both signs, and minima."""
    rng = np.random.default_rng(seed)
    outputs, depth = shape
    groups = -(-depth // group)
    q = (
        rng.integers(-128, 128, shape, np.int8)
        if bits == 8
        else rng.integers(0, 16, shape, np.uint8)
    )
    if scale_type != "F16xI8":
        scales, least = (
            exactly(rng.normal(0, 0.1, (outputs, groups)).astype(np.float32), scale_type)
            for _ in range(2)
        )
        kept = least if minima else None
        return IntWeight("w", bits, q, group, scales, None, scale_type, kept)
    nested = [
        Nested(
            rng.integers(-128, 128, (outputs, groups), np.int8),
            rng.normal(0, 0.01, (outputs, -(-depth // SUPER))).astype(np.float16),
        )
        for _ in range(2 if minima else 1)
    ]
    floats = [one.floats(group) for one in nested]
    offsets = floats[1] if minima else None
    both = (nested[0], nested[1] if minima else None)
    return IntWeight("w", bits, q, group, floats[0], None, scale_type, offsets, both)


KINDS = st.fixed_dictionaries(
    {
        "bits": st.sampled_from([4, 8]),
        "group": st.sampled_from([16, 32, 64, 128]),
        "scale_type": st.sampled_from(["F32", "F16", "BF16", "F16xI8"]),
        "minima": st.booleans(),
    }
)


@settings(max_examples=examples(150))
@given(
    isa=st.sampled_from(ISAS),
    rows=st.one_of(st.integers(1, 30), st.sampled_from([33, 64, 130])),
    outputs=st.integers(1, 100),
    depth=st.one_of(st.integers(1, 300), st.sampled_from([577, 1100])),
    kind=KINDS,
    activations=st.sampled_from(INPUTS),
    seed=st.integers(0, 2**32 - 1),
)
def test_products(
    isa: str,
    rows: int,
    outputs: int,
    depth: int,
    kind: dict[str, Any],
    activations: str,
    seed: int,
) -> None:
    weight = made(seed, (outputs, depth), **kind)
    x = random_matrix(seed + 1, rows, depth) + np.float32(0.3)
    got = run_linear(x, pack_integers([weight]), outputs, isa=isa, activations=activations)
    expected, magnitude = expected_integer(x, weight, activations)
    if weight.minima is not None:
        # Its terms and those of the integers may have been larger than their sums.
        magnitude = magnitude + np.abs(x).sum(1, keepdims=True) * np.abs(weight.minima).max()
        magnitude = magnitude + np.abs(x).sum(1, keepdims=True) * np.abs(weight.scales).max() * 128
    assert close(got, expected, magnitude)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", INPUTS)
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 16), (8, 32)])
def test_a_row_has_the_same_bits_alone_and_among_any_number(
    bits: int, group: int, activations: str, isa: str
) -> None:
    outputs, depth = 147, 1300
    packed = pack_integers([made(1, (outputs, depth), bits, group, "F16xI8", minima=True)])
    x = random_matrix(2, 64, depth)

    def run(rows: Floats, threads: int = 1) -> Floats:
        return run_linear(rows, packed, outputs, isa=isa, activations=activations, threads=threads)

    together = run(x)
    for row in (0, 17, 63):
        assert np.array_equal(run(x[row : row + 1])[0], together[row])
    for count in (*range(2, 20), 31, 33):
        assert np.array_equal(run(x[:count]), together[:count]), count
    for threads in (2, 3, 8):
        assert np.array_equal(run(x, threads), together)


@settings(max_examples=examples(40))
@given(
    isa=st.sampled_from(ISAS),
    outputs=st.integers(1, 40),
    depth=st.integers(1, 600),
    kind=KINDS,
    seed=st.integers(0, 2**32 - 1),
)
def test_embeddings_are_the_dequantized_rows(
    isa: str, outputs: int, depth: int, kind: dict[str, Any], seed: int
) -> None:
    weight = made(seed, (outputs, depth), **kind)
    got = run_embed(pack_integers([weight]), outputs, depth, isa=isa)
    assert np.array_equal(got, dequantize(weight))


def test_matrices_with_nested_scales_take_few_bytes_more_than_their_integers() -> None:
    kind = made(1, (16, 2048), 4, 32, "F16xI8", minima=True).kind
    assert packed_bytes(kind, 4096, 2048) * 8 == 4.625 * 4096 * 2048


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="divide 256"):
        _native.Packed("int4", 16, 512, group=48, scale_type="F16xI8")
    with pytest.raises(ValueError, match="zero points or minima"):
        _native.Packed("int4", 16, 512, group=32, zeros=True, minima=True)
    packed = _native.Packed("int4", 16, 64, group=32, minima=True)
    q, scales = np.zeros(16 * 64, np.uint8), np.zeros(16 * 2 * 4, np.uint8)
    with pytest.raises(ValueError, match="minima or supers do not match"):
        packed.fill_integer(q, scales, None, 1)
    with pytest.raises(ValueError, match="minima has the wrong size"):
        packed.fill_integer(q, scales, None, 1, minima=scales[1:])
    with pytest.raises(ValueError, match="makes no minima"):
        _native.Packed("int4", 16, 64, group=32, scale_type="BF16", minima=True).fill(
            [(np.zeros(16 * 64 * 4, np.uint8), "F32")], 1
        )

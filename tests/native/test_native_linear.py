"""Linear layers and embeddings of every kind, shape and instruction set against numpy."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley import _native
from galley.errors import UnsupportedModel
from galley.formats.values import bf16_bits, dequantize
from galley.formats.weights import IntWeight
from galley.ops.packing import pack_integers
from galley.quant.rtn import QUANTIZERS, quantize_int4, quantize_int7, quantize_int8
from tests.native.harness import (
    ISAS,
    KINDS,
    LAYERS,
    Floats,
    as_weight,
    input_layout,
    pack_as,
    round_bf16,
    round_f16,
    run_embed,
    run_linear,
)
from tests.native.products import as_taken, close, expected_integer, random_matrix
from tests.thorough import THOROUGH, examples

odd = st.integers(1, 100)
deep = st.one_of(st.integers(1, 300), st.sampled_from([577, 1100]))
many = st.one_of(st.integers(1, 30), st.sampled_from([33, 64, 130]))
seeds = st.integers(0, 2**32 - 1)
isas = st.sampled_from(ISAS)
BESIDE_INTEGERS = st.sampled_from(["int8", "bfloat16", "float32"])


@settings(max_examples=examples(60))
@given(isa=isas, rows=many, outputs=odd, depth=odd, seed=seeds, biased=st.booleans())
def test_float32(isa: str, rows: int, outputs: int, depth: int, seed: int, biased: bool) -> None:
    x, w = random_matrix(seed, rows, depth), random_matrix(seed + 1, outputs, depth)
    bias = random_matrix(seed + 2, 1, outputs)[0] if biased else None
    packed = pack_as("float32", as_weight(w))
    got = run_linear(x, packed, outputs, isa=isa, activations="float32", bias=bias)
    expected = x.astype(np.float64) @ w.T + (0 if bias is None else bias)
    assert close(got, expected, np.abs(x) @ np.abs(w).T + 1)


@settings(max_examples=examples(60))
@given(
    isa=isas,
    rows=many,
    outputs=odd,
    depth=deep,
    seed=seeds,
    activations=st.sampled_from(["bfloat16", "float32"]),
)
def test_bf16(isa: str, rows: int, outputs: int, depth: int, seed: int, activations: str) -> None:
    x, w = random_matrix(seed, rows, depth), random_matrix(seed + 1, outputs, depth)
    got = run_linear(x, pack_as("bf16", as_weight(w)), outputs, isa=isa, activations=activations)
    expected = as_taken(x, activations) @ round_bf16(w).T
    assert close(got, expected, np.abs(x) @ np.abs(w).T)


@settings(max_examples=examples(60))
@given(isa=isas, rows=many, outputs=odd, depth=deep, seed=seeds)
def test_f16(isa: str, rows: int, outputs: int, depth: int, seed: int) -> None:
    x, w = random_matrix(seed, rows, depth), random_matrix(seed + 1, outputs, depth)
    w[0, 0] = 6e-6  # a subnormal of float16
    got = run_linear(x, pack_as("f16", as_weight(w)), outputs, isa=isa, activations="float32")
    expected = x.astype(np.float64) @ w.astype(np.float16).astype(np.float64).T
    assert close(got, expected, np.abs(x) @ np.abs(w).T)


@settings(max_examples=examples(80))
@given(
    isa=isas,
    rows=many,
    outputs=odd,
    depth=st.integers(1, 600),
    kind=st.sampled_from(["int8", "int7"]),
    group=st.sampled_from([0, 32, 64, 128, 576]),
    activations=BESIDE_INTEGERS,
    seed=seeds,
)
def test_int8(
    isa: str,
    rows: int,
    outputs: int,
    depth: int,
    kind: str,
    group: int,
    activations: str,
    seed: int,
) -> None:
    x, w = random_matrix(seed, rows, depth), random_matrix(seed + 1, outputs, depth)
    weight = QUANTIZERS[kind](as_weight(w), group=group)
    got = run_linear(x, pack_integers([weight]), outputs, isa=isa, activations=activations)
    assert close(got, *expected_integer(x, weight, activations))


@settings(max_examples=examples(120))
@given(
    isa=isas,
    rows=many,
    outputs=odd,
    depth=deep,
    group=st.sampled_from([0, 16, 32, 48, 64, 128, 272, 576]),
    symmetric=st.booleans(),
    scale_type=st.sampled_from(["F32", "F16", "BF16"]),
    activations=BESIDE_INTEGERS,
    seed=seeds,
)
def test_int4(
    isa: str,
    rows: int,
    outputs: int,
    depth: int,
    group: int,
    symmetric: bool,
    scale_type: str,
    activations: str,
    seed: int,
) -> None:
    x, w = random_matrix(seed, rows, depth), random_matrix(seed + 1, outputs, depth)
    made = quantize_int4(as_weight(w), group=group, symmetric=symmetric)
    scales = (
        made.scales.astype(np.float16).astype(np.float32) if scale_type == "F16" else made.scales
    )
    weight = IntWeight("w", 4, made.q, made.group, scales, made.zeros, scale_type)  # type: ignore[arg-type]
    got = run_linear(x, pack_integers([weight]), outputs, isa=isa, activations=activations)
    assert close(got, *expected_integer(x, weight, activations))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("depth", [40, 2100, 8200])
def test_float16_has_the_same_bits_widened_for_many_rows(isa: str, depth: int) -> None:
    """Panels of four, two and no blocks of weights fit into the memory for floats."""
    x, w = random_matrix(depth, 70, depth), random_matrix(0, 70, depth)
    packed = pack_as("f16", as_weight(w))

    def run(rows: Floats) -> Floats:
        return run_linear(rows, packed, 70, isa=isa, activations="float32")

    np.testing.assert_array_equal(
        run(x), np.concatenate([run(x[i : i + 5]) for i in range(0, 70, 5)])
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 3, 8, 40])
def test_inputs_far_larger_than_the_others_of_their_group(isa: str, rows: int) -> None:
    x, w = random_matrix(rows, rows, 300), random_matrix(0, 50, 300)
    rng = np.random.default_rng(rows)
    x *= np.where(rng.random(x.shape) < 1 / 40, 10 ** rng.uniform(0, 4, x.shape), 1)
    x = x.astype(np.float32)
    for weight in (
        quantize_int8(as_weight(w)),
        quantize_int7(as_weight(w)),
        quantize_int4(as_weight(w), group=32),
        quantize_int4(as_weight(w), group=128, symmetric=False),
    ):
        got = run_linear(x, pack_integers([weight]), len(w), isa=isa, activations="int8")
        assert close(got, *expected_integer(x, weight, "int8"))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["int8", "bfloat16", "float32"])
@pytest.mark.parametrize("group", [16, 48, 272])
def test_a_group_may_begin_in_the_middle_of_a_tile(group: int, activations: str, isa: str) -> None:
    """The last tile then extends past the row, into space that held NaNs."""
    for depth in (32, 70, 80, 300, 1300):
        x, w = random_matrix(1, 20, depth), random_matrix(2, 20, depth)
        weight = quantize_int4(as_weight(w), group=group, symmetric=False)
        for rows in (1, 20):
            got = run_linear(
                x[:rows], pack_integers([weight]), 20, isa=isa, activations=activations
            )
            assert close(got, *expected_integer(x[:rows], weight, activations)), (depth, rows)


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("activations", ["int8", "bfloat16", "float32"])
@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_integers_do_not_overflow(isa: str, activations: str, rows: int) -> None:
    depth = 4096
    for bits, value in ((8, -128), (8, 127), (7, -63), (7, 63)):
        q = np.full((17, depth), value, np.int8)
        scales = np.ones((17, 1), np.float32)
        weight = IntWeight("w", bits, q, depth, scales, None, "F32")
        for sign in (-1, 1):
            x = np.full((rows, depth), sign * 127, np.float32)
            got = run_linear(x, pack_integers([weight]), 17, isa=isa, activations=activations)
            assert (got == np.float32(sign * 127 * value * depth)).all()
    q4 = np.full((17, depth), 15, np.uint8)
    zeros = np.zeros((17, depth // 128), np.uint8)
    weight = IntWeight("w", 4, q4, 128, np.ones((17, depth // 128), np.float32), zeros, "F32")
    for sign in (-1, 1):
        x = np.full((rows, depth), sign * 127, np.float32)
        got = run_linear(x, pack_integers([weight]), 17, isa=isa, activations=activations)
        assert (got == np.float32(sign * 127 * 15 * depth)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_a_row_has_the_same_bits_alone_and_among_any_number(
    kind: str, activations: str, isa: str
) -> None:
    outputs, depth = 147, 260
    x = random_matrix(1, 64, depth)
    packed = pack_as(kind, as_weight(random_matrix(2, outputs, depth)))

    def run(rows: Floats, threads: int = 1) -> Floats:
        return run_linear(rows, packed, outputs, isa=isa, activations=activations, threads=threads)

    alone = np.concatenate([run(x[i : i + 1]) for i in range(64)])
    for count in range(2, 65):
        assert np.array_equal(run(x[:count]), alone[:count]), count
    for threads in (2, 3, 8):
        assert np.array_equal(run(x, threads), alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_rows_of_a_long_prompt_have_the_bits_that_they_have_alone(
    kind: str, activations: str, isa: str
) -> None:
    """More rows, columns and outputs than any tile, chunk or unit of work handles at a time."""
    rows, outputs, depth = 600, 1100, 2200 if kind == "bf16" else 1300
    x = random_matrix(1, rows, depth)
    made = [pack_as(kind, as_weight(random_matrix(2, outputs, depth)))]
    if kind == "int4":
        weight = as_weight(random_matrix(3, outputs, depth))
        made += [
            pack_integers([quantize_int4(weight, group=group, symmetric=group % 32 > 0)])
            for group in ((0, 16, 32, 48, 192, 576) if THOROUGH else (0, 48, 576))
        ]
    for packed in made:
        run = functools.partial(
            run_linear, weight=packed, outputs=outputs, isa=isa, activations=activations
        )
        together = run(x)
        assert np.array_equal(run(x[:40]), together[:40])
        for row in (0, 17, 299, 511, 512, rows - 1):
            assert np.array_equal(run(x[row : row + 1])[0], together[row]), row


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_nan_and_infinity_show_in_their_row_alone(kind: str, activations: str, isa: str) -> None:
    outputs, depth = 20, 70
    x = random_matrix(1, 20, depth)
    packed = pack_as(kind, as_weight(random_matrix(2, outputs, depth)))

    def run(rows: Floats) -> Floats:
        return run_linear(rows, packed, outputs, isa=isa, activations=activations)

    clean = run(x)
    for bad in (np.nan, np.inf, -np.inf):
        x[2, 40] = bad
        got = run(x)
        assert not np.isfinite(got[2]).any()
        assert np.array_equal(np.delete(got, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_what_lies_behind_a_row_is_not_read(kind: str, activations: str, isa: str) -> None:
    """A layer may read a few columns of a wider buffer, and its depth may not fill a register."""
    for depth in (69, 3):
        packed = pack_as(kind, as_weight(random_matrix(2, 20, depth)))
        x = random_matrix(1, 20, depth)
        beside = np.full((20, 9), np.nan, np.float32)
        expected = run_linear(x, packed, 20, isa=isa, activations=activations)
        got = run_linear(
            np.concatenate([x, beside], 1), packed, 20, isa=isa, activations=activations
        )
        assert np.isfinite(got).all()
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_zero_and_denormal_rows_give_zeros(kind: str, isa: str) -> None:
    packed = pack_as(kind, as_weight(random_matrix(2, 20, 70)))
    x = np.zeros((20, 70), np.float32)
    x[1::2] = 1e-40
    assert not run_linear(x, packed, 20, isa=isa, activations="int8").any()


@settings(max_examples=examples(60))
@given(isa=isas, rows=odd, depth=st.integers(1, 300), kind=st.sampled_from(KINDS), seed=seeds)
def test_embeddings_are_the_dequantized_rows(
    isa: str, rows: int, depth: int, kind: str, seed: int
) -> None:
    w = random_matrix(seed, rows, depth)
    expected = {
        "float32": lambda: w,
        "bf16": lambda: round_bf16(w),
        "f16": lambda: round_f16(w),
        "int8": lambda: dequantize(quantize_int8(as_weight(w))),
        "int4": lambda: dequantize(quantize_int4(as_weight(w))),
    }[kind]()
    got = run_embed(pack_as(kind, as_weight(w)), rows, depth, isa=isa)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("kind", ["float32", "bf16", "f16"])
@pytest.mark.parametrize("tag", ["BF16", "F16"])
def test_half_precision_sources(kind: str, tag: str) -> None:
    w = random_matrix(3, 37, 21)
    w[0, :4] = [1e-7, -6e-5, 60000.0, 0.0]
    half = bf16_bits(w) if tag == "BF16" else w.astype(np.float16)
    values = round_bf16(w) if tag == "BF16" else half.astype(np.float32)
    packed = _native.Packed(kind, 37, 21)
    packed.fill([(half.reshape(-1).view(np.uint8), tag)], threads=1)
    expected = {
        "float32": lambda: values,
        "bf16": lambda: round_bf16(values),
        "f16": lambda: round_f16(values),
    }[kind]()
    assert np.array_equal(run_embed(packed, 37, 21, isa="portable"), expected)


def test_every_float16_is_kept_and_floats_round_to_the_nearest() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    exact = halves.view(np.float16).astype(np.float32)
    finite = exact[np.isfinite(exact)]
    ties = (finite[:-1] + finite[1:]) / 2
    between = np.concatenate([ties, np.nextafter(ties, np.float32(0)), finite * np.float32(1.0003)])
    between = np.append(
        between[np.abs(between) < 65520], np.array([np.inf, -np.inf, 1e-30], np.float32)
    )
    for values in (exact, between):
        weight = as_weight(values[None, :])
        packed = pack_as("f16", weight)
        got = packed.memory.view(np.uint16)[: 16 * len(values) : 16]
        expected = values.astype(np.float16)
        same = got == expected.view(np.uint16)
        assert (same | np.isnan(got.view(np.float16)) & np.isnan(expected)).all()
    with pytest.raises(UnsupportedModel, match=r"tensor w contains.*too large for float16"):
        pack_as("f16", as_weight(np.full((17, 3), 65520.0, np.float32)))


def test_rows_that_a_layer_cannot_read_are_refused() -> None:
    exact, dense, integers = (
        pack_as(kind, as_weight(random_matrix(2, 16, 64))) for kind in ("float32", "bf16", "int4")
    )
    for activations in ("bfloat16", "int8"):
        with pytest.raises(ValueError, match="float32 and f16 weights are multiplied with floats"):
            input_layout(exact, activations)
    with pytest.raises(ValueError, match="bf16 weights are not multiplied with int8"):
        input_layout(dense, "int8")
    with pytest.raises(ValueError, match="unknown type of activations 'int3'"):
        input_layout(integers, "int3")
    program = _native.Program(_native.Runtime("portable", 1, []), 1024, 16)
    layout, x, y = input_layout(dense, "bfloat16"), (0, 256, 0), (256, 256, 0)
    deeper = pack_as("bf16", as_weight(random_matrix(2, 16, 65)))
    for other in (integers, deeper):
        with pytest.raises(ValueError, match="quantized for other weights"):
            program.linear(other, None, layout, x, y)
    with pytest.raises(ValueError, match="narrower than what an op reads"):
        program.gelu(65, layout, x, y)
    with pytest.raises(ValueError, match="bias has the wrong size"):
        program.linear(exact, np.zeros(17, np.float32), None, x, y)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("rows", "depth"), [(1, 48), (3, 300), (20, 70)])
def test_a_static_scale_of_inputs(isa: str, rows: int, depth: int) -> None:
    x, w = random_matrix(1, rows, depth), random_matrix(2, 50, depth)
    step = float(np.abs(x).max() / 90)  # some inputs are clipped
    x[0, :2] = 2 * np.abs(x).max(), -2 * np.abs(x).max()
    kept = np.clip(np.rint(x / np.float32(step)), -127, 127) * np.float32(step)
    assert (kept != np.rint(x / np.float32(step)) * np.float32(step)).any()
    for weight in (
        quantize_int8(as_weight(w)),
        quantize_int8(as_weight(w), group=depth),
        quantize_int4(as_weight(w), group=32, symmetric=False),
    ):
        packed = pack_integers([weight])
        got = run_linear(x, packed, len(w), isa=isa, activations="int8", step=step)
        expected = kept.astype(np.float64) @ dequantize(weight).astype(np.float64).T
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    for wrong in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="positive and finite"):
            input_layout(packed, "int8", wrong)
    with pytest.raises(ValueError, match="only int8 inputs have a step"):
        input_layout(packed, "bfloat16", 1.0)


def test_static_scales_show_values_that_are_not_finite() -> None:
    x, w = random_matrix(1, 3, 70), random_matrix(2, 20, 70)
    x[1, 65] = np.inf
    packed = pack_integers([quantize_int8(as_weight(w))])
    got = run_linear(x, packed, len(w), isa=ISAS[0], activations="int8", step=0.1)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


def test_groups_that_are_too_wide_are_named() -> None:
    wide = as_weight(np.zeros((1, 65_552), np.float32))
    for kind in ("bf16", "int8", "int4"):
        assert pack_as(kind, wide).memory.size
    with pytest.raises(
        UnsupportedModel, match=r"tensor w has 65552 columns.*65536.*smaller groups"
    ):
        pack_integers([quantize_int8(wide, group=wide.shape[1])])


def test_impossible_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        _native.Packed("int4", 16, 64, group=24)
    with pytest.raises(ValueError, match="zero points"):
        _native.Packed("int8", 16, 64, zeros=True)
    with pytest.raises(ValueError, match="empty"):
        _native.Packed("float32", 0, 64)
    packed = _native.Packed("int4", 16, 64, group=32)
    with pytest.raises(ValueError, match="q has the wrong size"):
        packed.fill_integer(np.zeros(3, np.uint8), np.zeros(128, np.uint8), None, 1)
    shifted = _native.Packed("int4", 16, 64, group=32, zeros=True)
    q, zeros = np.zeros(16 * 64, np.uint8), np.full(32, 16, np.uint8)
    with pytest.raises(ValueError, match="more than four bits hold"):
        shifted.fill_integer(q, np.zeros(128, np.uint8), zeros, 1)
    whole = np.zeros(16 * 64 * 4, np.uint8)
    with pytest.raises(ValueError, match="scales of another type"):
        packed.fill([(whole, "F32")], 1)
    with pytest.raises(ValueError, match="whole number of rows"):
        packed.fill([(whole[:-1], "F32")], 1)
    with pytest.raises(ValueError, match="as many rows"):
        packed.fill([(whole, "F32"), (whole, "F32")], 1)
    with pytest.raises(ValueError, match="not the bytes"):
        _native.Packed("int4", 16, 64, group=32, memory=packed.memory[64:])
    view = _native.Packed("int4", 16, 64, group=32, memory=packed.memory)
    with pytest.raises(ValueError, match="view"):
        view.fill_integer(np.zeros(16 * 64, np.uint8), np.zeros(128, np.uint8), None, 1)

"""The speech models' ops, on every instruction set, against float64 and torch's convolution."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from galley import _native
from galley.types import BLOCK_TOKENS
from tests.native.harness import (
    ISAS,
    KV_TYPES,
    Floats,
    as_weight,
    round_bf16,
    rounded_queries,
    run_rows,
)

Slot = tuple[int, int, int]
Doubles = npt.NDArray[np.float64]
odd = st.integers(1, 100)
seeds = st.integers(0, 2**32 - 1)
isas = st.sampled_from(ISAS)
dims = st.sampled_from([1, 8, 20, 64])


def slots_of(*widths: int) -> tuple[list[Slot], int]:
    """Float buffers one after another, and the bytes of a row of all of them."""
    strides = [-(-4 * width // 64) * 64 for width in widths]
    offsets = np.cumsum([0, *strides]).tolist()
    return [(at, stride, 0) for at, stride in zip(offsets, strides, strict=False)], offsets[-1]


def exact(values: Floats) -> _native.Packed:
    """Rows that an embedding gives back as they are."""
    packed = _native.Packed("float32", *values.shape)
    packed.fill([(as_weight(values).data, "F32")], threads=1)
    return packed


def run_op(x: Floats, isa: str, append: Callable[..., None]) -> Floats:
    """``append(program, x's slot, y's slot)`` adds an op of as many columns as it reads."""
    rows, width = x.shape
    (source, target), arena = slots_of(width, width)
    runtime = _native.Runtime(isa, 1, [])
    program = _native.Program(runtime, arena, width)
    program.embed(exact(x), source)
    append(program, source, target)
    program.select_rows(width, target, (_native.LOGITS, 4 * width, 0))
    return run_rows(runtime, program, rows, width)


@settings(max_examples=60, deadline=None)
@given(isa=isas, rows=st.integers(1, 20), width=odd, seed=seeds)
def test_layer_norm(isa: str, rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight, bias = (
        rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, width), width, width)
    )
    x = x * rng.choice([1e-3, 1.0, 30.0], (rows, 1)) + rng.choice([0.0, 5.0, -50.0], (rows, 1))
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    centred = wide - wide.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    got = run_op(x, isa, lambda p, a, b: p.layer_norm(weight, bias, 1e-5, None, a, b))
    # What rounding the mean to float32 costs grows with the offset of a row.
    spread = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    slack = 1e-6 * (1 + np.abs(wide).max(1, keepdims=True) / spread)
    assert (np.abs(got - expected) <= slack * (np.abs(weight) + np.abs(bias) + 1)).all()
    again = run_op(x, isa, lambda p, a, b: p.layer_norm(weight, bias, 1e-5, None, a, a))
    assert again.shape == got.shape


@pytest.mark.parametrize("isa", ISAS)
def test_gelu(isa: str) -> None:
    """Dense over all that is not a straight line, then far beyond; a width that fills no register."""
    x = np.concatenate([np.linspace(-14, 14, 20011), [-1e30, -100, -0.0, 0.0, 1e-30, 100, 1e30]])
    x = x[: len(x) // 37 * 37].reshape(-1, 37).astype(np.float32)
    got = run_op(x, isa, lambda p, a, b: p.gelu(37, None, a, b))
    expected = [[v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in row] for row in x.tolist()]
    assert (np.abs(got - expected) <= 1e-6 * np.maximum(1, np.abs(x))).all()
    assert np.abs(got - expected)[np.abs(x) < 14].max() <= 4e-7
    x[0, 3] = np.nan
    assert np.isnan(run_op(x, isa, lambda p, a, b: p.gelu(37, None, a, b))[0]).sum() == 1


@dataclass
class Encoder:
    """An encoder of one op and, to read its result, a decoder of nothing but cross-attention.

    Keys are points of so large a circle that a query, which is one of them, sees its row alone: exactly.
    """

    encoder: _native.Program
    decoder: _native.Program
    width: int

    @classmethod
    def of(
        cls,
        widths: tuple[int, ...],
        append: Callable[[_native.Program, list[Slot]], None],
        *,
        isa: str,
        threads: int = 1,
        most_rows: int = 1500,
    ) -> "Encoder":
        """``append`` adds ops to a program with slots of these widths: the features', ..., the result's."""
        width = max(widths[-1], 2)
        slots, arena = slots_of(*widths, width)
        runtime = _native.Runtime(isa, threads, [])
        runtime.add_kv_layer(1, width, width, "float32")
        encoder = _native.Program(runtime, arena, 0)
        encoder.features(widths[0], slots[0])
        append(encoder, slots)
        turns = np.arange(most_rows) * (2 * np.pi / most_rows)
        points = np.zeros((most_rows, width), np.float32)
        points[:, 0], points[:, 1] = 5000 * np.cos(turns), 5000 * np.sin(turns)
        encoder.embed_positions(points.reshape(-1), width, slots[-1])
        encoder.cross_kv(0, slots[-1], slots[-2])
        (q, y), arena = slots_of(width, width)
        decoder = _native.Program(runtime, arena, width)
        decoder.embed(exact(points), q)
        decoder.cross_attention(0, 1, 1.0, q, y)
        decoder.select_rows(width, y, (_native.LOGITS, 4 * width, 0))
        runtime.allocate_kv(600)
        return cls(encoder, decoder, width)

    def run(self, windows: list[Floats], rows: list[int], width: int) -> list[Floats]:
        """What the encoder makes of each window: ``rows`` of them, ``width`` columns."""
        starts = np.cumsum([0, *map(len, windows)])
        blocks = [-(-count // BLOCK_TOKENS) for count in rows]
        table_starts = np.cumsum([0, *blocks])
        tables = np.random.default_rng(0).permutation(600)[: table_starts[-1]]
        self.encoder.encode(np.concatenate(windows), starts, tables, table_starts)
        results = []
        for i, count in enumerate(rows):
            out = np.full((count, self.width), np.nan, dtype=np.float32)
            at, own = np.arange(count), tables[table_starts[i] : table_starts[i + 1]]
            cross = (own, np.array([0, len(own)]), np.array([count]))
            spare = np.arange(-(-count // BLOCK_TOKENS))
            ends = np.array([0, count]), np.array([0, len(spare)])
            self.decoder.forward(at, at, ends[0], spare, ends[1], at, out, cross)
            results.append(out[:, :width])
        return results


@settings(max_examples=40, deadline=None)
@given(
    isa=isas,
    channels=st.integers(1, 20),
    size=st.sampled_from([1, 3, 5]),
    stride=st.sampled_from([1, 2]),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    seed=seeds,
)
def test_im2col_makes_a_convolution_of_a_product(
    isa: str, channels: int, size: int, stride: int, lengths: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    windows = [rng.standard_normal((n, channels), dtype=np.float32) for n in lengths]
    wide = channels * size
    encoder = Encoder.of(
        (channels, wide),
        lambda p, s: p.im2col(channels, size, stride, s[0], s[1]),
        isa=isa,
        most_rows=64,
    )
    got = encoder.run(windows, [-(-n // stride) for n in lengths], wide)
    kernel = rng.standard_normal((7, channels, size))
    for window, around in zip(windows, got, strict=True):
        x = torch.from_numpy(window.astype(np.float64)).T[None]
        expected = torch.nn.functional.conv1d(
            x, torch.from_numpy(kernel), stride=stride, padding=size // 2
        )
        assert np.allclose(around @ kernel.reshape(7, -1).T, expected[0].T.numpy(), atol=1e-9)


@dataclass(frozen=True)
class Heads:
    """Of an attention: ``group`` query heads for each of ``kv_heads``."""

    kv_heads: int
    group: int
    key_dim: int
    value_dim: int

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of queries, keys and values."""
        keys = self.kv_heads * self.key_dim
        return self.group * keys, keys, self.kv_heads * self.value_dim

    @property
    def width(self) -> int:
        """Of the result."""
        return self.kv_heads * self.group * self.value_dim


def attend(heads: Heads, q: Floats, k: Floats, v: Floats) -> Doubles:
    """Every row of q over all rows of k and v, in float64."""

    def split(x: Floats) -> Doubles:
        """[rows, kv_heads, ...]"""
        return x.reshape(len(x), heads.kv_heads, -1).astype(np.float64)

    queries = split(q).reshape(len(q), heads.kv_heads, heads.group, -1)
    scores = np.einsum("qhgd,khd->hgqk", queries, split(k)) * heads.scale
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: Doubles = np.einsum("hgqk,khd->qhgd", weights, split(v))
    return mixed.reshape(len(q), -1)


def encoder_attention(heads: Heads, *, isa: str, exact: bool = True, threads: int = 1) -> Encoder:
    """Its features are q, k and v side by side."""
    q, k, v = heads.widths
    return Encoder.of(
        (q + k + v, heads.width),
        lambda p, s: p.encoder_attention(
            heads.kv_heads * heads.group,
            heads.kv_heads,
            heads.key_dim,
            heads.value_dim,
            heads.scale,
            exact,
            s[0],
            (s[0][0], s[0][1], 4 * q),
            (s[0][0], s[0][1], 4 * (q + k)),
            s[1],
        ),
        isa=isa,
        threads=threads,
    )


def random_window(heads: Heads, rows: int, rng: np.random.Generator) -> Floats:
    """Some rows far larger or smaller than the others, some all zeros."""
    x = rng.standard_normal((rows, sum(heads.widths)), dtype=np.float32)
    size = rng.choice([1.0, 1.0, 1.0, 4.0, 1e-3, 0.0], (rows, 1))
    window: Floats = (x * size).astype(np.float32)
    return window


def parts(heads: Heads, window: Floats, isa: str, exact: bool) -> list[Floats]:
    """Queries, keys and values, unless ``exact`` as the kernels round them."""
    q, k, v = np.split(window, np.cumsum(heads.widths)[:2], axis=1)
    return (
        [q, k, v] if exact else [rounded_queries(q, heads.scale, isa), round_bf16(k), round_bf16(v)]
    )


@settings(max_examples=25, deadline=None)
@given(
    isa=isas,
    heads=st.builds(Heads, st.integers(1, 3), st.integers(1, 2), dims, dims),
    lengths=st.lists(st.one_of(st.integers(1, 70), st.integers(490, 530)), min_size=1, max_size=4),
    exact=st.booleans(),
    threads=st.integers(1, 3),
    seed=seeds,
)
def test_encoder_attention(
    isa: str, heads: Heads, lengths: list[int], exact: bool, threads: int, seed: int
) -> None:
    """Products of float32; or of bfloat16 queries, keys, values and, not rounded in the truth, weights."""
    rng = np.random.default_rng(seed)
    windows = [random_window(heads, n, rng) for n in lengths]
    encoder = encoder_attention(heads, isa=isa, exact=exact, threads=threads)
    got = encoder.run(windows, lengths, heads.width)
    for window, result in zip(windows, got, strict=True):
        expected = attend(heads, *parts(heads, window, isa, exact))
        error = np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-30)
        assert error <= (3e-5 if exact else 5e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("heads", "exact"),
    [
        (Heads(2, 1, 64, 64), True),
        (Heads(3, 1, 20, 20), True),
        (Heads(2, 1, 33, 33), False),
        (Heads(2, 1, 40, 23), False),
        (Heads(1, 3, 17, 64), True),
    ],
)
def test_a_whole_window_has_the_same_bits_alone_among_others_and_on_any_threads(
    heads: Heads, exact: bool, isa: str
) -> None:
    """Windows of infinities before it show nowhere."""
    rng = np.random.default_rng(5)
    long, others = random_window(heads, 1499, rng), [random_window(heads, n, rng) for n in (1, 33)]
    width = heads.width
    (alone,) = encoder_attention(heads, isa=isa, exact=exact).run([long], [1499], width)
    expected = attend(heads, *parts(heads, long, isa, exact))
    error = np.abs(alone - expected).max() / np.abs(expected).max()
    assert error <= (3e-5 if exact else 5e-3)
    for threads in (1, 2, 4):
        encoder = encoder_attention(heads, isa=isa, exact=exact, threads=threads)
        encoder.run([np.full((1500, len(long[0])), np.inf, np.float32)], [1500], width)
        for windows in ([long], [others[0], long, others[1]], [others[1], long, long]):
            got = encoder.run(windows, [len(w) for w in windows], width)
            for window, result in zip(windows, got, strict=True):
                if window is long:
                    assert np.array_equal(result, alone), (threads, len(windows))


@dataclass
class CrossContext:
    """``cross_kv`` of windows whose features are keys and values, then ``cross_attention`` alone."""

    heads: Heads
    encoder: _native.Program
    decoder: _native.Program

    @classmethod
    def of(
        cls, heads: Heads, queries: Floats, kv_type: str, isa: str, threads: int = 1
    ) -> "CrossContext":
        q, k, v = heads.widths
        runtime = _native.Runtime(isa, threads, [])
        runtime.add_kv_layer(heads.kv_heads, heads.key_dim, heads.value_dim, kv_type)
        ((at, stride, _),), arena = slots_of(k + v)
        encoder = _native.Program(runtime, arena, 0)
        encoder.features(k + v, (at, stride, 0))
        encoder.cross_kv(0, (at, stride, 0), (at, stride, 4 * k))
        (x, y), arena = slots_of(q, heads.width)
        decoder = _native.Program(runtime, arena, heads.width)
        decoder.embed(exact(queries), x)
        decoder.cross_attention(0, heads.kv_heads * heads.group, heads.scale, x, y)
        decoder.select_rows(heads.width, y, (_native.LOGITS, 4 * heads.width, 0))
        runtime.allocate_kv(400)
        return cls(heads, encoder, decoder)

    def encode(self, windows: list[Floats], tables: list[npt.NDArray[np.int64]]) -> None:
        self.encoder.encode(
            np.concatenate(windows),
            np.cumsum([0, *map(len, windows)]),
            np.concatenate(tables),
            np.cumsum([0, *map(len, tables)]),
        )

    def run(self, sequences: list[tuple[list[int], npt.NDArray[np.int64], int]]) -> list[Floats]:
        """For each sequence its rows.

        Args:
            sequences: (which queries, cross table, rows of the window).
        """
        tokens = np.concatenate([np.array(ids) for ids, _, _ in sequences])
        starts = np.cumsum([0, *(len(ids) for ids, _, _ in sequences)])
        tables = [table for _, table, _ in sequences]
        own = np.arange(len(sequences))
        out = np.full((len(tokens), self.heads.width), np.nan, dtype=np.float32)
        self.decoder.forward(
            tokens,
            np.concatenate([np.arange(len(ids)) for ids, _, _ in sequences]),
            starts,
            own,
            np.arange(len(sequences) + 1),
            np.arange(len(tokens)),
            out,
            (
                np.concatenate(tables),
                np.cumsum([0, *map(len, tables)]),
                np.array([rows for _, _, rows in sequences]),
            ),
        )
        return np.split(out, starts[1:-1])


def tables_of(lengths: list[int], rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    ends = np.cumsum([-(-n // BLOCK_TOKENS) for n in lengths])
    return np.split(rng.permutation(400)[: ends[-1]], ends[:-1])


_ROUNDING: dict[str, Callable[[Any], Any]] = {"float32": lambda x: x, "bfloat16": round_bf16}


@settings(max_examples=25, deadline=None)
@given(
    isa=isas,
    heads=st.builds(Heads, st.integers(1, 3), st.integers(1, 2), dims, dims),
    lengths=st.lists(st.one_of(st.integers(1, 70), st.integers(490, 530)), min_size=1, max_size=3),
    kv_type=st.sampled_from(["float32", "bfloat16"]),
    threads=st.integers(1, 3),
    seed=seeds,
)
def test_cross_attention(
    isa: str, heads: Heads, lengths: list[int], kv_type: str, threads: int, seed: int
) -> None:
    """One to six rows of each sequence; several sequences over one window, side by side or not."""
    rng = np.random.default_rng(seed)
    _, k, v = heads.widths
    windows = [random_window(heads, n, rng)[:, -(k + v) :].copy() for n in lengths]
    queries = rng.standard_normal((50, heads.widths[0]), dtype=np.float32)
    cross = CrossContext.of(heads, queries, kv_type, isa, threads)
    tables = tables_of(lengths, rng)
    cross.encode(windows, tables)
    chosen = rng.integers(0, len(windows), 6)
    ids = [rng.integers(0, 50, rng.integers(1, 7)).tolist() for _ in chosen]
    got = cross.run([(i, tables[w], lengths[w]) for i, w in zip(ids, chosen, strict=True)])
    for i, w, result in zip(ids, chosen, got, strict=True):
        keys, values = np.split(_ROUNDING[kv_type](windows[w]), [k], axis=1)
        # AMX rounds queries and weights as well, if keys and values are rounded.
        halves = (isa, kv_type) == ("amx", "bfloat16")
        q = rounded_queries(queries[i], heads.scale, isa) if halves else queries[i]
        expected = attend(heads, q, keys, values)
        slack = np.abs(values).max() * 2**-9 if halves else 0.0
        error = np.abs(result - expected).max()
        assert error <= 3e-5 * max(np.abs(expected).max(), 1e-30) + slack


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("value_dim", [40, 64])
@pytest.mark.parametrize("isa", ISAS)
def test_bits_of_cross_attention_depend_on_neither_threads_nor_neighbours(
    isa: str, value_dim: int, kv_type: str
) -> None:
    """Beams over one window share its loads; a lone row is split over threads; blocks held infinities."""
    heads, rng = Heads(2, 1, 40, value_dim), np.random.default_rng(2)
    lengths, kv_width = [1500, 40], 2 * (40 + value_dim)
    windows = [random_window(heads, n, rng)[:, -kv_width:].copy() for n in lengths]
    queries = rng.standard_normal((12, 80), dtype=np.float32)
    tables = tables_of(lengths, rng)
    expected: list[Floats] = []
    for threads in (1, 2, 4):
        cross = CrossContext.of(heads, queries, kv_type, isa, threads)
        cross.encode([np.full((400 * 16, kv_width), np.inf, np.float32)], [np.arange(400)])
        cross.encode(windows, tables)
        alone = [cross.run([([i], tables[0], 1500)])[0] for i in range(12)]
        expected = expected or alone
        beams = [([i], tables[0], 1500) for i in range(12)]
        other = ([3, 4], tables[1], 40)
        for batch in (beams, [*beams[:5], other, *beams[5:]], [(list(range(12)), *beams[0][1:])]):
            rows = [
                r
                for part, got in zip(batch, cross.run(batch), strict=True)
                if part is not other
                for r in got
            ]
            for got, truth in zip(rows, expected, strict=True):
                assert np.array_equal(got, truth[0]), (threads, len(batch))
    assert np.isfinite(expected).all()


def test_windows_that_would_leave_memory_are_refused() -> None:
    heads = Heads(1, 1, 4, 4)
    cross = CrossContext.of(heads, np.ones((2, 4), np.float32), "float32", ISAS[0])
    window, table = np.ones((20, 8), np.float32), np.arange(2)
    cross.encode([window], [table])
    for windows, tables, message in (
        ([window], [table[:1]], "too short"),
        ([window], [table + 400], "out of range"),
        ([window, window[:0]], [table, table], "no frames"),
        ([window[:, :4].copy()], [table], "do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            cross.encode(windows, tables)
    for ids, own, rows, message in (
        ([0], table, 33, "too short"),
        ([0], table, 0, "no rows"),
        ([0], table + 399, 20, "out of range"),
    ):
        with pytest.raises(ValueError, match=message):
            cross.run([(ids, own, rows)])
    assert np.isfinite(cross.run([([0], table, 20)])[0]).all()
    limited = Encoder.of(
        (3, 3), lambda p, s: p.im2col(3, 1, 1, s[0], s[1]), isa=ISAS[0], most_rows=8
    )
    with pytest.raises(ValueError, match="longer than the model's"):
        limited.run([np.ones((9, 3), np.float32)], [9], 3)

"""The speech models' ops, on every instruction set, against float64 and torch's convolution."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from galley import _native
from galley.types import BLOCK_TOKENS
from tests.native.harness import (
    ISAS,
    Floats,
    round_bf16,
    rounded_queries,
    run_rows,
)
from tests.native.speech_ops import (
    Heads,
    Slot,
    attend,
    dims,
    exact,
    isas,
    odd,
    random_window,
    seeds,
    slots_of,
)
from tests.thorough import THOROUGH, examples, some_of


def run_op(x: Floats, isa: str, append: Callable[..., None]) -> Floats:
    """Run an op that ``append(program, x's slot, y's slot)`` adds; its output is as wide as its input."""
    rows, width = x.shape
    (source, target), arena = slots_of(width, width)
    runtime = _native.Runtime(isa, 1, [])
    program = _native.Program(runtime, arena, width)
    program.embed(exact(x), source)
    append(program, source, target)
    program.select_rows(width, target, (_native.LOGITS, 4 * width, 0))
    return run_rows(runtime, program, rows, width)


@settings(max_examples=examples(60), deadline=None)
@given(isa=isas, rows=st.integers(1, 20), width=odd, seed=seeds)
def test_layer_norm(isa: str, rows: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight, bias = (
        rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, width), width, width)
    )
    x = x * rng.choice([1e-3, 1.0, 30.0], (rows, 1)) + rng.choice([0.0, 5.0, -50.0], (rows, 1))
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    centered = wide - wide.mean(1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5) * weight + bias
    got = run_op(x, isa, lambda p, a, b: p.layer_norm(weight, bias, 1e-5, width, None, a, b))
    # The error of rounding the mean to float32 grows with the offset of a row.
    spread = np.sqrt((centered**2).mean(1, keepdims=True) + 1e-5)
    slack = 1e-6 * (1 + np.abs(wide).max(1, keepdims=True) / spread)
    assert (np.abs(got - expected) <= slack * (np.abs(weight) + np.abs(bias) + 1)).all()
    again = run_op(x, isa, lambda p, a, b: p.layer_norm(weight, bias, 1e-5, width, None, a, a))
    assert again.shape == got.shape


@pytest.mark.parametrize("isa", ISAS)
def test_gelu(isa: str) -> None:
    """Dense where the function is not a straight line, then far beyond; no width fills a register."""
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
    """An encoder of one op and, to read its result, a decoder with only cross-attention.

    Keys are points on such a large circle that a query equal to one of them attends exactly to its row.
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
        encoder.embed_positions(points.reshape(-1), 0, width, slots[-1])
        encoder.cross_kv(0, slots[-1], slots[-2])
        (q, y), arena = slots_of(width, width)
        decoder = _native.Program(runtime, arena, width)
        decoder.embed(exact(points), q)
        decoder.cross_attention(0, 1, 1.0, q, y)
        decoder.select_rows(width, y, (_native.LOGITS, 4 * width, 0))
        runtime.allocate_kv(600)
        return cls(encoder, decoder, width)

    def run(self, windows: list[Floats], rows: list[int], width: int) -> list[Floats]:
        """Return the encoder's result for each window: ``rows`` of them, ``width`` columns."""
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


@settings(max_examples=examples(40), deadline=None)
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


def encoder_attention(
    heads: Heads,
    *,
    isa: str,
    exact: bool = True,
    threads: int = 1,
    near: tuple[int, int] = (-1, -1),
) -> Encoder:
    """The features are q, k and v side by side; ``near``: rows that are attended to before and after."""
    q, k, v = heads.widths
    return Encoder.of(
        (q + k + v, heads.width),
        lambda p, s: p.encoder_attention(
            heads.kv_heads * heads.group,
            heads.kv_heads,
            heads.key_dim,
            heads.value_dim,
            heads.scale,
            *near,
            exact,
            s[0],
            (s[0][0], s[0][1], 4 * q),
            (s[0][0], s[0][1], 4 * (q + k)),
            s[1],
        ),
        isa=isa,
        threads=threads,
    )


def parts(heads: Heads, window: Floats, isa: str, exact: bool) -> list[Floats]:
    """Return queries, keys and values, rounded as in the kernels unless ``exact``."""
    q, k, v = np.split(window, np.cumsum(heads.widths)[:2], axis=1)
    return (
        [q, k, v] if exact else [rounded_queries(q, heads.scale, isa), round_bf16(k), round_bf16(v)]
    )


spans = st.sampled_from([-1, -1, 0, 3, 64, 200])


@settings(max_examples=examples(25), deadline=None)
@given(
    isa=isas,
    heads=st.builds(Heads, st.integers(1, 3), st.integers(1, 2), dims, dims),
    lengths=st.lists(st.one_of(st.integers(1, 70), st.integers(490, 530)), min_size=1, max_size=4),
    near=st.tuples(spans, spans),
    exact=st.booleans(),
    threads=st.integers(1, 3),
    seed=seeds,
)
def test_encoder_attention(
    isa: str,
    heads: Heads,
    lengths: list[int],
    near: tuple[int, int],
    exact: bool,
    threads: int,
    seed: int,
) -> None:
    """Products of float32, or of bfloat16 queries, keys, values and weights (unrounded in the truth)."""
    rng = np.random.default_rng(seed)
    windows = [random_window(heads, n, rng) for n in lengths]
    encoder = encoder_attention(heads, isa=isa, exact=exact, threads=threads, near=near)
    got = encoder.run(windows, lengths, heads.width)
    for window, result in zip(windows, got, strict=True):
        q, k, v = parts(heads, window, isa, exact)
        expected = attend(heads, q, k, v, near)
        error = np.abs(result - expected).max() / max(np.abs(expected).max(), 1e-30)
        assert error <= (3e-5 if exact else 5e-3)


WHOLE_WINDOWS = (
    (Heads(2, 1, 64, 64), True, (-1, -1)),
    (Heads(3, 1, 20, 20), True, (64, 64)),
    (Heads(2, 1, 33, 33), False, (-1, 0)),
    (Heads(2, 1, 40, 23), False, (-1, -1)),
    (Heads(1, 3, 17, 64), True, (700, 0)),
)


@pytest.mark.parametrize(("case", "isa"), some_of(WHOLE_WINDOWS, ISAS, of=2), ids=str)
def test_a_whole_window_has_the_same_bits_alone_among_others_and_on_any_threads(
    case: tuple[Heads, bool, tuple[int, int]], isa: str
) -> None:
    """Windows of infinities before it do not affect the result."""
    heads, exact, near = case
    rng = np.random.default_rng(5)
    long, others = random_window(heads, 1499, rng), [random_window(heads, n, rng) for n in (1, 33)]
    width = heads.width
    (alone,) = encoder_attention(heads, isa=isa, exact=exact, near=near).run([long], [1499], width)
    q, k, v = parts(heads, long, isa, exact)
    expected = attend(heads, q, k, v, near)
    error = np.abs(alone - expected).max() / np.abs(expected).max()
    assert error <= (3e-5 if exact else 5e-3)
    for threads in (1, 2, 4) if THOROUGH else (4,):
        encoder = encoder_attention(heads, isa=isa, exact=exact, threads=threads, near=near)
        encoder.run([np.full((1500, len(long[0])), np.inf, np.float32)], [1500], width)
        for windows in ([long], [others[0], long, others[1]], [others[1], long, long]):
            got = encoder.run(windows, [len(w) for w in windows], width)
            for window, result in zip(windows, got, strict=True):
                if window is long:
                    assert np.array_equal(result, alone), (threads, len(windows))


def test_an_input_longer_than_the_models_is_refused() -> None:
    limited = Encoder.of(
        (3, 3), lambda p, s: p.im2col(3, 1, 1, s[0], s[1]), isa=ISAS[0], most_rows=8
    )
    with pytest.raises(ValueError, match="longer than the model's"):
        limited.run([np.ones((9, 3), np.float32)], [9], 3)

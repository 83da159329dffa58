"""Cross-attention over cached encoder outputs, on every instruction set, against float64."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley import _native
from galley.types import BLOCK_TOKENS
from tests.native.harness import ISAS, KV_TYPES, Floats, round_bf16, rounded_queries
from tests.native.speech_ops import (
    Heads,
    attend,
    dims,
    exact,
    isas,
    random_window,
    seeds,
    slots_of,
)
from tests.thorough import examples


@dataclass
class CrossContext:
    """``cross_kv`` for windows whose features are keys and values, then ``cross_attention`` alone."""

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
        """Return the rows of each sequence.

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


@settings(max_examples=examples(25), deadline=None)
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
    """One to six rows of each sequence; several sequences over one window, adjacent or not."""
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
        # AMX also rounds queries and weights, if keys and values are rounded.
        halves = (isa, kv_type) == ("amx", "bfloat16")
        q = rounded_queries(queries[i], heads.scale, isa) if halves else queries[i]
        expected = attend(heads, q, keys, values)
        slack = np.abs(values).max() * 2**-9 if halves else 0.0
        error = np.abs(result - expected).max()
        assert error <= 3e-5 * max(np.abs(expected).max(), 1e-30) + slack


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("value_dim", [40, 64])
@pytest.mark.parametrize("isa", ISAS)
def test_bits_of_cross_attention_depend_on_neither_threads_nor_neighbors(
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

"""The attention kernels, on every instruction set and KV type, against float64; then in the engine."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from galley import LLM, SamplingParams, _native
from galley.errors import SettingsError
from galley.graph.program import KVLayout
from galley.ops.isa import ISA_VARIABLE
from galley.settings.engine import KVType
from galley.types import BLOCK_TOKENS
from tests.checkpoints import KNOWN_OPS, ROUTED, VARIANTS, make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.models.chunks import run_chunks
from tests.native.harness import (
    EVERY_ISA,
    ISAS,
    KV_TYPES,
    ROUNDING,
    Floats,
    as_weight,
    cpu_executor,
    round_stretches,
    rounded_queries,
    rounding_executor,
)
from tests.thorough import THOROUGH, each_pair, some_of, unless

POOL_BLOCKS = 700


@dataclass(frozen=True)
class Shape:
    kv_heads: int
    group: int
    key_dim: int
    value_dim: int
    window: int = 0
    chunked: bool = False
    cap: float = 0.0
    shared: bool = False

    @property
    def stretches(self) -> tuple[int, ...]:
        """Return a key's columns that are rounded together."""
        return KVLayout(1, self.key_dim, self.value_dim, shared=self.shared).stretches

    @property
    def scale(self) -> float:
        return float(self.key_dim**-0.5)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Return the columns of queries, keys and values."""
        keys = self.kv_heads * self.key_dim
        return self.group * keys, keys, self.kv_heads * self.value_dim

    @property
    def width(self) -> int:
        """Return the columns of the result."""
        return self.kv_heads * self.group * self.value_dim


@dataclass
class Attention:
    """One attention op. Its rows come from exact float32 embeddings: token r is row r of q, k and v."""

    shape: Shape
    rows: tuple[Floats, ...]
    program: _native.Program

    @classmethod
    def of(
        cls, shape: Shape, rows: tuple[Floats, ...], kv_type: str, isa: str, threads: int = 1
    ) -> "Attention":
        strides = [-(-4 * width // 64) * 64 for width in (*shape.widths, shape.width)]
        offsets = np.cumsum([0, *strides]).tolist()
        slots = [(offset, stride, 0) for offset, stride in zip(offsets, strides, strict=False)]
        runtime = _native.Runtime(isa, threads, [])
        runtime.add_kv_layer(
            shape.kv_heads, shape.key_dim, shape.value_dim, kv_type, shared=shape.shared
        )
        program = _native.Program(runtime, sum(strides), shape.width)
        for slot, values in zip(slots[:3], rows, strict=True):
            table = _native.Packed("float32", *values.shape)
            table.fill([(as_weight(values).data, "F32")], threads=1)
            program.embed(table, slot)
        heads, width = shape.kv_heads * shape.group, shape.width
        reach = shape.window, shape.chunked
        program.attention(None, 0, heads, shape.scale, *reach, shape.cap, *slots)
        program.select_rows(width, slots[3], (_native.LOGITS, 4 * width, 0))
        runtime.allocate_kv(POOL_BLOCKS)
        return cls(shape, rows, program)

    def run(self, parts: list[tuple[int, int, int, npt.NDArray[np.int64]]]) -> Floats:
        """Compute rows [first, last) of sequences; row 0 is token ``base``, and ``table`` has the KV.

        Args:
            parts: (base, first, last, table) for each sequence.
        """
        positions = [np.arange(first, last) for _, first, last, _ in parts]
        starts = np.cumsum([0, *map(len, positions)])
        tables = [table[: -(-last // BLOCK_TOKENS)] for _, _, last, table in parts]
        tokens = [at + base for at, (base, *_) in zip(positions, parts, strict=True)]
        out = np.full((starts[-1], self.shape.width), np.nan, dtype=np.float32)
        self.program.forward(
            np.concatenate(tokens),
            np.concatenate(positions),
            starts,
            np.concatenate(tables),
            np.cumsum([0, *map(len, tables)]),
            np.arange(starts[-1]),
            out,
        )
        return out


def random_rows(shape: Shape, count: int, rng: np.random.Generator) -> tuple[Floats, ...]:
    """Return queries, keys and values; some tokens are far larger or smaller than others, some all zeros.

    For shared ones a key's last column is far larger than the columns used as the value.
    """
    rows = []
    for width in shape.widths:
        values = rng.standard_normal((count, width), dtype=np.float32)
        size = rng.choice([1.0, 1.0, 1.0, 4.0, 1e-3, 0.0], (count, 1)).astype(np.float32)
        rows.append(values * size)
    if shape.shared:
        keys = rows[1].reshape(count, shape.kv_heads, shape.key_dim)
        keys[..., -1] *= 20
        rows[2] = np.ascontiguousarray(keys[..., : shape.value_dim]).reshape(count, -1)
    return tuple(rows)


def attend(
    shape: Shape, rows: tuple[Floats, ...], kv_type: str, chosen: npt.NDArray[np.int64], isa: str
) -> tuple[npt.NDArray[np.float64], float]:
    """Return the chosen rows of one sequence in float64, and the tolerance of the kernels.

    Keys and values are rounded by torch. AMX multiplies bfloat16 with bfloat16, so queries are rounded,
    and each weight by up to 2 ** -9 of it.
    """
    queries, slack = rows[0][chosen], 0.0
    if (isa, kv_type) == ("amx", "bfloat16"):
        queries = rounded_queries(queries, shape.scale, isa)
        slack = float(np.abs(rows[2]).max()) * 2**-9

    def rounded(x: Floats, columns: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """[rows, kv_heads, columns]"""
        result = round_stretches(ROUNDING[kv_type], torch.from_numpy(x), columns).double().numpy()
        return result.reshape(len(x), shape.kv_heads, sum(columns))

    q = queries.reshape(len(queries), shape.kv_heads, shape.group, -1).astype(np.float64)
    k = rounded(rows[1], shape.stretches)
    v = k[..., : shape.value_dim] if shape.shared else rounded(rows[2], (shape.value_dim,))
    at, keys = chosen[:, None], np.arange(len(k))
    window = shape.window or len(k)
    first = at // window * window if shape.chunked else at - window + 1
    seen = (keys <= at) & (keys >= first)
    scores = np.einsum("qhgd,khd->hgqk", q, k, optimize=True) * shape.scale
    if shape.cap:
        scores = shape.cap * np.tanh(scores / shape.cap)
    scores = np.where(seen, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    mixed: npt.NDArray[np.float64] = np.einsum("hgqk,khd->qhgd", p, v, optimize=True)
    return mixed.reshape(len(q), -1), slack + 3e-5 * float(np.abs(mixed).max())


def tables_of(lengths: list[int], rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Return the blocks of sequences, in random order."""
    counts = [-(-n // BLOCK_TOKENS) for n in lengths]
    return np.split(rng.permutation(POOL_BLOCKS)[: sum(counts)], np.cumsum(counts)[:-1])


SHAPES = (
    Shape(1, 1, 2, 2),
    Shape(3, 1, 16, 16),
    Shape(2, 2, 14, 14, window=1),
    Shape(1, 5, 34, 34),
    Shape(2, 7, 64, 64, window=100),
    Shape(2, 4, 64, 64),
    Shape(2, 2, 34, 34, window=100, cap=1.5),
    Shape(1, 3, 80, 80, window=600),
    Shape(1, 9, 128, 128),
    Shape(1, 70, 20, 20),
    Shape(1, 1, 2, 17),
    Shape(3, 1, 24, 40),
    Shape(2, 3, 40, 24, window=100),
    Shape(4, 1, 192, 128),
    Shape(1, 5, 33, 70, window=600),
    Shape(1, 5, 20, 30, window=300, chunked=True),
    Shape(1, 6, 576, 512, shared=True),
    Shape(1, 3, 36, 26, shared=True),
    Shape(1, 5, 21, 17, window=100, cap=1.5, shared=True),
    Shape(2, 1, 70, 64, window=600, shared=True),
)


@pytest.mark.parametrize(("shape", "kv_type"), some_of(SHAPES, KV_TYPES, of=4), ids=str)
def test_ragged_batches_agree_with_float64(shape: Shape, kv_type: str) -> None:
    rng = np.random.default_rng(shape.key_dim * 100 + shape.group)
    # Two with more than a chunk of 512 keys, some shorter than a span of 64, one of a single token.
    lengths = [1030 + int(rng.integers(40)), 513, *rng.integers(2, 200, 4).tolist(), 1]
    rows = random_rows(shape, sum(lengths), rng)
    bases = np.cumsum([0, *lengths])[:-1].tolist()
    tables = tables_of(lengths, rng)
    chosen = [np.unique(rng.integers(0, n, 16)) for n in lengths]
    cuts = [int(rng.integers(0, n)) for n in lengths]
    first = [(b, 0, c, t) for b, c, t in zip(bases, cuts, tables, strict=True) if c]
    second = [(b, c, n, t) for b, c, n, t in zip(bases, cuts, lengths, tables, strict=True)]
    exact = {
        isa == "amx": [  # which alone rounds queries
            attend(shape, tuple(x[b : b + n] for x in rows), kv_type, some, isa)
            for b, n, some in zip(bases, lengths, chosen, strict=True)
        ]
        for isa in ISAS
        if isa in ("amx", "portable")
    }
    for isa in ISAS:
        attention = Attention.of(shape, rows, kv_type, isa, threads=int(rng.integers(1, 4)))
        heads, tails = attention.run(first), attention.run(second)
        truths = exact[isa == "amx"]
        for length, cut, some, (truth, off) in zip(lengths, cuts, chosen, truths, strict=True):
            got = np.concatenate([heads[:cut], tails[: length - cut]])[some]
            heads, tails = heads[cut:], tails[length - cut :]
            assert np.abs(got - truth).max() <= off, (isa, length)


LONG_SHAPES = (
    Shape(2, 4, 48, 48),
    Shape(1, 7, 20, 20, window=700),
    Shape(2, 1, 80, 80),
    Shape(1, 2, 33, 33, window=100),
    Shape(2, 4, 40, 24),
    Shape(1, 3, 24, 40, window=700, chunked=True),
    Shape(2, 1, 192, 128),
    Shape(1, 7, 84, 66, shared=True),
)


@pytest.mark.parametrize(
    ("shape", "isa", "kv_type"), each_pair(LONG_SHAPES, ISAS, KV_TYPES), ids=str
)
def test_bits_of_long_contexts_depend_on_neither_threads_nor_chunks_nor_neighbors(
    shape: Shape, isa: str, kv_type: str
) -> None:
    """Four threads split the one long sequence; with 40 short ones it stays whole."""
    rng = np.random.default_rng(3)
    length, short = 1200, 40
    rows = random_rows(shape, length + short, rng)
    table, *others = tables_of([length, *[1] * short], rng)
    whole = Attention.of(shape, rows, kv_type, isa).run([(0, 0, length, table)])
    for threads in (1, 2, 4) if THOROUGH else (4,):
        attention = Attention.of(shape, rows, kv_type, isa, threads)
        cuts = [0, *np.sort(rng.choice(range(1, length), 5, replace=False)).tolist(), length]
        for begin, end in itertools.pairwise(cuts):
            neighbors = [(length + i, 0, 1, t) for i, t in enumerate(others)]
            for batch in ([], neighbors):
                got = attention.run([(0, begin, end, table), *batch])[: end - begin]
                assert np.array_equal(got, whole[begin:end]), (threads, begin, end, len(batch))
        for at in rng.integers(0, length, 10).tolist():
            alone = attention.run([(0, at, at + 1, table)])
            assert np.array_equal(alone[0], whole[at]), (threads, at)


@pytest.mark.parametrize("exponent", [-100, -120, -124, -126, -128])
@pytest.mark.parametrize("isa", ISAS)
def test_a_row_alone_has_the_bits_of_the_smallest_values(isa: str, exponent: int) -> None:
    """AMX treats denormal numbers as zeros; so does the code that computes a few rows in its place."""
    shape, rng = Shape(2, 4, 48, 48), np.random.default_rng(3)
    q, k, v = random_rows(shape, 100, rng)
    rows = (q, k, v * np.float32(2.0**exponent))
    (table,) = tables_of([100], rng)
    attention = Attention.of(shape, rows, "bfloat16", isa)
    whole = attention.run([(0, 0, 100, table)])
    assert whole.any()
    for at in range(100):
        assert np.array_equal(attention.run([(0, at, at + 1, table)])[0], whole[at]), at


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_the_content_of_an_evicted_block_has_no_effect(
    isa: str, kv_type: str, shared: bool
) -> None:
    """Blocks are reused uncleared: after a sequence's end they hold another's keys, even infinite ones."""
    shape, rng = Shape(2, 2, 20, 18 if shared else 20, shared=shared), np.random.default_rng(1)
    rows = random_rows(shape, 64, rng)
    for part in rows:
        part[32:] = np.inf
    table = np.arange(2)
    fresh = Attention.of(shape, rows, kv_type, isa).run([(0, 0, 21, table)])
    used = Attention.of(shape, rows, kv_type, isa)
    used.run([(32, 0, 32, table)])
    assert np.array_equal(used.run([(0, 0, 21, table)]), fresh)
    assert np.isfinite(fresh).all()


def test_a_block_takes_the_bytes_of_its_type() -> None:
    for kv_type, element, scales in (
        ("float32", 4, 0),
        ("bfloat16", 2, 0),
        ("int8", 1, 4),
        ("int4", 0.5, 4),
    ):
        runtime = _native.Runtime(ISAS[0], 1, [])
        runtime.add_kv_layer(8, 64, 64, kv_type)
        block = 2 * BLOCK_TOKENS * 8 * (64 * element + scales)
        assert runtime.kv_bytes_per_block() == block
        runtime.add_kv_layer(4, 192, 128, kv_type)
        block += BLOCK_TOKENS * 4 * ((192 + 128) * element + 2 * scales)
        assert runtime.kv_bytes_per_block() == block
        runtime.add_kv_layer(1, 576, 512, kv_type, shared=True)
        block += BLOCK_TOKENS * (576 * element + 2 * scales)
        assert runtime.kv_bytes_per_block() == block
    with pytest.raises(ValueError, match="unknown KV type 'int2'"):
        runtime.add_kv_layer(8, 64, 64, "int2")
    with pytest.raises(ValueError, match="cannot hold the values"):
        runtime.add_kv_layer(1, 64, 65, "int8", shared=True)


@pytest.mark.parametrize(
    ("variant", "isa"),
    [
        unless(i == ISAS[0] or v in EVERY_ISA, v, i)
        for v in VARIANTS
        if v not in ROUTED
        for i in (ISAS[:1] if v in KNOWN_OPS else ISAS)
    ],
)
def test_every_kv_type_agrees_with_torch(
    variant: str, isa: str, checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining difference is rounding decided by a sum's last bit, which grows in these models."""
    monkeypatch.setenv(ISA_VARIABLE, isa)
    folder, ids = checkpoint(variant), random_ids(1, 150)
    for kv_type, worst, mean in (("bfloat16", 2e-2, 1e-3), ("int8", 5e-2, 2e-3)):
        kv: Any = kv_type
        truth = rounding_executor(folder, "float32", kv_dtype=kv, isa=isa)
        expected = run_chunks(truth, ids, [150], first_block=3)
        got = run_chunks(cpu_executor(folder, "float32", kv_dtype=kv), ids, [150], first_block=3)
        error = np.abs(got - expected) / np.abs(expected).max()
        assert error.max() <= worst, (kv_type, error.max())
        assert error.mean() <= mean, (kv_type, error.mean())


Generated = list[tuple[list[int], Any]]


@pytest.mark.parametrize(
    ("variant", "kv_type"),
    [("llama", kv) for kv in ("bfloat16", "int8", "int4")]
    + [("deepseek-v2", kv) for kv in ("bfloat16", "int8")],
)
def test_prefixes_chunks_and_preemption_leave_every_bit(
    variant: str, kv_type: KVType, tmp_path: Path
) -> None:
    """Log-probabilities are compared as floats, unrounded: contexts of one chunk of keys and of two."""
    long_context = make_checkpoint(
        tmp_path, variant, max_position_embeddings=2048, num_hidden_layers=1
    )
    shared = random_ids(3, 540)
    prompts = [random_ids(20 + n, n) for n in (1, 17, 90, 700)] + [[*shared, 7], [*shared, 8, 9]]
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=3)

    def generate(count: int = 1, **settings: Any) -> tuple[list[Any], int, int]:
        with LLM(long_context, executor="cpu", kv_dtype=kv_type, **settings) as llm:
            assert llm.info.require_program().kv_dtype == kv_type
            for _ in range(count):
                outputs = llm.generate(prompts, params)
        preempted = sum(o.timing.preemptions for o in outputs)
        text = [(o.token_ids, o.choices[0].logprobs) for o in outputs]
        return text, outputs[-1].cached_tokens, preempted

    expected, cached, _ = generate(prefix_cache=False, kv_cache_tokens=4096, threads=1)
    assert cached == 0
    chunked, _, _ = generate(
        max_batch_tokens=48, max_running=8, prefix_cache=False, kv_cache_tokens=4096, threads=3
    )
    assert chunked == expected
    reused, cached, _ = generate(2, kv_cache_tokens=4096, threads=2)
    assert reused == expected
    assert cached >= 528
    squeezed, _, preempted = generate(kv_cache_tokens=848, threads=1, prefix_cache=False)
    assert squeezed == expected
    assert preempted > 0


def test_the_type_is_a_separate_setting(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    sizes = {
        kv: cpu_executor(folder, "float32", kv_dtype=kv).kv_bytes_per_block()
        for kv in ("auto", *KV_TYPES)
    }
    assert sizes["auto"] == sizes["float32"] == 2 * sizes["bfloat16"]
    assert sizes["int4"] < sizes["int8"] < sizes["bfloat16"]
    with LLM(folder, executor="reference", dtype="bfloat16", kv_dtype="bfloat16") as llm:
        assert llm.info.require_program().kv_dtype == "bfloat16"
    with pytest.raises(SettingsError, match=r"kv_dtype is 'bfloat16'.*'float32'.*executor 'cpu'"):
        LLM(folder, executor="reference", kv_dtype="bfloat16")

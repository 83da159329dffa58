"""Random models on random ragged batches equal the reference executor, and each row its result alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from galley.formats.weights import LoadedWeights, Weights
from galley.graph.program import Program
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, ExecutorOptions, forward
from galley.ops.isa import ISA_VARIABLE
from galley.ops.reference import ReferenceExecutor
from galley.settings.engine import WeightDType
from galley.types import BLOCK_TOKENS
from tests.native.harness import ISAS, KINDS, Floats, as_weight
from tests.thorough import examples

POSITIONS: Final = 700
"""More keys than a chunk of attention has."""
BLOCKS: Final = 200


@dataclass(frozen=True)
class Sequence:
    """Token ids, the rows of each step in which it takes part, and its blocks."""

    ids: list[int]
    chunks: list[int]
    table: list[int]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Return shapes without round multiples. If a residual stream has hardly any columns, they may nearly
    cancel, all at once, and a norm then turns last bits into large differences.
    """
    kv_heads = draw(st.integers(1, 4))
    window = draw(st.none() | st.integers(1, 600))
    return {
        "model_type": "llama" if window is None else "mistral",
        "sliding_window": window,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": POSITIONS,
        "num_hidden_layers": draw(st.integers(1, 2)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.integers(1, 5)),
        "head_dim": 2 * draw(st.integers(1, 40)),
        "hidden_size": draw(st.integers(8, 150)),
        "intermediate_size": draw(st.integers(1, 300)),
        "vocab_size": draw(st.integers(2, 400)),
        "tie_word_embeddings": draw(st.booleans()),
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Return the length of each sequence, and the seed of its chunks."""
    lengths = st.one_of(st.integers(1, 40), st.integers(1, POSITIONS))
    return draw(st.lists(st.tuples(lengths, st.integers(0, 2**32)), min_size=1, max_size=4))


def weights_of(program: Program, seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    return LoadedWeights(
        {
            name: as_weight(rng.normal(0, shape[-1] ** -0.5, shape).astype(np.float32))
            for name, shape in program.all_shapes.items()
        }
    )


def executor(
    kind: type[Any], program: Program, weights: Weights, weight_dtype: WeightDType
) -> Executor:
    options = ExecutorOptions(
        dtype="float32", weight_dtype=weight_dtype, kv_dtype="float32", device="cpu", threads=2
    )
    made: Executor = kind(program, weights, options)
    made.allocate_kv(BLOCKS)
    return made


def sequences_of(requests: list[tuple[int, int]], vocab_size: int) -> list[Sequence]:
    """Return the sequences, whose blocks are in random order."""
    free = iter(np.random.default_rng(len(requests)).permutation(BLOCKS).tolist())
    made = []
    for length, seed in requests:
        rng = np.random.default_rng(seed)
        cuts = np.sort(rng.integers(0, length + 1, rng.integers(0, 4)))
        chunks = np.diff(np.concatenate([[0], cuts, [length]]))
        table = [next(free) for _ in range(-(-length // BLOCK_TOKENS))]
        ids = rng.integers(0, vocab_size, length).tolist()
        made.append(Sequence(ids, chunks[chunks > 0].tolist(), table))
    return made


def steps(sequences: list[Sequence]) -> Iterator[tuple[Batch, list[tuple[int, int]]]]:
    """Yield batches with each sequence's next chunk, and (sequence, position) of the wanted rows."""
    done = [0] * len(sequences)
    for number in range(max(len(one.chunks) for one in sequences)):
        tokens: list[int] = []
        positions: list[int] = []
        starts, tables, places = [0], [], []
        for i, one in enumerate(sequences):
            if number >= len(one.chunks):
                continue
            begin, end = done[i], done[i] + one.chunks[number]
            tokens += one.ids[begin:end]
            positions += range(begin, end)
            starts.append(len(tokens))
            tables.append(np.array(one.table[: -(-end // BLOCK_TOKENS)]))
            places += [(i, position) for position in range(begin, end)]
            done[i] = end
        wanted = [row for row, (i, at) in enumerate(places) if (at + i + number) % 3 != 1]
        batch = Batch(
            tokens=np.array(tokens),
            positions=np.array(positions),
            starts=np.array(starts),
            tables=tuple(tables),
            wanted=np.array(wanted, dtype=np.int64),
        )
        yield batch, [places[row] for row in wanted]


def run(made: Executor, sequences: list[Sequence]) -> dict[tuple[int, int], Floats]:
    """Return the logits of all wanted rows."""
    rows: dict[tuple[int, int], Floats] = {}
    for batch, places in steps(sequences):
        rows |= zip(places, forward(made, batch).copy(), strict=True)
    return rows


@settings(max_examples=examples(25))
@given(config=configs(), seed=st.integers(0, 2**32), requests=requests())
def test_logits_are_the_references(
    config: dict[str, Any], seed: int, requests: list[tuple[int, int]]
) -> None:
    program = build_program(config)
    weights = weights_of(program, seed)
    sequences = sequences_of(requests, program.vocab_size)
    expected = run(executor(ReferenceExecutor, program, weights, "float32"), sequences)
    # The weights' size makes logits about 1; in a vocabulary of two both may happen to be small.
    most = max([1.0, *(np.abs(row).max() for row in expected.values())])
    for isa in ISAS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(ISA_VARIABLE, isa)
            got = run(executor(CpuExecutor, program, weights, "float32"), sequences)
        assert got.keys() == expected.keys()
        for place, row in got.items():
            assert np.abs(row - expected[place]).max() <= 1e-4 * most, (isa, place)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(20))
@given(config=configs(), seed=st.integers(0, 2**32), requests=requests())
def test_rows_have_the_bits_that_they_have_alone(
    kind: WeightDType, config: dict[str, Any], seed: int, requests: list[tuple[int, int]]
) -> None:
    program = build_program(config)
    made = executor(CpuExecutor, program, weights_of(program, seed), kind)
    sequences = sequences_of(requests, program.vocab_size)
    together = run(made, sequences)
    for i, one in enumerate(sequences):
        whole = Sequence(one.ids, [len(one.ids)], one.table)
        alone = run(made, [whole])
        for (_, at), row in alone.items():
            if (i, at) in together:
                assert np.array_equal(together[i, at], row), (i, at)

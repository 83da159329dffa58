"""Whole tiny Whisper models on the native executor, against torch on the same weights and transformers."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from galley.formats.checkpoint import Checkpoint
from galley.graph.passes import PASSES, run_passes
from galley.graph.plan import least_arena, plan_arena
from galley.graph.program import Program
from galley.ops.batch import Batch, CrossContext, EncoderBatch, Ints
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, ExecutorOptions, align, encode, forward
from galley.ops.isa import ISA_VARIABLE
from galley.ops.lowering import lower
from galley.settings.engine import Activations, KVType, WeightDType
from galley.types import BLOCK_TOKENS
from tests.checkpoints import VOCAB_SIZE, WHISPER_VARIANTS
from tests.conftest import CheckpointMaker
from tests.native.harness import (
    ISAS,
    KV_TYPES,
    LAYERS,
    Floats,
    program_of,
    quantized,
    rounding_executor,
)
from tests.thorough import THOROUGH, some_of

BLOCKS = 256


def native(
    folder: Path,
    weight_dtype: WeightDType,
    activations: Activations = "auto",
    *,
    threads: int = 1,
    disabled: tuple[str, ...] = (),
    kv_dtype: KVType = "float32",
) -> CpuExecutor:
    program = program_of(folder)
    weights = program.take_weights(Checkpoint.open(folder).weights(), folder=str(folder))
    options = ExecutorOptions(
        dtype="float32",
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        device="cpu",
        threads=threads,
        activations=activations,
        disable_pass=disabled,
    )
    executor = CpuExecutor(program, weights, options)
    executor.allocate_kv(BLOCKS)
    return executor


Placed = Callable[[str, str], tuple[Path, Program]]


@pytest.fixture
def placed(checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch) -> Placed:
    """Return (variant, instruction set) -> a checkpoint and its program; executors will use that set."""

    def place(variant: str, isa: str) -> tuple[Path, Program]:
        monkeypatch.setenv(ISA_VARIABLE, isa)
        folder = checkpoint(variant)
        return folder, program_of(folder)

    return place


class Pool:
    """Hands out blocks in random order."""

    def __init__(self, seed: int) -> None:
        self._free = np.random.default_rng(seed).permutation(BLOCKS)

    def take(self, rows: int) -> Ints:
        count = -(-rows // BLOCK_TOKENS)
        taken, self._free = self._free[:count], self._free[count:]
        return taken


def run(
    executor: Executor,
    program: Program,
    windows: list[Floats],
    sequences: list[tuple[int, list[int], list[int]]],
    *,
    seed: int = 0,
    call: Callable[[Batch], Floats] | None = None,
) -> list[Floats]:
    """Encode the windows in one step, then run the sequences in parallel.

    Args:
        executor: the executor of ``program``.
        program: the decoder's program.
        windows: [frames, mels] each.
        sequences: (window, token ids, how many of them in each step).
        seed: determines the blocks.
        call: method of the executor; its ``forward`` if this is None.

    Returns:
        For each sequence the logits of all its tokens, or what ``call`` returns for them.
    """
    assert program.encoder is not None
    pool = Pool(seed)
    rows = [program.encoder.rows_of(len(window)) for window in windows]
    tables = [pool.take(count) for count in rows]
    starts = np.cumsum([0, *map(len, windows)])
    encode(executor, EncoderBatch(np.concatenate(windows), starts, tuple(tables)))
    own = [pool.take(len(ids)) for _, ids, _ in sequences]
    done = [0] * len(sequences)
    logits: list[list[Floats]] = [[] for _ in sequences]
    for step in range(max(len(chunks) for _, _, chunks in sequences)):
        active = [s for s, (_, _, chunks) in enumerate(sequences) if step < len(chunks)]
        ends = [done[s] + sequences[s][2][step] for s in active]
        batch_starts = np.cumsum([0, *(end - done[s] for s, end in zip(active, ends, strict=True))])
        batch = Batch(
            tokens=np.concatenate(
                [sequences[s][1][done[s] : end] for s, end in zip(active, ends, strict=True)]
            ),
            positions=np.concatenate(
                [np.arange(done[s], end) for s, end in zip(active, ends, strict=True)]
            ),
            starts=batch_starts,
            tables=tuple(
                own[s][: -(-end // BLOCK_TOKENS)] for s, end in zip(active, ends, strict=True)
            ),
            wanted=np.arange(batch_starts[-1]),
            cross=CrossContext(
                tuple(tables[sequences[s][0]] for s in active),
                np.array([rows[sequences[s][0]] for s in active]),
            ),
        )
        got = np.split((call or partial(forward, executor))(batch).copy(), batch_starts[1:-1])
        for s, end, part in zip(active, ends, got, strict=True):
            logits[s].append(part)
            done[s] = end
    return [np.concatenate(parts) for parts in logits]


def longest(program: Program) -> int:
    """Return the frames of the longest window."""
    assert program.encoder is not None
    return program.encoder.max_positions


def random_windows(program: Program, lengths: list[int], seed: int = 0) -> list[Floats]:
    assert program.encoder is not None
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, program.encoder.mels), dtype=np.float32) for n in lengths]


def random_ids(count: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, VOCAB_SIZE, count).tolist()
    return ids


CHUNKED = [(w, random_ids(40, w), [4, 3, *[1] * 33]) for w in (2, 0, 1, 2)]
ALIGNED = [(w, random_ids(70, w), [4, 66]) for w in (2, 0, 1, 2)]
"""Sequences of the windows of ``mixed_windows``."""


def mixed_windows(program: Program) -> list[Floats]:
    """Return windows of one frame, of a few, and of all."""
    return random_windows(program, [1, 17, longest(program)])


def of_variant(variant: str) -> Sequence[tuple[WeightDType, Activations]]:
    """Return the kinds of layers to compare with torch: all of the odd sizes, a third of the even ones."""
    return LAYERS if THOROUGH or variant == "whisper-odd-128" else LAYERS[::3]


@cache
def torch_logits(folder: Path, kind: WeightDType, activations: Activations) -> Floats:
    """Return torch's logits of ``CHUNKED``, which are the same for every instruction set."""
    truth, program = rounding_executor(folder, kind, activations=activations), program_of(folder)
    return np.concatenate(run(truth, program, mixed_windows(program), CHUNKED))


@cache
def torch_alignments(folder: Path, kind: WeightDType, activations: Activations) -> list[Floats]:
    """Return torch's alignments of ``ALIGNED``, which are the same for every instruction set."""
    truth, program = rounding_executor(folder, kind, activations=activations), program_of(folder)
    return run(truth, program, mixed_windows(program), ALIGNED, call=partial(align, truth))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_every_kind_agrees_with_torch(variant: str, isa: str, placed: Placed) -> None:
    """The remaining difference is rounding decided by a sum's last bit."""
    folder, program = placed(variant, isa)
    limits = {"float32": (1e-4, 1e-5), "bfloat16": (1e-2, 1e-3), "int8": (5e-2, 4e-3)}
    for kind, activations in of_variant(variant):
        worst, mean = limits[activations]
        expected = torch_logits(folder, kind, activations)
        executor = native(folder, kind, activations)
        assert executor.isa == isa
        got = np.concatenate(run(executor, program, mixed_windows(program), CHUNKED))
        error = np.abs(got - expected) / np.abs(expected).max()
        assert error.max() <= worst, (kind, activations, error.max())
        assert error.mean() <= mean, (kind, activations, error.mean())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_float32_agrees_with_transformers(variant: str, isa: str, placed: Placed) -> None:
    folder, program = placed(variant, isa)
    (window,) = random_windows(program, [longest(program)])
    ids = random_ids(40, 1)
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    with torch.inference_mode():
        features = torch.from_numpy(window.T[None].copy())
        expected = model(features, decoder_input_ids=torch.tensor([ids])).logits[0].numpy()
    (got,) = run(native(folder, "float32"), program, [window], [(0, ids, [40])])
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    assert np.array_equal(got.argmax(1), expected.argmax(1))


@pytest.mark.parametrize(("layers", "isa"), some_of(LAYERS, ISAS, of=4), ids=str)
def test_bits_do_not_depend_on_batches_chunks_or_threads(
    layers: tuple[WeightDType, Activations], isa: str, placed: Placed
) -> None:
    (folder, program), (kind, activations) = placed("whisper-odd-128", isa), layers
    rng = np.random.default_rng(3)
    lengths = [1, 2, longest(program)]
    lengths += rng.integers(1, longest(program), 5).tolist()
    windows = random_windows(program, lengths)
    ids = [random_ids(int(n), int(n)) for n in rng.integers(1, 48, len(windows))]
    one = native(folder, kind, activations)
    alone = [
        run(one, program, [w], [(0, i, [len(i)])])[0] for w, i in zip(windows, ids, strict=True)
    ]
    for threads, seed in itertools.product((1, 3), range(3)):
        executor = native(folder, kind, activations, threads=threads)
        order = rng.permutation(len(windows)).tolist()
        sequences = []
        for place, w in enumerate(order):
            for _ in range(int(rng.integers(0, 3)) if len(order) > 1 else 1):
                cuts = np.flatnonzero(rng.random(len(ids[w]) - 1) < 0.4) + 1
                chunks = np.diff([0, *cuts, len(ids[w])]).tolist()
                sequences.append((place, ids[w], chunks))
        got = run(executor, program, [windows[w] for w in order], sequences, seed=seed)
        for (place, _, chunks), logits in zip(sequences, got, strict=True):
            assert np.array_equal(logits, alone[order[place]]), (threads, seed, chunks)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("variant", WHISPER_VARIANTS)
def test_alignment_agrees_with_torch(variant: str, isa: str, placed: Placed) -> None:
    """Every kind of weights and of keys; whole inputs, one of one row, and more rows than a tile."""
    folder, program = placed(variant, isa)
    assert program.encoder is not None
    windows = mixed_windows(program)
    rows = [program.encoder.rows_of(len(window)) for window in windows]
    cases: tuple[tuple[WeightDType, Activations, KVType, float], ...] = (
        ("float32", "float32", "float32", 1e-4),
        ("float32", "float32", "bfloat16", 2e-2),
        ("bf16", "bfloat16", "float32", 1e-2),
        ("int8", "int8", "float32", 5e-2),
        ("int8", "int8", "int8", 5e-2),
        ("int4", "bfloat16", "float32", 1e-2),
        ("int4", "float32", "float32", 1e-4),
    )
    for kind, activations, kv_dtype, worst in cases:
        executor = native(folder, kind, activations, kv_dtype=kv_dtype)
        expected = torch_alignments(folder, kind, activations)
        got = run(executor, program, windows, ALIGNED, call=partial(align, executor))
        for (window, _, _), ours, theirs in zip(ALIGNED, got, expected, strict=True):
            assert np.abs(ours - theirs).max() <= worst, (kind, kv_dtype)
            assert np.abs(ours.sum(axis=2) - 1).max() <= 1e-5
            assert not ours[:, :, rows[window] :].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_TYPES)
def test_bits_of_an_alignment_depend_on_its_row_alone(
    kv_dtype: KVType, isa: str, placed: Placed
) -> None:
    folder, program = placed("whisper", isa)
    windows = random_windows(program, [150, 31])
    texts = [random_ids(80, 1), random_ids(33, 2)]
    one = native(folder, "int8", kv_dtype=kv_dtype)
    alone = [
        run(one, program, [window], [(0, ids, [len(ids)])], call=partial(align, one))[0]
        for window, ids in zip(windows, texts, strict=True)
    ]
    many = native(folder, "int8", kv_dtype=kv_dtype, threads=3)
    sequences = [
        (1, texts[1], [1, 30, 2]),
        (0, texts[0], [70, 10]),
        (0, texts[0], [3, 76, 1]),
        (1, texts[1], [33]),
    ]
    got = run(many, program, windows, sequences, seed=5, call=partial(align, many))
    for (window, _, _), weights in zip(sequences, got, strict=True):
        assert np.array_equal(weights, alone[window])


@pytest.mark.parametrize(
    ("layers", "variant"), some_of(LAYERS, tuple(WHISPER_VARIANTS), of=2), ids=str
)
def test_no_pass_changes_a_bit(
    variant: str, layers: tuple[WeightDType, Activations], checkpoint: CheckpointMaker
) -> None:
    folder, (kind, activations) = checkpoint(variant), layers
    program = program_of(folder)
    windows = random_windows(program, [9, 30])
    sequences = [(0, random_ids(7, 1), [4, 3]), (1, random_ids(20, 2), [19, 1])]

    def results(disabled: tuple[str, ...]) -> tuple[Floats, Floats]:
        executor = native(folder, kind, activations, threads=2, disabled=disabled)
        logits = np.concatenate(run(executor, program, windows, sequences))
        executor.allocate_kv(BLOCKS)  # zeros: the aligner must write everything
        weights = run(executor, program, windows, sequences, call=partial(align, executor))
        return logits, np.concatenate(weights)

    plain = results(tuple(PASSES))
    for disabled in ((), *((name,) for name in PASSES)):
        for got, expected in zip(results(disabled), plain, strict=True):
            assert np.array_equal(got.view(np.int32), expected.view(np.int32)), disabled


def test_what_the_passes_do(checkpoint: CheckpointMaker) -> None:
    """Two layers each: names and numbers of ops, written out."""
    program = program_of(checkpoint("whisper"))
    assert program.encoder is not None
    decoder, encoder = (
        Counter(op.name for op in run_passes(quantized(p, "int8", "int8")).ops)
        for p in (program, program.encoder)
    )
    # Query and value are one layer; the key, which has no bias, another.
    assert decoder == {
        "embed": 1,
        "embed_positions": 1,
        "add_layer_norm_quantize": 7,
        "linear": 15,
        "columns": 4,
        "attention": 2,
        "quantize_input": 4,
        "cross_attention": 2,
        "gelu_quantize": 2,
        "select_rows": 2,
    }
    # The cache's keys and values stay separate, layer by layer.
    assert encoder == {
        "features": 1,
        "im2col": 2,
        "quantize_input": 4,
        "linear": 16,
        "gelu": 2,
        "embed_positions": 1,
        "add_layer_norm_quantize": 5,
        "columns": 4,
        "encoder_attention": 2,
        "gelu_quantize": 2,
        "cross_kv": 2,
    }


@pytest.mark.parametrize(("kind", "activations"), LAYERS)
def test_memory_is_planned_as_tightly_as_liveness_allows(
    kind: WeightDType, activations: Activations, checkpoint: CheckpointMaker
) -> None:
    for variant, disabled in itertools.product(WHISPER_VARIANTS, ((), tuple(PASSES))):
        program = program_of(checkpoint(variant))
        assert program.encoder is not None
        assert program.aligner is not None
        for part in (program, program.encoder, program.aligner):
            final = run_passes(quantized(part, kind, activations), disabled)
            lifetimes = lower(final).lifetimes()
            assert plan_arena(lifetimes).size == least_arena(lifetimes), variant


def test_alignments_that_do_not_fit_together_are_refused(checkpoint: CheckpointMaker) -> None:
    executor = native(checkpoint("whisper"), "float32")
    table, at = np.arange(5), np.arange(3)
    step = (at, at, np.array([0, 3]), table, np.array([0, 5]))
    cross = (table, np.array([0, 5]), np.array([75]))

    def align(shape: tuple[int, int, int], program: Any = executor._aligner) -> None:
        program.align(*step, np.zeros(shape, np.float32), cross)

    align((3, 3, 75))
    for shape, message in (
        ((2, 3, 75), "wrong shape"),
        ((3, 2, 75), "wrong shape"),
        ((3, 3, 74), "more rows"),
    ):
        with pytest.raises(ValueError, match=message):
            align(shape)
    with pytest.raises(ValueError, match="an aligner gives"):
        align((3, 0, 75), executor._decoder)
    with pytest.raises(ValueError, match="an aligner gives"):
        executor._aligner.forward(*step, at[:0], np.zeros((0, 0), np.float32), cross)  # type: ignore[union-attr]

"""The whole executor, for every kind of weights and instruction set, against torch on the same weights."""

import itertools
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from galley import _native
from galley.errors import SettingsError
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, forward
from galley.ops.isa import ISA_VARIABLE, choose_isa
from galley.ops.kinds import choose_activations
from galley.settings.engine import Activations, DType, ExecutorName, WeightDType
from tests.checkpoints import ROUTED, VARIANTS, make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.models.chunks import executor_of, run_chunks
from tests.native.harness import (
    EVERY_ISA,
    ISAS,
    LAYERS,
    Floats,
    cpu_executor,
    ragged,
    rounding_executor,
    softmax,
)
from tests.thorough import THOROUGH, each_pair

LENGTH = 150


def run_all(executor: Executor, ids: list[int]) -> Floats:
    logits: Floats = run_chunks(executor, ids, [len(ids)], first_block=3)
    return logits


@cache
def torch_logits(
    folder: Path, kind: WeightDType, activations: Activations = "float32", length: int = LENGTH
) -> Floats:
    """Return torch's logits of random tokens, which are the same for every instruction set."""
    truth = rounding_executor(folder, kind, activations=activations)
    return run_all(truth, random_ids(1, length))


def layers_of(variant: str) -> Sequence[tuple[WeightDType, Activations]]:
    """Return the kinds of linear layers to compare: all, or in ``make test`` a third of most variants'."""
    if THOROUGH or variant in EVERY_ISA:
        return LAYERS
    return LAYERS[list(VARIANTS).index(variant) % 3 :: 3]


@pytest.mark.parametrize(
    ("variant", "isa"),
    [(v, i) for v in VARIANTS if v not in ROUTED for i in (ISAS if v in EVERY_ISA else ISAS[:1])],
)
def test_every_kind_agrees_with_torch(
    variant: str, isa: str, checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining difference is rounding decided by a sum's last bit, which grows in these models."""
    monkeypatch.setenv(ISA_VARIABLE, isa)
    folder, ids = checkpoint(variant), random_ids(1, LENGTH)
    limits = {"float32": (1e-4, 1e-5), "bfloat16": (5e-2, 2e-3), "int8": (1e-1, 4e-3)}
    for kind, activations in layers_of(variant):
        worst, mean = limits[activations]
        executor = cpu_executor(folder, kind, activations=activations)
        assert isinstance(executor, CpuExecutor)
        assert executor.isa == isa
        expected = torch_logits(folder, kind, activations)
        error = np.abs(run_all(executor, ids) - expected) / np.abs(expected).max()
        assert error.max() <= worst, (kind, activations, error.max())
        assert error.mean() <= mean, (kind, activations, error.mean())


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with weights as small as a trained model's, so that layers do not amplify rounding."""
    return make_checkpoint(
        tmp_path_factory.mktemp("calm"),
        "llama",
        hidden_size=256,
        intermediate_size=512,
        initializer_range=0.05,
    )


@pytest.mark.parametrize("isa", ISAS)
def test_rounded_activations_cost_little(
    calm: Path, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    ids = random_ids(1, 400)
    cases: tuple[tuple[WeightDType, Activations, float, float], ...] = (
        ("bf16", "bfloat16", 1e-2, 0.98),
        ("int8", "bfloat16", 1e-2, 0.98),
        ("int4", "bfloat16", 1e-2, 0.98),
        ("int8", "int8", 5e-2, 0.93),
        ("int4", "int8", 5e-2, 0.93),
    )
    for kind, activations, worst, agreement in cases:
        expected = torch_logits(calm, kind, length=len(ids))
        got = run_all(cpu_executor(calm, kind, activations=activations), ids)
        assert np.abs(got - expected).max() <= worst * np.abs(expected).max(), kind
        assert (got.argmax(1) == expected.argmax(1)).mean() >= agreement, kind
        p = softmax(expected)
        kl = (p * (np.log(p) - np.log(softmax(got)))).sum(axis=1).mean()
        assert kl <= 2e-3, (kind, kl)


def test_a_vocabulary_of_odd_size(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama-mha-tied", vocab_size=333)
    ids = random_ids(2, 50)
    expected = run_all(executor_of(folder), ids)
    for threads in (1, 2):
        got = run_all(cpu_executor(folder, "float32", threads=threads), ids)
        assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()


def test_bf16_keys_and_values_cost_little(calm: Path) -> None:
    ids = random_ids(2, 200)
    exact = run_all(cpu_executor(calm, "float32"), ids)
    rounded = run_all(cpu_executor(calm, "float32", dtype="bfloat16"), ids)
    error = np.abs(rounded - exact).max() / np.abs(exact).max()
    assert 0 < error <= 1e-2


def test_dtype_alone_chooses_the_weights(calm: Path) -> None:
    ids = random_ids(2, 40)
    whole = cpu_executor(calm, "auto", dtype="float32")
    assert np.array_equal(run_all(whole, ids), run_all(cpu_executor(calm, "float32"), ids))
    half = cpu_executor(calm, "auto", dtype="bfloat16")
    named = cpu_executor(calm, "bf16", dtype="bfloat16")
    assert np.array_equal(run_all(half, ids), run_all(named, ids))
    assert half.kv_bytes_per_block() * 2 == whole.kv_bytes_per_block()


@pytest.mark.parametrize(
    ("variant", "layers", "isa"),
    each_pair(("llama-mqa-odd", "mistral-window", "qwen3"), LAYERS, ISAS),
    ids=str,
)
def test_bits_do_not_depend_on_batches_chunks_or_threads(
    variant: str,
    layers: tuple[WeightDType, Activations],
    isa: str,
    checkpoint: CheckpointMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    folder, (kind, activations) = checkpoint(variant), layers

    def made(threads: int) -> Executor:
        dtype: DType = "bfloat16" if kind == "bf16" else "float32"
        return cpu_executor(folder, kind, dtype=dtype, activations=activations, threads=threads)

    executor, threaded = made(1), made(3)
    rng = np.random.default_rng(7)
    prompts = [random_ids(100 + i, int(n)) for i, n in enumerate(rng.integers(1, 90, 64))]
    alone = [run_chunks(executor, ids, [len(ids)], first_block=0) for ids in prompts]
    for ids, expected in zip(prompts[:8], alone, strict=False):
        cuts = np.flatnonzero(rng.random(len(ids) - 1) < 0.3) + 1
        chunks = np.diff([0, *cuts, len(ids)]).tolist()
        assert np.array_equal(run_chunks(executor, ids, chunks, first_block=9), expected), chunks
    sizes = (2, 3, 7, 16, 33, 64)
    both = itertools.product(sizes, (executor, threaded))
    for size, other in both if THOROUGH else zip(sizes, (executor, threaded) * 3, strict=True):
        chosen = rng.permutation(64)[:size]
        # All but the last few tokens first, then the rest: the second batch reads what the first wrote.
        tails = [int(rng.integers(1, min(4, len(prompts[i])) + 1)) for i in chosen]
        heads = [
            (prompts[i][: len(prompts[i]) - tail], len(prompts[i]) - tail)
            for i, tail in zip(chosen, tails, strict=True)
        ]
        blocks = 0
        for (ids, count), i in zip(heads, chosen, strict=True):
            if count:
                batch = ragged([(ids, count)], first_block=blocks)
                assert np.array_equal(forward(other, batch), alone[i][:count])
            blocks += -(-len(prompts[i]) // 16)
        logits = forward(
            other,
            ragged([(prompts[i], t) for i, t in zip(chosen, tails, strict=True)], first_block=0),
        )
        expected = np.concatenate([alone[i][-t:] for i, t in zip(chosen, tails, strict=True)])
        assert np.array_equal(logits, expected), size


def test_a_step_without_wanted_rows_only_fills_the_cache(checkpoint: CheckpointMaker) -> None:
    executor, ids = executor_of(checkpoint("llama"), executor="cpu"), random_ids(1, 40)
    whole = run_all(executor, ids)
    head = ragged([(ids[:39], 39)], first_block=8)
    none = np.zeros(0, dtype=np.int64)
    batch = type(head)(head.tokens, head.positions, head.starts, head.tables, none)
    assert forward(executor, batch).shape == (0, whole.shape[1])
    assert np.array_equal(forward(executor, ragged([(ids, 1)], first_block=8))[0], whole[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [5, 10**6]}, "token id"),
        ({"tokens": [5, -1]}, "token id"),
        ({"positions": [3, 5]}, "consecutive"),
        ({"positions": [-1, 0]}, "negative"),
        ({"positions": [15, 16]}, "too short"),
        ({"tables": ([10**6],)}, "KV block"),
        ({"wanted": [2]}, "wanted row"),
    ],
)
def test_batches_that_would_leave_memory_are_refused(
    change: dict[str, list[int]], message: str, checkpoint: CheckpointMaker
) -> None:
    executor = executor_of(checkpoint("llama"), executor="cpu")
    good = ragged([([5, 6], 2)], first_block=0)
    fields = {
        name: getattr(good, name) for name in ("tokens", "positions", "starts", "tables", "wanted")
    }
    for name, value in change.items():
        fields[name] = (np.array(value[0]),) if name == "tables" else np.array(value)
    with pytest.raises(ValueError, match=message):
        forward(executor, type(good)(**fields))
    assert np.isfinite(forward(executor, good)).all()


def test_the_instruction_set_can_be_forced() -> None:
    assert choose_isa({}) == ISAS[0]
    assert choose_isa({ISA_VARIABLE: ""}) == ISAS[0]
    for isa in ISAS:
        assert choose_isa({ISA_VARIABLE: isa}) == isa
    with pytest.raises(SettingsError, match=r"GALLEY_CPU_ISA is 'neon', .* supported: .*portable"):
        choose_isa({ISA_VARIABLE: "neon"})


def test_what_an_executor_cannot_do_is_refused(checkpoint: CheckpointMaker) -> None:
    from galley import LLM

    folder = checkpoint("llama")
    with pytest.raises(
        SettingsError, match=r"weight_dtype is 'float32'.*'bfloat16'.*executor 'cpu'"
    ):
        LLM(folder, weight_dtype="float32", dtype="bfloat16", executor="reference")
    with pytest.raises(SettingsError, match=r"device is 'cuda'.*'cpu' only"):
        LLM(folder, device="cuda", executor="cpu")
    with pytest.raises(SettingsError, match=r"weight_dtype: 'int3' is not one of"):
        LLM(folder, weight_dtype=cast(Any, "int3"), executor="cpu")
    kind: Any
    for kind, activations, choices, others in (
        ("float32", "int8", "float32", "int8 or int4"),
        ("bf16", "int8", "bfloat16 or float32", "int8 or int4"),
        ("float32", "bfloat16", "float32", "bf16 or int8 or int4"),
    ):
        message = (
            rf"activations is '{activations}', .* '{kind}' weights only with {choices}; "
            rf"leave it out, or set weight_dtype to {others}$"
        )
        with pytest.raises(SettingsError, match=message):
            LLM(folder, weight_dtype=kind, activations=activations, executor="cpu")
    with pytest.raises(
        SettingsError, match="threads must be at least 1 and at most 1024, got 2000"
    ):
        LLM(folder, threads=2000)
    with pytest.raises(SettingsError, match=r"activations is 'int8', .*'float32'.*executor 'cpu'"):
        LLM(folder, weight_dtype="int8", activations="int8", executor="reference")


@pytest.mark.parametrize("isa", ISAS)
def test_bf16_weights_meet_what_the_instruction_set_is_fastest_with(
    isa: str, calm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa)
    ids = random_ids(2, 40)
    fastest: Activations = "bfloat16" if isa in ("amx", "avx512") else "float32"
    automatic = cpu_executor(calm, "bf16", kv_dtype="float32")
    assert automatic.activations == fastest
    named = cpu_executor(calm, "bf16", kv_dtype="float32", activations=fastest)
    assert np.array_equal(run_all(automatic, ids), run_all(named, ids))


@pytest.mark.parametrize(
    ("kind", "activations"), [("bf16", "bfloat16"), ("int8", "int8"), ("int4", "int8")]
)
def test_activations_are_rounded_by_default(
    kind: WeightDType, activations: Activations, checkpoint: CheckpointMaker
) -> None:
    from galley import LLM

    ids = random_ids(5, 60)

    def scores(executor: ExecutorName, wanted: Activations, becomes: str) -> Floats:
        with LLM(
            checkpoint("llama"), weight_dtype=kind, activations=wanted, executor=executor
        ) as llm:
            assert llm.info.require_program().activations == becomes
            assert llm.info.require_program().kv_dtype == (
                "float32" if becomes == "float32" else "bfloat16"
            )
            return np.array(llm.score([ids])[0])

    exact = scores("reference", "auto", "float32")
    assert np.array_equal(scores("reference", "float32", "float32"), exact)
    assert np.abs(scores("cpu", "float32", "float32") - exact).max() <= 1e-3
    rounded = scores("cpu", activations, activations)
    if choose_activations(kind, "auto", choose_isa(os.environ)) == activations:
        assert np.array_equal(scores("cpu", "auto", activations), rounded)
    assert np.abs(rounded - exact).max() > 1e-2


def test_only_blocks_that_exist_are_copied() -> None:
    runtime = _native.Runtime("portable", 1, [])
    runtime.add_kv_layer(1, 16, 16, "float32")
    runtime.allocate_kv(3)
    runtime.copy_block(2, 0)
    for source, target in ((3, 0), (0, 3), (-1, 0), (0, -1)):
        with pytest.raises(IndexError):
            runtime.copy_block(source, target)

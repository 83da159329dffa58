"""The benchmark's counts on the real engine; no time is asserted."""

from itertools import pairwise
from pathlib import Path

import pytest

from galley.bench.engine import EngineBench, Workload, bench_engine
from galley.errors import EngineError, RequestError, SettingsError
from galley.settings.engine import EngineSettings
from tests.checkpoints import SHAPE, make_checkpoint
from tests.peaks import peaks_of

MACHINE = peaks_of(1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("bench") / "tiny")


def settings(folder: Path, **changes: object) -> EngineSettings:
    given = {"executor": "cpu", "threads": 1, "max_batch_tokens": 24, "max_running": 4, **changes}
    return EngineSettings(model=str(folder), **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bench(folder: Path) -> EngineBench:
    return EngineBench(settings(folder))


def test_costs_are_those_of_the_shape(bench: EngineBench) -> None:
    hidden, inner, layers, heads, kv_heads = 48, 88, 2, 4, 2
    dim = hidden // heads
    qkv, rest = hidden * dim * (heads + 2 * kv_heads), hidden * hidden + 3 * hidden * inner
    costs = bench.info.require_program().costs
    # In the last layer only keys and values are computed for every row.
    assert costs.row_operations == 2 * (layers * qkv + (layers - 1) * rest)
    assert costs.logit_operations == 2 * (rest + hidden * SHAPE["vocab_size"])
    # float32 matrices, the norms and one row of the embedding
    matrices = 2 * (costs.row_operations + costs.logit_operations)
    assert costs.weight_bytes == matrices + 4 * hidden * (2 * layers + 1 + 1)
    # float32; values are padded from 12 to 16
    assert costs.kv_bytes_per_token == layers * 4 * kv_heads * (dim + 16)


def test_prefill_counts_a_prompts_tokens_once_chunk_by_chunk(bench: EngineBench) -> None:
    for _ in range(2):  # a run leaves nothing behind: the second finds no cached prefix
        steps = bench.prefill(list(range(60)))
        assert [step.rows for step in steps] == [24, 24, 12]
        assert [step.context for step in steps] == [24, 48, 60]
        assert [step.wanted for step in steps] == [0, 0, 1]
        assert all(0 < step.forward_seconds < step.seconds for step in steps)


def test_decode_counts_only_steps_in_which_all_sequences_decode(bench: EngineBench) -> None:
    steps = bench.decode([[i] * 10 for i in range(4)], 5)
    assert [(step.rows, step.wanted) for step in steps] == [(4, 4)] * 5
    contexts = [step.context for step in steps]
    assert [b - a for a, b in pairwise(contexts)] == [4] * 4
    # Ten tokens and the first generated one; sequences that started early are a step or two ahead.
    assert 4 * 11 <= contexts[0] <= 4 * 14


def test_a_sequence_that_cannot_go_on_is_an_error(folder: Path) -> None:
    with pytest.raises(EngineError, match="max_model_len"):
        EngineBench(settings(folder, max_model_len=16)).decode([[1] * 10], 10)
    with pytest.raises(EngineError, match="kv_cache_tokens"):
        EngineBench(settings(folder, kv_cache_tokens=32)).decode([[1] * 10, [2] * 10], 20)
    with pytest.raises(RequestError):
        EngineBench(settings(folder, max_model_len=16)).prefill([1] * 17)


def test_a_report_has_a_point_for_each_kind_of_work(folder: Path) -> None:
    progress: list[str] = []
    workload = Workload(prompt=30, decode=3, context=5, batches=(1, 3), repeats=2)
    rates: list[float] = []

    def read_rate() -> float:
        rates.append(1e9)
        return 1e9

    info, points = bench_engine(
        settings(folder, weight_dtype="int8"), workload, MACHINE, read_rate, progress.append
    )
    assert len(rates) == 2 * workload.runs
    assert info.path == str(folder)
    assert [(p.work, p.batch, p.tokens) for p in points] == [
        ("prefill", 1, 30),
        ("decode", 1, 3),
        ("decode", 3, 3),
    ]
    assert progress == ["prefill"] * 3 + ["decode 1"] * 3 + ["decode 3"] * 3
    assert len(progress) == workload.runs


def test_a_batch_that_the_engine_would_split_is_refused(folder: Path) -> None:
    with pytest.raises(SettingsError, match="batch 5 exceeds max_running"):
        bench_engine(settings(folder), Workload(batches=(1, 5)), MACHINE, lambda: 1e9)

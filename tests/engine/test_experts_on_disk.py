"""Experts on disk: the same bits as in memory, within the memory stated in the ledger."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from galley import LLM, SamplingParams
from galley.engine import memory as engine_memory
from galley.engine.loaders import load_engine
from galley.errors import EngineFailed, SettingsError
from galley.machine import FOLDER_VARIABLE
from galley.observe.engines import EngineCollector, EngineTotals
from galley.ops import background, packing
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import ExpertCounts, forward
from galley.ops.packed_cache import cached_files
from galley.ops.packed_files import Entry, map_file
from galley.server.ledger import ledger_lines
from galley.settings.engine import EngineSettings, WeightDType
from galley.types.engine_stats import EngineStats, ReplicaStatus
from galley.types.model_info import Ledger, ModelInfo
from tests.conftest import CheckpointMaker
from tests.engines import native
from tests.native.harness import ragged

PROMPT = [5, 60, 200, 17, 3, 90, 91, 92, 41, 7, 8]
EXPERTS = {"mixtral": (5, 2), "qwen3-moe": (16, 4), "gpt-oss": (5, 5)}
"""Experts of a layer, and of a token."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    return tmp_path / "packed"


def settings(**changes: Any) -> EngineSettings:
    return dataclasses.replace(EngineSettings(threads=2, kv_cache_tokens=512), **changes)


def loaded(made: EngineSettings, folder: Path) -> tuple[Ledger, CpuExecutor]:
    engine = load_engine(made, folder)
    background.finish()
    executor = native(engine)._executor
    assert isinstance(executor, CpuExecutor)
    assert engine.info.ledger is not None
    return engine.info.ledger, executor


def steps(executor: CpuExecutor) -> list[npt.NDArray[np.float32]]:
    """Return the logits of a prompt, of its last token alone, and of two texts at once."""
    batches = ([(PROMPT, len(PROMPT))], [(PROMPT, 1)], [(PROMPT[::-1], 11), (PROMPT[:7], 7)])
    groups = executor.kv_groups
    return [
        forward(executor, ragged([*batch], first_block=0, groups=groups)).copy()
        for batch in batches
    ]


def expert_entries(cache: Path) -> list[Entry]:
    [file] = cached_files(cache)
    assert file.header is not None
    return [e for e in file.header.entries if ".experts." in e.names[0]]


def counts_of(executor: CpuExecutor, run: Any) -> ExpertCounts:
    """Return the counters' increase while ``run`` ran; bytes as they are."""
    before = executor.expert_counts()
    run()
    after = executor.expert_counts()
    return ExpertCounts(
        after.bytes,
        after.hits - before.hits,
        after.misses - before.misses,
        after.evictions - before.evictions,
        after.read_bytes - before.read_bytes,
        after.read_seconds - before.read_seconds,
    )


@pytest.mark.parametrize(
    ("variant", "weight_dtype"),
    [("mixtral", "int4"), ("qwen3-moe", "float32"), ("qwen3-moe", "int8"), ("gpt-oss", "bf16")],
)
def test_the_same_bits_with_the_experts_of_one_layer_in_memory(
    checkpoint: CheckpointMaker, cache: Path, variant: str, weight_dtype: WeightDType
) -> None:
    folder = checkpoint(variant)
    whole, in_memory = loaded(settings(weight_dtype=weight_dtype, weight_cache=False), folder)
    expected = steps(in_memory)
    assert in_memory.expert_counts() == ExpertCounts()
    least = settings(weight_dtype=weight_dtype, experts="disk")
    smallest = dataclasses.replace(least, expert_cache_bytes=_least_bytes(least, folder))
    assert not cached_files(cache)
    for start in ("packs", "finds them packed"):
        ledger, executor = loaded(smallest, folder)
        counted = counts_of(executor, lambda e=executor: _check(steps(e), expected))
        entries = expert_entries(cache)
        per_expert = sum(e.size for e in entries) // (len(entries) // 3)
        experts, _ = EXPERTS[variant]
        assert counted.bytes == ledger.experts == experts * per_expert, start
        assert ledger.experts_on_disk == sum(e.size for e in entries)
        assert ledger.weights + ledger.experts_on_disk == whole.weights
        # Three steps over two layers or more, with room for one.
        assert counted.misses > experts
        total = executor.expert_counts()
        assert total.misses - total.evictions == experts
        assert counted.read_bytes == counted.misses * per_expert
        assert counted.read_seconds > 0


def _least_bytes(made: EngineSettings, folder: Path) -> int:
    """Return the least number of bytes, from the error for a limit of one byte."""
    with pytest.raises(SettingsError, match="must fit in memory together") as error:
        load_engine(dataclasses.replace(made, expert_cache_bytes=1), folder)
    return int(str(error.value).split("at least ")[1].split(",")[0])


def _check(got: list[npt.NDArray[np.float32]], expected: list[npt.NDArray[np.float32]]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert np.array_equal(mine, theirs)


def test_with_room_for_all_each_expert_is_read_once(
    checkpoint: CheckpointMaker, cache: Path
) -> None:
    ledger, executor = loaded(
        settings(weight_dtype="int8", experts="disk"), checkpoint("qwen3-moe")
    )
    assert ledger.experts == ledger.experts_on_disk
    steps(executor)
    again = counts_of(executor, lambda: steps(executor))
    assert (again.misses, again.evictions, again.read_bytes) == (0, 0, 0)
    assert again.hits >= 3 * 2 * EXPERTS["qwen3-moe"][1]
    assert executor.expert_counts().read_bytes <= ledger.experts_on_disk


def test_those_used_last_stay(checkpoint: CheckpointMaker) -> None:
    made = settings(weight_dtype="int8", experts="disk")
    least = _least_bytes(made, checkpoint("qwen3-moe"))
    _, executor = loaded(
        dataclasses.replace(made, expert_cache_bytes=least), checkpoint("qwen3-moe")
    )
    layers, (experts, chosen) = 2, EXPERTS["qwen3-moe"]
    one_token = ragged([(PROMPT, 1)], first_block=0)
    steps(executor)
    first, second = (counts_of(executor, lambda: forward(executor, one_token)) for _ in range(2))
    assert layers * chosen <= experts
    assert first.hits + first.misses == layers * chosen
    assert (second.hits, second.misses) == (layers * chosen, 0)


def test_experts_are_not_mapped(checkpoint: CheckpointMaker, cache: Path) -> None:
    """A limit on the address space (``ulimit -v``) would count mappings, and touched pages are memory."""
    made = settings(weight_dtype="int8", experts="disk")
    for experts in ("memory", "disk"):  # the second uses what the first has written
        loaded(dataclasses.replace(made, experts=experts), checkpoint("mixtral"))
        [file] = cached_files(cache)
        entries = expert_entries(cache)
        mapped = map_file(file.path, frozenset(entry.key for entry in entries)).data
        assert len(mapped) == min(entry.offset for entry in entries)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packing, "pack", None)
            loaded(made, checkpoint("mixtral"))


def test_greedy_texts_are_the_same_and_the_stats_say_what_was_read(
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("qwen3-moe")
    made: dict[str, Any] = {"weight_dtype": "int4", "kv_cache_tokens": 1024, "threads": 2}
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [PROMPT[:n] for n in (2, 5, 11)]
    least = _least_bytes(settings(weight_dtype="int4", experts="disk"), folder)
    with LLM(str(folder), **made) as llm:
        expected = [output.token_ids for output in llm.generate(prompts, params)]
    with LLM(str(folder), **made, experts="disk", expert_cache_bytes=least) as llm:
        assert [output.token_ids for output in llm.generate(prompts, params)] == expected
        stats = llm._engine.stats
    assert stats.expert_cache_bytes == least
    assert stats.expert_misses > 0
    assert stats.expert_hits > 0
    assert stats.expert_read_bytes > least
    collector = EngineCollector(None)
    collector.models["m"] = EngineTotals(_Served(stats))
    samples = {s.name: s.value for family in collector.collect() for s in family.samples}
    assert samples["galley_expert_cache_bytes"] == least
    for name in ("hits", "misses", "evictions", "read_bytes", "read_seconds"):
        counted = samples[f"galley_expert_cache_{name}_total"]
        assert counted == getattr(stats, f"expert_{name}") > 0


@dataclasses.dataclass
class _Served:
    """An engine as seen by the metrics."""

    stats: EngineStats
    restarts: int = 0
    killed_starts: int = 0
    info: ModelInfo | None = None
    is_ready: bool | None = True
    token_budget: int = 512
    processes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The only engine."""
        return [ReplicaStatus(name="0", state="ready", stats=self.stats, restarts=self.restarts)]


def test_the_error_for_too_little_memory_suggests_the_disk(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("qwen3-moe")
    made = settings(weight_dtype="int4", experts="disk")
    least = _least_bytes(made, folder)
    small = dataclasses.replace(made, expert_cache_bytes=least)
    ledger, _ = loaded(small, folder)
    [row] = [line for line in ledger_lines("m", ledger) if line.strip().startswith("experts")]
    assert "on disk, a token reads up to" in row
    layers = ledger.experts_on_disk // least
    assert ledger.experts_of_token == least * layers * EXPERTS["qwen3-moe"][1] // 16
    assert f"{ledger.experts_of_token / 1e9:.3g} s at 1 GB/s" in row

    monkeypatch.setattr(engine_memory, "available_memory", lambda: ledger.total)
    with pytest.raises(EngineFailed, match="does not fit in memory") as error:
        load_engine(settings(weight_dtype="int4"), folder)
    changes = str(error.value).splitlines()[1:]
    [change] = [line for line in changes if "--experts disk" in line]
    assert "a token then reads up to" in change
    loaded(dataclasses.replace(made), folder)  # and so it is

    monkeypatch.setattr(engine_memory, "available_memory", lambda: ledger.total + least // 2)
    with pytest.raises(EngineFailed) as error:
        load_engine(dataclasses.replace(made, expert_cache_bytes=2 * least), folder)
    [change] = [line for line in str(error.value).splitlines() if "--expert-cache-bytes" in line]
    fewer = dataclasses.replace(made, expert_cache_bytes=int(change.split()[2]))
    assert least <= loaded(fewer, folder)[0].experts < 2 * least

    monkeypatch.setattr(engine_memory, "available_memory", lambda: ledger.total - 1)
    with pytest.raises(EngineFailed, match="experts from disk"):
        load_engine(small, folder)


@pytest.mark.parametrize("start", ["first", "later"])
def test_damaged_experts_are_packed_anew(
    checkpoint: CheckpointMaker, cache: Path, start: str
) -> None:
    folder, made = checkpoint("mixtral"), settings(weight_dtype="int8", experts="disk")
    expected = steps(loaded(made, folder)[1])
    [file] = cached_files(cache)
    data = bytearray(file.path.read_bytes())
    data[-100 if start == "first" else len(data) // 2] ^= 16
    file.path.write_bytes(data)
    _check(steps(loaded(made, folder)[1]), expected)
    assert cached_files(cache)[0].path.read_bytes() != data


def test_experts_that_cannot_be_read_end_the_step(checkpoint: CheckpointMaker, cache: Path) -> None:
    made = settings(weight_dtype="int8", experts="disk")
    made = dataclasses.replace(made, expert_cache_bytes=_least_bytes(made, checkpoint("mixtral")))
    _, executor = loaded(made, checkpoint("mixtral"))
    expected = steps(executor)
    [file] = cached_files(cache)
    data = file.path.read_bytes()
    with file.path.open("r+b") as packed:
        packed.truncate(min(entry.offset for entry in expert_entries(cache)))
        with pytest.raises(RuntimeError, match="cannot read experts from their file"):
            steps(executor)
        packed.write(data)
    _check(steps(executor), expected)


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        ("llama", {"experts": "disk"}, "the model has no experts"),
        ("mixtral", {"experts": "disk", "executor": "reference"}, "keeps them in memory"),
        ("mixtral", {"experts": "disk", "weight_cache": False}, "weight_cache is off"),
        ("mixtral", {"expert_cache_bytes": 10**9}, "experts is memory"),
        ("mixtral", {"experts": "disk", "expert_cache_bytes": 0}, "at least 1"),
    ],
)
def test_unsupported_settings_are_refused_and_named(
    checkpoint: CheckpointMaker, variant: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        load_engine(settings(**changes), checkpoint(variant))


def test_without_a_place_for_the_file_it_does_not_start(
    checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "in the way"))
    with pytest.raises(SettingsError, match=f"set {FOLDER_VARIABLE} to a folder with enough space"):
        load_engine(settings(experts="disk"), checkpoint("mixtral"))

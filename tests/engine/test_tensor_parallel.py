"""A model in parts: the same bits as in one process, whatever is divided."""

import dataclasses
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from galley import SamplingParams, _native
from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.parallel import factory
from galley.engine.parallel.cpus import cpus_of_ranks, parse_cpus
from galley.engine.read_model import read_model
from galley.errors import DamagedWeights, EngineFailed, SettingsError
from galley.grammar.check import check
from galley.grammar.vocabulary import load_vocabulary
from galley.graph.divide import divide
from galley.machine import FOLDER_VARIABLE
from galley.ops import background
from galley.ops.batch import Batch
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import Executor, forward
from galley.ops.packed_cache import cached_files
from galley.runtimes.library import refuse_settings
from galley.service.requests import expand
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Grammar, Output
from tests.adapters.peft import make_adapter
from tests.checkpoints import KNOWN_OPS, VARIANTS, make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.embedding.checkpoints import make_model
from tests.embedding.running import loaded, vectors_of
from tests.engine.ranks import divided, start_thread
from tests.engine.requests import request, run, seen
from tests.native.harness import Floats, aligned, ragged
from tests.thorough import long, some_of

LENGTHS = (1, 19, 40)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "int8": {"weight_dtype": "int8", "kv_dtype": "int8"},
    "int4": {"weight_dtype": "int4", "kv_dtype": "int4"},
    "float32": {"dtype": "float32"},
    "bf16": {"dtype": "bfloat16", "weight_dtype": "bf16"},
}


def settings_of(folder: Path, ranks: int = 1, kind: str = "int8", **more: Any) -> EngineSettings:
    chosen = {
        "model": str(folder),
        "executor": "cpu",
        "threads": 1,
        "kv_cache_tokens": 2048,
        "speculation": "off",
        "weight_cache": False,
        "tensor_parallel": ranks,
        **SETTINGS[kind],
    }
    return EngineSettings(**(chosen | more))


def all_logits(executor: Executor) -> list[Floats]:
    """Return the logits of a ragged prefill with all rows wanted, then with some, then of a decode step."""
    ids = [random_ids(n, n + 1) for n in LENGTHS]
    groups = executor.kv_groups
    whole = ragged([(list(i[:-1]), len(i) - 1) for i in ids], first_block=0, groups=groups)
    ends = np.asarray(whole.starts)[1:] - 1
    some = Batch(whole.tokens, whole.positions, whole.starts, whole.tables, ends)
    decode = ragged([(i, 1) for i in ids], first_block=0, groups=groups)
    return [forward(executor, batch).copy() for batch in (whole, some, decode)]


def assert_same_bits(folder: Path, ranks: tuple[int, ...], **chosen: Any) -> None:
    expected = all_logits(load_engine(settings_of(folder, **chosen), folder)._executor)
    for count in ranks:
        with divided(settings_of(folder, count, **chosen), folder) as engine:
            for got, wanted in zip(all_logits(engine._executor), expected, strict=True):
                assert np.array_equal(got.view(np.int32), wanted.view(np.int32)), count


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        *some_of([v for v in VARIANTS if v in KNOWN_OPS], ["int8"], of=5),
        *some_of([v for v in VARIANTS if v not in KNOWN_OPS], list(SETTINGS), of=7),
    ],
    ids=str,
)
def test_no_division_changes_a_bit(variant: str, kind: str, checkpoint: CheckpointMaker) -> None:
    assert_same_bits(checkpoint(variant), (2, 4), kind=kind)


@pytest.mark.parametrize("variant", ["phi3", "mixtral", pytest.param("deepseek-v3", marks=long)])
def test_the_reference_executor_is_divided_too(variant: str, checkpoint: CheckpointMaker) -> None:
    """torch's products of other sizes may round otherwise, but only in the last bits."""
    folder = checkpoint(variant)
    chosen: dict[str, Any] = {"kind": "float32", "executor": "reference"}
    expected = all_logits(load_engine(settings_of(folder, **chosen), folder)._executor)
    with divided(settings_of(folder, 2, **chosen), folder) as engine:
        for got, wanted in zip(all_logits(engine._executor), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("variant", ["llama", pytest.param("qwen3-moe", marks=long)])
def test_chunks_of_rows_wider_than_a_slot_together(
    variant: str, checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small slots, rows are exchanged a few at a time."""
    monkeypatch.setattr(factory, "SLOT_BYTES", 1024)
    assert_same_bits(checkpoint(variant), (3,), kind="float32")


def texts(engine: Engine) -> dict[str, tuple[object, ...]]:
    """Return what callers see of requests of all kinds, some with a common prefix, in two rounds."""
    repeated = [5, 6, 7, 8] * 12
    vocabulary = load_vocabulary(Path(engine.info.path))
    grammar = check(Grammar("regex", "[a-c]{3,5}[0-9]+"), vocabulary, "grammar")
    wishes: list[tuple[list[int], dict[str, Any]]] = [
        (repeated, {"max_tokens": 20, "temperature": 0.0, "logprobs": 2}),
        (repeated, {"max_tokens": 20, "temperature": 0.9, "seed": 3, "penalties": True}),
        (random_ids(5, 70), {"max_tokens": 20, "temperature": 0.0, "prompt_logprobs": 1}),
        ([9], {"max_tokens": 30, "temperature": 0.7, "seed": 1, "few": True}),
        ([9, 9], {"max_tokens": 12, "temperature": 0.7, "seed": 2, "grammar": grammar}),
    ]
    assert engine.info.text is not None
    if not engine.info.text.recurrent:
        wishes.append((repeated[:33], {"max_tokens": 6, "num_beams": 2}))
    found: dict[str, tuple[object, ...]] = {}
    for round_ in range(2):
        made = [request(10 * round_ + i, *wish, engine) for i, wish in enumerate(wishes)]
        found |= seen(run(engine, made))
    return found


@pytest.mark.parametrize(
    "variant", ["llama", "mixtral", "deepseek-v3", pytest.param("granite-hybrid", marks=long)]
)
def test_texts_are_those_of_one_process(variant: str, checkpoint: CheckpointMaker) -> None:
    """Prompts in chunks, preemption, cached prefixes, draft tokens, grammars, beams, log-probabilities."""
    folder = checkpoint(variant)
    chosen: dict[str, Any] = {"max_batch_tokens": 32, "kv_cache_tokens": 512, "speculation": "auto"}
    if variant == "granite-hybrid":
        chosen["kv_cache_tokens"] = 2048
    plain = load_engine(settings_of(folder, **chosen), folder)
    expected = texts(plain)
    with divided(settings_of(folder, 2, **chosen), folder) as engine:
        assert texts(engine) == expected
        assert engine.stats.prefix_hit_tokens == plain.stats.prefix_hit_tokens > 0


def test_adapters_are_divided_with_the_matrices(
    checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    folder = checkpoint("llama")
    adapters = [make_adapter(tmp_path / f"a{i}", folder, seed=i, size=0.1) for i in range(3)]

    def tokens(engine: Engine) -> dict[str, list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        found: dict[str, list[int]] = {}
        made = []
        for i, adapter in enumerate([*adapters, None, adapters[0]]):
            [one] = expand_one(engine, random_ids(3, 40), params, f"r{i}")
            made.append(msgspec.structs.replace(one, adapter=adapter))
        for one in made:
            engine.add(one)
        while engine.has_work:
            for output in engine.step():
                assert output.finish_reason != "error", output
                found.setdefault(output.request_id, []).extend(output.tokens)
        return found

    chosen: dict[str, Any] = {"kind": "float32", "max_adapters": 2, "kv_cache_tokens": 8192}
    expected = tokens(load_engine(settings_of(folder, **chosen), folder))
    assert len({tuple(text) for text in expected.values()}) == 4
    for ranks in (2, 4):
        with divided(settings_of(folder, ranks, **chosen), folder) as engine:
            assert tokens(engine) == expected


def expand_one(
    engine: Engine, prompt: list[int], params: SamplingParams, name: str
) -> list[EngineRequest]:
    return expand(prompt, params, engine.info, request_id=name)


@pytest.mark.parametrize("variant", ["bert", "modernbert", "qwen3"])
def test_vectors_are_those_of_one_process(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path, variant, pooling="mean_tokens", normalize=True)
    prompts = [random_ids(n, n + 4) for n in (1, 20, 60)]
    prompts = [[token % 100 for token in ids] for ids in prompts]
    expected = vectors_of(loaded(folder), prompts)
    monkeypatch.setattr(factory, "start_rank", start_thread)
    engine = loaded(folder, tensor_parallel=2)
    for got, wanted in zip(vectors_of(engine, prompts), expected, strict=True):
        assert np.array_equal(got, wanted)
    engine.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_models_of_vectors_have_no_adapters(ranks: int, tmp_path: Path) -> None:
    folder = make_model(tmp_path, "bert", pooling="mean_tokens", normalize=True)
    with pytest.raises(SettingsError, match=r"max_adapters is 2, but .* computes vectors"):
        loaded(folder, tensor_parallel=ranks, max_adapters=2)
    loaded(folder, max_adapters=0)


def test_a_draft_model_stays_whole(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    chosen: dict[str, Any] = {"speculation": "draft", "draft_model": str(checkpoint("qwen3"))}
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)

    def tokens(engine: Engine) -> list[int]:
        [made] = expand_one(engine, [5, 6, 7], params, "r")
        return [token for output in run(engine, [made])[made.id] for token in output.tokens]

    expected = tokens(load_engine(settings_of(folder, kind="float32"), folder))
    with divided(settings_of(folder, 2, kind="float32", **chosen), folder) as engine:
        assert tokens(engine) == expected
        draft = engine._speculation._draft_model
        assert draft is not None
        assert isinstance(draft._executor, CpuExecutor)


def test_blocks_of_all_ranks_are_kept_on_disk(checkpoint: CheckpointMaker, tmp_path: Path) -> None:
    folder, prompt = checkpoint("llama"), [(7 * i) % 90 + 5 for i in range(150)]

    def answer(engine: Engine) -> tuple[Any, int]:
        wish = {"max_tokens": 12, "temperature": 0.0, "logprobs": 3, "ignore_eos": True}
        outputs: list[Output] = run(engine, [request(0, prompt, wish, engine)])["r0-0"]
        return seen({"r": outputs})["r"], max(output.cached_tokens for output in outputs)

    chosen: dict[str, Any] = {"kv_cache_tokens": 512}
    expected, _ = answer(load_engine(settings_of(folder, **chosen), folder))
    chosen["prefix_cache_dir"] = str(tmp_path)
    for cached in (0, 144):
        with divided(settings_of(folder, 2, **chosen), folder) as engine:
            assert answer(engine) == (expected, cached)
            assert engine.stats.prefix_disk_hit_tokens == cached


def test_each_rank_keeps_its_part_of_the_packed_weights(
    checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start packs nothing, and the parts together are little more than the whole."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = make_checkpoint(tmp_path / "model", "llama", hidden_size=128, vocab_size=640)
    chosen: dict[str, Any] = {"kind": "int8", "weight_cache": True}
    sizes: dict[int, list[int]] = {}
    for ranks in (1, 2):
        with divided(settings_of(folder, ranks, **chosen), folder) as engine:
            expected = all_logits(engine._executor)
        background.finish()
        found = cached_files(tmp_path / "packed")
        sizes[ranks] = [file.size for file in found]
    assert len(sizes[1]) == 1
    assert len(sizes[2]) == 3
    before = {file.path: file.path.stat().st_ino for file in cached_files(tmp_path / "packed")}
    monkeypatch.setattr("galley.ops.packing.pack", None)
    with divided(settings_of(folder, 2, **chosen), folder) as engine:
        for got, wanted in zip(all_logits(engine._executor), expected, strict=True):
            assert np.array_equal(got, wanted)
    after = {file.path: file.path.stat().st_ino for file in cached_files(tmp_path / "packed")}
    assert before == after


def test_the_weights_of_every_rank_are_checked_when_logits_are_nan(
    checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits are at rank 0, and the damage may be elsewhere."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = checkpoint("llama-mha-tied")
    chosen: dict[str, Any] = {"kind": "bf16", "weight_cache": True}
    with divided(settings_of(folder, 2, **chosen), folder):
        background.finish()
    with divided(settings_of(folder, 2, **chosen), folder) as engine:
        [path] = (tmp_path / "packed").glob("*2of2*")
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(len(data) // 2)
            file.write(b"\xff" * (len(data) - len(data) // 2))  # NaN, as bfloat16
        [made] = expand_one(engine, [5, 6, 7], SamplingParams(max_tokens=50), "r")
        engine.add(made)
        [output] = engine.step()
        assert output.finish_reason == "error"
        [made] = expand_one(engine, [5, 6, 7], SamplingParams(max_tokens=50), "s")
        engine.add(made)
        with pytest.raises(DamagedWeights, match=r"rank 1: packed weights in .*2of2.* are damaged"):
            engine.step()
        assert not path.exists()


def test_experts_on_disk_are_divided_too(
    checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    folder = checkpoint("qwen3-moe")
    expected = all_logits(load_engine(settings_of(folder), folder)._executor)
    chosen: dict[str, Any] = {"experts": "disk", "weight_cache": True}
    with divided(settings_of(folder, 2, **chosen), folder) as engine:
        for got, wanted in zip(all_logits(engine._executor), expected, strict=True):
            assert np.array_equal(got.view(np.int32), wanted.view(np.int32))
        counts = engine._executor.expert_counts()
        assert counts.misses > 0
    background.finish()


def test_the_ledger_is_the_sum_of_all_ranks(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    whole = load_engine(settings_of(folder), folder).info.ledger
    with divided(settings_of(folder, 2), folder) as engine:
        ledger = engine.info.ledger
    assert whole is not None
    assert ledger is not None
    assert ledger.kv_per_token == whole.kv_per_token
    assert whole.weights < ledger.weights < 2 * whole.weights
    assert ledger.buffers > whole.buffers + factory.PROCESS_BYTES


@pytest.mark.parametrize(("variant", "ranks"), [("granite-hybrid", 4), ("qwen3-next", 2)])
def test_a_rank_has_the_states_of_its_heads(
    variant: str, ranks: int, checkpoint: CheckpointMaker
) -> None:
    """Ranks share only the columns of a convolution from which keys of all heads are made."""
    folder = checkpoint(variant)
    program = read_model(settings_of(folder), folder).program
    matrices = {op.attrs["state"] for op in program.ops if op.name in ("ssm", "delta_rule")}
    parts = [divide(program, rank, ranks).program for rank in range(ranks)]
    for i, state in enumerate(program.states):
        each = [part.states[i].rows * part.states[i].width for part in parts]
        assert max(each) < state.rows * state.width
        if i in matrices or variant == "qwen3-next":
            assert sum(each) == state.rows * state.width


def test_a_rank_that_fails_fails_the_step_with_its_reason(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("llama")
    with divided(settings_of(folder, 2), folder) as engine:
        names = {thread.name for thread in threading.enumerate()}
        assert any(name.startswith("galley-rank-1") for name in names)
        [made] = expand_one(engine, [5, 6, 7], SamplingParams(max_tokens=50), "r")
        engine.add(made)
        engine.step()

        def wrong(_: object) -> object:
            raise ValueError("spoiled")

        monkeypatch.setattr("galley.engine.parallel.rank.batch_of", wrong)
        with pytest.raises(EngineFailed, match="rank 1: ValueError: spoiled"):
            engine.step()


def test_what_cannot_be_divided_is_refused(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory, "start_rank", start_thread)

    def refusal(folder: Path, ranks: int = 2, **chosen: Any) -> str:
        with pytest.raises(SettingsError) as error:
            load_engine(settings_of(folder, ranks, **chosen), folder)
        return str(error.value)

    llama = checkpoint("llama")
    assert "4 attention heads share 2 KV heads" in refusal(llama, 8)
    monkeypatch.setattr("galley.engine.parallel.factory._EXECUTORS", ("cpu",))
    assert "executor 'reference' computes models whole" in refusal(
        llama, kind="float32", executor="reference"
    )
    assert "speech models are not divided" in refusal(checkpoint("whisper"))
    with pytest.raises(SettingsError, match=r"tensor_parallel is 2, but m\.onnx is of a library"):
        refuse_settings(EngineSettings(model="m.onnx", tensor_parallel=2), "is of a library")
    with pytest.raises(SettingsError, match="tensor_parallel_cpus is given"):
        settings_of(llama, 1, tensor_parallel_cpus=("0",))
    assert "1 lists of CPUs" in refusal(llama, tensor_parallel_cpus=("0",))
    assert "may not use" in refusal(llama, tensor_parallel_cpus=("0", "4000"))


def test_cpus_are_those_of_numa_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_cpus("0-2+7") == parse_cpus("0-2,7", ",") == (0, 1, 2, 7)
    for wrong in ("", "a", "3-1", "1++2", "0x1", "1,2"):
        with pytest.raises(SettingsError, match="not a list of CPUs"):
            parse_cpus(wrong)
    monkeypatch.setattr("galley.engine.parallel.cpus.usable_cpus", lambda: set(range(7)))
    for node, cpus in enumerate(["0-1", "2-3", "4-5", "6-7"]):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    assert cpus_of_ranks((), 2, tmp_path) == [(0, 1, 2, 3), (4, 5, 6)]
    assert cpus_of_ranks((), 4, tmp_path) == [(0, 1), (2, 3), (4, 5), (6,)]
    assert cpus_of_ranks((), 3, tmp_path) == [()] * 3
    assert cpus_of_ranks(("5", "0-2"), 2, tmp_path) == [(5,), (0, 1, 2)]
    assert cpus_of_ranks((), 2, tmp_path / "none") == [(), ()]


def test_a_communicator_says_what_is_wrong() -> None:
    memory = aligned(_native.Communicator.bytes(2, 64))
    for arguments in ((0, 0, 64), (2, 2, 64), (-1, 2, 64), (0, 2, 60), (0, 2, 128)):
        with pytest.raises(ValueError, match=r"rank|slots|small"):
            _native.Communicator(memory, *arguments, 1000)
    shared = _native.Communicator(memory, 0, 2, 64, 1000)
    assert not shared.failed
    _native.Communicator(memory, 1, 2, 64, 1000).fail()
    assert shared.failed


def test_options_name_each_chosen_matrix_by_its_part(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("llama")
    model = read_model(settings_of(folder), folder)
    part = divide(model.program, 1, 2)
    name = "model.layers.0.mlp.up_proj.weight"
    [own] = [n for n, p in part.parts.items() if p.source == name]
    assert part.kinds({name: "bf16", "model.norm.weight": "int8"}) == {own: "bf16"}
    weights = part.weights(model.weights)
    assert weights[own].shape == weights.info(own).shape
    assert len(weights) == len(list(weights))
    assert dataclasses.replace(part, rank=1) == part

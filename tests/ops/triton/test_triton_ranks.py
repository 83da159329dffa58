"""A model divided among GPUs: the tokens and bits of one. Without GPUs, processes with interpreters."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from tests.ops.triton.device import DEVICE, ON_GPU, device

import torch
from torch import cuda

from galley.engine.engine import Engine
from galley.engine.loaders import load_engine
from galley.engine.parallel.executor import ParallelDevices
from galley.engine.parallel.factory import free_for_all, parallel_factory
from galley.engine.read_model import read_model
from galley.errors import RankKilled, SettingsError
from galley.formats.adapter import read_adapter
from galley.formats.checkpoint import Checkpoint
from galley.formats.weights import WeightKind
from galley.graph.divide import divide
from galley.machine import nameless_file
from galley.ops.communicator import (
    SLOT_BYTES,
    Communicator,
    RankLost,
    communicator,
    mapped_memory,
    new_memory,
)
from galley.models.registry import build_program
from galley.ops.batch import Batch
from galley.ops.draws import GREEDY, sampling_record
from galley.ops.sampling import SamplingBatch
from galley.ops.executor import BlockAccess, ExecutorMemory, forward
from galley.ops.triton import executor as gpu
from galley.ops.triton import graphs as graphs_module
from galley.ops.triton.graphs import DecodeGraphs
from galley.ops.triton.matrices import Matrix, splits_of
from galley.ops.triton.parts import Parts
from galley.ops.triton.ranks import TensorRanks, check_gpus
from galley.ops.triton.sampler import Draws
from galley.ops.triton.step_batch import Shape
from galley.ops.triton.supported import float32_buffers
from galley.settings.engine import EngineSettings
from tests.adapters.peft import make_adapter
from tests.checkpoints import make_checkpoint, random_ids
from tests.conftest import CheckpointMaker
from tests.embedding.checkpoints import make_model
from tests.embedding.running import loaded as vector_engine, vectors_of
from tests.engine.requests import request, run, seen
from tests.models.chunks import run_chunks
from tests.native.harness import ragged
from tests.thorough import THOROUGH, unless

TWO_GPUS = pytest.mark.skipif(
    ON_GPU and cuda.device_count() < 2,
    reason="a model is divided among GPUs, and this machine has one",
)


def settings_of(folder: Path, ranks: int = 1, **changes: Any) -> EngineSettings:
    chosen = {"dtype": "float32", "kv_cache_tokens": 256, "max_batch_tokens": 32, "threads": 1}
    chosen |= {"executor": "gpu", "device": DEVICE, "speculation": "off", "tensor_parallel": ranks}
    return EngineSettings(model=str(folder), **{**chosen, **changes})


@contextmanager
def loaded(folder: Path, ranks: int, **changes: Any) -> Iterator[Engine]:
    engine = load_engine(settings_of(folder, ranks, **changes), folder)
    try:
        yield engine
    finally:
        engine.close()


def logits_and_texts(engine: Engine) -> tuple[Any, dict[str, tuple[object, ...]]]:
    """Return logits of a prompt, and texts, greedy and drawn, of a few tokens.

    The prompt has the first token of rank 1 and the one before, and texts have tokens of both ranks.
    """
    assert engine.info.text is not None
    first = engine.info.text.vocab_size // 2
    ids = [first - 1, first, *random_ids(1, 8)]
    logits = run_chunks(engine.executor, ids, [10], first_block=2)
    wishes = [{"max_tokens": 2, "temperature": i % 2, "seed": i} for i in range(8)]
    made = [request(i, random_ids(30 + i, 3), wish, engine) for i, wish in enumerate(wishes)]
    texts = run(engine, made)
    tokens = {token for outputs in texts.values() for one in outputs for token in one.tokens}
    assert min(tokens) < first <= max(tokens)
    return logits, seen(texts)


@TWO_GPUS
@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("mixtral", {"weight_dtype": "int4", "activations": "float32"}),
        unless(ON_GPU, "mixtral", {}),
        unless(ON_GPU, "llama", {"weight_dtype": "int4", "activations": "float32"}),
        unless(ON_GPU, "qwen3", {}),
        unless(ON_GPU, "deepseek-v3", {}),
        unless(ON_GPU, "llama", {"kv_dtype": "int4"}),
    ],
    ids=str,
)
def test_tokens_and_bits_are_those_of_one_process(
    variant: str,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logits, greedy and drawn texts; steps are submitted before tokens are known. Then a rank dies."""
    follow, followed = ParallelDevices.follow, []

    def counted(self: ParallelDevices, *given: Any) -> object:
        followed.append(follow(self, *given))
        return followed[-1]

    monkeypatch.setattr(ParallelDevices, "follow", counted)
    folder = make_checkpoint(tmp_path, variant, num_hidden_layers=2 if THOROUGH else 1)
    with loaded(folder, 1, **changes) as whole:
        logits, texts = logits_and_texts(whole)
    with loaded(folder, 2, **changes) as engine:
        assert isinstance(engine.executor, ParallelDevices)
        assert not isinstance(engine.executor, BlockAccess)
        got = logits_and_texts(engine)
        assert np.array_equal(got[0].view(np.int32), logits.view(np.int32))
        assert got[1] == texts
        assert len(followed) > 0
        [rank] = ranks_of(psutil.Process())
        rank.send_signal(signal.SIGKILL)
        with pytest.raises(RankKilled, match="rank 1 of the model ended: it was killed"):
            run(engine, [request(9, [5, 6], {"max_tokens": 20}, engine)])
    assert ranks_of(psutil.Process()) == []


@TWO_GPUS
@pytest.mark.parametrize("variant", [unless(ON_GPU, variant) for variant in ("bert", "qwen3")])
def test_vectors_are_those_of_one_process(variant: str, tmp_path: Path) -> None:
    folder = make_model(tmp_path, variant, pooling="mean_tokens")
    prompts = [[token % 100 for token in random_ids(n, n)] for n in (1, 20)]
    chosen: dict[str, Any] = {"executor": "gpu", "device": DEVICE, "dtype": "float32"}
    whole = vectors_of(vector_engine(folder, **chosen), prompts)
    engine = vector_engine(folder, tensor_parallel=2, **chosen)
    for got, wanted in zip(vectors_of(engine, prompts), whole, strict=True):
        assert np.array_equal(got, wanted)
    engine.close()


@TWO_GPUS
@pytest.mark.parametrize("ranks", [unless(ON_GPU, 2), *([] if ON_GPU else [unless(False, 4)])])
def test_adapters_are_divided_with_the_matrices(
    ranks: int, checkpoint: CheckpointMaker, tmp_path: Path
) -> None:
    """With four ranks, two share each KV head."""
    folder = checkpoint("llama")
    shapes = build_program(Checkpoint.open(folder).config).shapes
    adapters = [make_adapter(tmp_path / f"a{i}", folder, seed=i, size=0.1) for i in range(2)]
    logits = []
    for count in (1, ranks):
        with loaded(folder, count, max_adapters=2) as engine:
            for slot, adapter in enumerate(adapters):
                weights = read_adapter(Path(adapter.path), shapes, 16)
                engine.executor.set_adapter(slot, engine.executor.pack_adapter(weights))
            batch = ragged([(random_ids(n, 9), 9) for n in range(3)], first_block=0)
            batch = msgspec.structs.replace(batch, adapters=np.array([1, -1, 0]))
            logits.append(forward(engine.executor, batch).copy())
    assert np.array_equal(logits[0].view(np.int32), logits[1].view(np.int32))


def ranks_of(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children() if "galley.service.rank" in one.cmdline()]


def in_threads(work: Callable[[TensorRanks, Communicator], object], count: int) -> list[object]:
    """Return what the ranks of a group give, each on a thread with its own connection."""
    memory, meeting = new_memory(count, SLOT_BYTES), nameless_file("galley-ranks")
    mapped = mapped_memory(memory, count, SLOT_BYTES)
    found: list[object] = [None] * count

    def of_rank(rank: int) -> None:
        shared = communicator(mapped, rank, count, SLOT_BYTES)
        ranks = TensorRanks(shared, os.dup(meeting), device())
        try:
            found[rank] = work(ranks, shared)
        except RankLost as error:
            found[rank] = error
        finally:
            ranks.close()

    threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(memory)
    os.close(meeting)
    return found


@pytest.mark.skipif(ON_GPU, reason="ranks on GPUs are processes")
def test_columns_of_all_ranks_are_put_side_by_side() -> None:
    """As many of each rank, or more of some; rank 0's tokens; columns that only rank 0 wants."""

    def work(ranks: TensorRanks, shared: Communicator) -> list[torch.Tensor]:
        assert (ranks.rank, ranks.ranks) == (shared.rank, shared.ranks)
        found = []
        for widths in ((4, 4, 4), (2, 5, 3)):
            x = torch.full((7, 9), float(ranks.rank))[:, : widths[ranks.rank]]
            y = torch.empty((7, sum(widths)))
            ranks.gather(x, widths, y if ranks.rank != 1 else None)
            found.append(y if ranks.rank != 1 else torch.zeros(0))
        ranks.gather(torch.empty((0, 2)), (2, 2, 2), torch.empty((0, 6)))
        tokens = torch.arange(3, dtype=torch.int32) + 10 * ranks.rank
        ranks.broadcast(tokens)
        return [*found, tokens]

    for rank, one in enumerate(in_threads(work, 3)):
        assert isinstance(one, list), one
        assert one[2].tolist() == [0, 1, 2]
        if rank != 1:
            assert one[0].tolist() == [[0] * 4 + [1] * 4 + [2] * 4] * 7
            assert one[1].tolist() == [[0] * 2 + [1] * 5 + [2] * 3] * 7


@pytest.mark.skipif(ON_GPU, reason="ranks on GPUs are processes")
def test_an_exchange_ends_if_a_rank_has_failed() -> None:
    """Rank 1 is connected, and then fails instead of taking part in the second exchange."""
    ended = threading.Event()

    def work(ranks: TensorRanks, shared: Communicator) -> None:
        ranks.broadcast(torch.zeros(1))
        if ranks.rank == 1:
            shared.fail()
            assert ended.wait(60)  # its connection is open meanwhile
            return
        try:
            ranks.gather_all(torch.zeros(1))
        finally:
            ended.set()

    found = in_threads(work, 2)
    assert isinstance(found[0], RankLost)
    assert "a rank has failed while rank 0 waited" in str(found[0])


@pytest.mark.skipif(ON_GPU, reason="ranks on GPUs are processes")
def test_ranks_do_not_wait_for_one_that_has_failed_before_they_met() -> None:
    ended = threading.Event()

    def work(ranks: TensorRanks, shared: Communicator) -> None:
        if ranks.rank == 1:
            shared.fail()
            assert ended.wait(60)
        try:
            ranks.gather_all(torch.zeros(1))  # of rank 1, so that rank 0's thread ends
        finally:
            ended.set()

    found = in_threads(work, 2)
    assert "a rank has failed while rank 0 waited" in str(found[0])


def test_a_part_of_a_matrix_is_summed_in_the_stretches_of_the_whole(
    checkpoint: CheckpointMaker,
) -> None:
    """Fewer outputs would have more stretches, and so other bits."""
    outputs, depth = 24576, 2048
    assert splits_of(outputs, depth) != splits_of(outputs // 2, depth)
    part = Matrix("int4", torch.empty(0), outputs // 2, depth, 128, coded=True, whole=outputs)
    assert part.splits == splits_of(outputs, depth)
    folder = checkpoint("llama")
    model = read_model(settings_of(folder), folder, "gpu")
    own = divide(model.program, 1, 2)
    program = own.program.with_kinds(dict.fromkeys(own.program.matrices, WeightKind("float32")))
    weights, of = own.weights(model.weights), torch.float32
    parts = Parts(program, weights, of, device(), kv_bits=0, adapters=None)
    [up] = [op for op in program.ops if "layers.0.mlp.up_proj.weight" in str(op.weights)]
    made = parts.matrix(up)
    whole = model.program.shapes["model.layers.0.mlp.up_proj.weight"][0]
    assert made.outputs < made.whole == whole


def test_parts_of_logits_are_float32_like_all_of_them(checkpoint: CheckpointMaker) -> None:
    folder = checkpoint("gemma2")  # whose logits are capped
    model = read_model(settings_of(folder), folder, "gpu")
    program = divide(model.program, 1, 2).program
    gather, cap, product = program.ops[-1], program.ops[-2], program.ops[-3]
    assert (gather.name, cap.name, product.name) == ("all_gather", "soft_cap", "linear")
    assert {gather.output, cap.output, product.output} <= float32_buffers(program)


def test_ranks_capture_graphs_in_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """To capture one launches exchanges, and only rank 0 knows how tokens are drawn."""

    class Graph:
        def replay(self) -> None:
            replayed.append(len(captures))

    def capture(self: Any, batch: Batch, shape: Shape, *_: object, **__: object) -> Any:
        captures.append(shape)
        draws = None if self._ranks is not None else Draws(shape.rows, 32, device())
        return graphs_module._Captured(None, draws, torch.zeros(1, 32), Graph())  # type: ignore[arg-type]

    monkeypatch.setattr(DecodeGraphs, "_capture", capture)
    monkeypatch.setattr(DecodeGraphs, "_fill", lambda *_: None)
    greedy, random = SamplingBatch(), SamplingBatch()
    greedy.draw(0, 4, GREEDY)
    record = sampling_record(seed=1, temperature=0.9, top_k=0, top_p=1.0, min_p=0.0)
    random.draw(0, 4, record)
    batch = ragged([([5, 6, 7, 8], 1)], first_block=0)
    counts = []
    for ranks in (None, object()):
        captures: list[Shape] = []
        replayed: list[int] = []
        graphs: Any = DecodeGraphs(None, 1, device(), ranks)  # type: ignore[arg-type]
        drawn = [graphs.run(batch, one, None)[1] is not None for one in (greedy, random, None)]
        assert drawn == [ranks is None, ranks is None, False]
        assert len(replayed) == 3
        counts.append(len(captures))
    assert counts == [2, 1]


def test_gpus_are_equal_and_one_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        def __init__(self, name: str) -> None:
            self.name = "B" if name == "cuda:2" else "A"
            self.major, self.minor, self.total_memory = 9, 0, 80 << 30

    monkeypatch.setattr(cuda, "device_count", lambda: 3)
    monkeypatch.setattr(cuda, "get_device_properties", Properties)
    check_gpus(["cuda:0", "cuda:1"])
    for names, named in (
        (["cuda:0", "cuda:2"], r"cuda:0 is a A \(9\.0, 80 GiB\) and cuda:2 a B .* need equal GPUs"),
        (["cuda:2", "cuda:3"], r"needs cuda:3, but the number of GPUs .* is 3"),
        (["cuda:1", "cuda:1"], r"gives cuda:1 to 2 of 2 ranks"),
        (["cpu", "cpu"], r"device is 'cpu', but .* needs a GPU for each rank"),
    ):
        with pytest.raises(SettingsError, match=named):
            check_gpus(names)


def test_what_cannot_be_divided_is_refused_and_named(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama = checkpoint("llama")

    def refusal(folder: Path, ranks: int, **changes: Any) -> str:
        with pytest.raises(SettingsError) as error:
            load_engine(settings_of(folder, ranks, **changes), folder)
        return str(error.value)

    assert "equally many heads, and these would have 1, 1, 2" in refusal(llama, 3)
    assert "4 attention heads share 2 KV heads" in refusal(llama, 8)
    assert "speech models are not divided" in refusal(checkpoint("whisper"), 2)
    elsewhere: dict[str, Any] = {"tensor_parallel_rank": ("10.0.0.8:8600",)}
    assert "GPUs of one machine" in refusal(llama, 2, **elsewhere)
    draft: dict[str, Any] = {"speculation": "draft", "draft_model": str(checkpoint("qwen3"))}
    assert "one GPU would hold all of it" in refusal(llama, 2, **draft)
    with pytest.raises(SettingsError, match="names 3 devices, but tensor_parallel is 2"):
        settings_of(llama, 2, device="cuda:0,cuda:1,cuda:2")
    with pytest.raises(SettingsError, match="names 2 devices, but tensor_parallel is 3"):
        settings_of(llama, 3, device="cuda:0,cuda:1", **elsewhere)
    for given, apart, devices in (
        ("cuda", True, ("cuda:0", "cuda:1")),
        ("cuda", False, ("cuda", "cuda")),
        ("cuda:3,cuda:1", True, ("cuda:3", "cuda:1")),
    ):
        assert settings_of(llama, 2, device=given).devices_of(2, apart=apart) == devices
    monkeypatch.setattr(gpu, "INTERPRETED", False)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    assert "number of GPUs that this process may use is 1" in refusal(llama, 2, device="cuda")


def memory_of(weights: int, free: int | None = 100) -> ExecutorMemory:
    return ExecutorMemory(
        isa="",
        activations="float32",
        kinds="",
        weights=weights,
        kv_block=1,
        row=2,
        logits=3,
        encoder=0,
        scratch=4,
        free=free,
    )


def test_what_is_free_on_all_gpus_is_what_the_fullest_leaves_on_each() -> None:
    """A cache that takes all that is left fits the rank with the most weights."""
    each = [memory_of(40), memory_of(30), memory_of(10)]
    free = free_for_all(each)
    assert free is not None
    left = free - sum(one.weights + one.scratch for one in each)
    assert left == 3 * (100 - 40 - 4)
    assert free_for_all([memory_of(40, None), memory_of(30, None)]) is None


def test_the_memory_of_a_divided_model_is_that_of_its_parts(checkpoint: CheckpointMaker) -> None:
    """Weights are divided, and each rank has its heads' keys and values; exchanges take room."""
    folder = checkpoint("llama")
    found = []
    for ranks in (1, 2):
        settings = settings_of(folder, ranks)
        model = read_model(settings, folder, "gpu")
        made = parallel_factory(gpu.TritonExecutor, "gpu", settings, folder)
        found.append(made.memory(model.program, model.weights, model.options))
    whole, parts = found
    assert parts.kv_block == whole.kv_block
    assert whole.weights < parts.weights < 1.2 * whole.weights
    assert parts.row > whole.row
    assert parts.logits > 2 * whole.logits

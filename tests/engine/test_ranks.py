"""The processes of a model in parts: their CPUs, their messages, and their memory."""

import dataclasses
import os
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from galley.engine.loaders import load_engine
from galley.engine.parallel import factory, rank
from galley.engine.parallel.executor import ParallelExecutor
from galley.engine.parallel.frames import Allocate, Begin, Block, Channel, encode
from galley.engine.parallel.links import RankLink
from galley.engine.read_model import read_model
from galley.errors import EngineFailed, RankKilled, SettingsError
from galley.formats.adapter import AdapterWeights
from galley.formats.weights import Weights
from galley.graph.divide.sharding import divide_heads
from galley.graph.program import Program
from galley.ops.communicator import communicator, mapped_memory, new_memory
from galley.ops.cpu import CpuExecutor
from galley.ops.executor import ExecutorOptions
from galley.settings.engine import EngineSettings
from tests.adapters.peft import make_adapter
from tests.conftest import CheckpointMaker
from tests.engine.ranks import divided
from tests.engine.requests import request


def settings_of(folder: Path, **more: Any) -> EngineSettings:
    chosen: dict[str, Any] = {
        "executor": "cpu",
        "threads": 1,
        "kv_cache_tokens": 512,
        "weight_cache": False,
        "tensor_parallel": 2,
    }
    return EngineSettings(model=str(folder), **(chosen | more))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPUs can be chosen")
def test_ranks_have_no_more_threads_than_cpus_and_the_caller_gets_its_own_back(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a process can load a divided model again, with the same CPUs."""
    folder, before = checkpoint("llama"), os.sched_getaffinity(0)
    ranks, threads = [str(cpu) for cpu in (min(before), max(before))], []
    load, options_of = rank.load, rank.options_of

    def seen_load(begin: Begin, *more: Any) -> Any:
        threads.append(begin.settings.threads)
        return load(begin, *more)

    def seen_options(*given: Any) -> Any:
        threads.append(given[1].threads)
        return options_of(*given)

    monkeypatch.setattr("galley.engine.read_model.available_cores", lambda: 16)
    monkeypatch.setattr(rank, "load", seen_load)
    monkeypatch.setattr(factory, "options_of", seen_options)
    chosen: dict[str, Any] = {"tensor_parallel_cpus": tuple(ranks), "threads": None}
    for _ in range(2):
        with divided(settings_of(folder, **chosen), folder):
            assert os.sched_getaffinity(0) == {min(before)}
        assert os.sched_getaffinity(0) == before
    assert len(threads) > 2
    assert set(threads) == {1}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPUs can be chosen")
def test_a_draft_model_has_no_more_threads_than_cpus_of_rank_0(checkpoint: CheckpointMaker) -> None:
    folder, threads = checkpoint("llama"), []

    class Draft(CpuExecutor):
        def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
            threads.append(options.threads)
            super().__init__(program, weights, options)

    model = read_model(settings_of(folder, tensor_parallel=1), folder)
    cpu = str(min(os.sched_getaffinity(0)))
    for given, expected in ((None, 1), (3, 3)):
        settings = settings_of(folder, tensor_parallel_cpus=(cpu, cpu), threads=given)
        options = dataclasses.replace(model.options, threads=given or 16)
        factory.ParallelFactory(Draft, settings, folder)(model.program, model.weights, options)
        assert threads.pop() == expected


def test_threads_send_whole_frames() -> None:
    """A rank reports a failure while another thread of it sends blocks."""
    ours, theirs = map(Channel, socket.socketpair())
    frames = [Block(bytes([i]) * 300_000) for i in range(4)]

    def send(frame: Block) -> None:
        for _ in range(10):
            theirs.send(frame)

    senders = [threading.Thread(target=send, args=(frame,)) for frame in frames]
    for sender in senders:
        sender.start()
    for _ in range(40):
        assert ours.receive_from_rank() in frames
    for sender in senders:
        sender.join()
    ours.close()
    theirs.close()


def test_all_ranks_have_their_blocks_before_any_is_used(
    checkpoint: CheckpointMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank restores cached blocks as soon as it receives them, on a thread of its own."""
    allocate, allocate_all = CpuExecutor.allocate_kv, ParallelExecutor.allocate_kv
    allocated: list[CpuExecutor] = []
    after: list[int] = []

    def slow(self: CpuExecutor, *sizes: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.05)
        allocate(self, *sizes)
        allocated.append(self)

    def seen_all(self: ParallelExecutor, *sizes: int) -> None:
        allocate_all(self, *sizes)
        after.append(len(allocated))

    monkeypatch.setattr(CpuExecutor, "allocate_kv", slow)
    monkeypatch.setattr(ParallelExecutor, "allocate_kv", seen_all)
    folder = checkpoint("llama")
    with divided(settings_of(folder), folder):
        assert after == [2]


def test_steps_do_not_wait_for_an_adapter_that_a_rank_packs(
    checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, stepped, packs = CpuExecutor.pack_adapter, threading.Event(), threading.Event()
    in_time: list[bool] = []

    def slow(self: CpuExecutor, adapter: AdapterWeights) -> object:
        if threading.current_thread() is not packer:
            packs.set()
            in_time.append(stepped.wait(3))
        return pack(self, adapter)

    folder = checkpoint("llama")
    made = make_adapter(tmp_path / "a", folder, seed=1)
    monkeypatch.setattr(CpuExecutor, "pack_adapter", slow)
    with divided(settings_of(folder, max_adapters=1, kv_cache_tokens=8192), folder) as engine:
        assert engine._adapters is not None
        packer = threading.Thread(target=engine._adapters._pack, args=(made,))
        packer.start()
        assert packs.wait(30)
        engine.add(request(0, [5, 6, 7], {"max_tokens": 2}, engine))
        engine.step()
        stepped.set()
        packer.join()
    assert in_time == [True]


def test_a_rank_that_ends_because_of_another_gives_no_reason() -> None:
    """Or else the reason of the other, which may be that it was killed, could be missed."""
    errors = []
    for status in (0, 1, -signal.SIGKILL):
        file = new_memory(2, 64)
        shared = communicator(mapped_memory(file, 2, 64), 0, 2, 64)
        os.close(file)
        ours, theirs = socket.socketpair()
        link = RankLink(1, ours, shared, partial(int, status))
        theirs.close()
        with pytest.raises(EngineFailed):
            link.loaded()
        errors.append(type(link.error))
        assert shared.failed
        link.close()
    assert errors == [type(None), EngineFailed, RankKilled]


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (9, 3), (8, 2), (12, 12), (14, 2)])
def test_a_refused_number_of_ranks_names_possible_ones(heads: int, kv_heads: int) -> None:
    attrs = {"heads": heads, "kv_heads": kv_heads}
    with pytest.raises(SettingsError) as refused:
        divide_heads(attrs, heads + 1)
    assert f"at most {kv_heads}, or to a multiple of {kv_heads} up to {heads}" in str(refused.value)
    for ranks in (*range(1, kv_heads + 1), *range(kv_heads, heads + 1, kv_heads)):
        own = divide_heads(attrs, ranks)
        assert sum(end - begin for begin, end in own.heads) == heads
        group = heads // kv_heads
        for (begin, end), (first, last) in zip(own.heads, own.kv_heads, strict=True):
            assert range(first, last) == range(begin // group, (end - 1) // group + 1)


def test_a_rank_that_cannot_pack_an_adapter_ends(
    checkpoint: CheckpointMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may wait for its answer."""

    def wrong(*_: object) -> object:
        raise ValueError("spoiled")

    folder = checkpoint("llama")
    made = make_adapter(tmp_path / "a", folder, seed=1)
    monkeypatch.setattr(rank, "adapter_of", wrong)
    with divided(settings_of(folder, max_adapters=1, kv_cache_tokens=8192), folder) as engine:
        assert engine._adapters is not None
        with pytest.raises(EngineFailed, match="rank 1: ValueError: spoiled"):
            engine._adapters._pack(made)


def test_a_rank_alone_on_its_machine_says_which_setting_exceeds_its_memory(
    checkpoint: CheckpointMaker,
) -> None:
    folder = checkpoint("llama")
    engine = load_engine(settings_of(folder, tensor_parallel=1), folder)
    executor = engine._executor
    assert isinstance(executor, CpuExecutor)
    ours, theirs = socket.socketpair()
    shared = communicator(mapped_memory(-1, 2, 64), 1, 2, 64)
    with ours, theirs:
        ours.sendall(encode(Allocate(blocks=1 << 40, states=0)))
        with pytest.raises(SettingsError, match="set kv_cache_tokens to a smaller number"):
            rank.serve(Channel(theirs), executor, shared, contents=lambda: b"")
    engine.close()

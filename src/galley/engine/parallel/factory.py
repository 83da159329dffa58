"""Loads a model in parts, each in a process of its own."""

import dataclasses
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, cast

from galley.engine.parallel.cpus import cpus_of_ranks, run_on
from galley.engine.parallel.executor import ParallelDevices, ParallelExecutor, close_all
from galley.engine.parallel.frames import Begin, encode
from galley.engine.parallel.links import RankLink, start_rank, waiting_for
from galley.engine.parallel.rank import digest, options_of
from galley.engine.parallel.remote import RemoteRanks
from galley.errors import SettingsError
from galley.formats.weights import Weights
from galley.graph.divide import Divided, divide
from galley.graph.program import Program
from galley.machine import nameless_file
from galley.ops.communicator import (
    SLOT_BYTES,
    communicator,
    mapped_memory,
    memory_bytes,
    new_memory,
)
from galley.ops.executor import (
    Closable,
    DeviceChecking,
    Executor,
    ExecutorFactory,
    ExecutorMemory,
    ExecutorOptions,
    ExpertMemory,
)
from galley.settings.engine import EngineSettings, ExecutorName

PROCESS_BYTES: Final = 48 << 20
"""Bytes of a rank's process other than weights, keys and values, and buffers: Python and numpy."""

_EXECUTORS: Final = ("cpu", "gpu", "reference")
"""Executors that can compute a part of a model."""


class ParallelFactory:
    """See :class:`galley.ops.executor.ExecutorFactory`; ``options.ranks`` says how many parts there are.

    Args:
        base: creates the executor of each part.
        settings: those of the engine, which the other ranks read the model by; ``executor`` is not "auto".
        folder: the checkpoint.

    Raises:
        SettingsError: the CPUs or devices of the ranks cannot be used.
    """

    def __init__(self, base: ExecutorFactory, settings: EngineSettings, folder: Path) -> None:
        self._base = base
        self._settings = settings
        self._folder = folder
        self._here = settings.ranks_here
        self._on_devices = isinstance(base, DeviceChecking)
        self._devices = settings.devices_of(settings.tensor_parallel, apart=self._on_devices)
        if isinstance(base, DeviceChecking):
            base.check_devices(self._devices)
        elsewhere: list[tuple[int, ...]] = [()] * len(settings.tensor_parallel_rank)
        self._cpus = cpus_of_ranks(settings.tensor_parallel_cpus, self._here) + elsewhere
        self._known: tuple[Program, list[Divided]] | None = None

    def memory(
        self, program: Program, weights: Weights, options: ExecutorOptions
    ) -> ExecutorMemory:
        """Return the sum over the ranks of this machine."""
        if options.ranks == 1:
            return self._base.memory(program, weights, self._of_rank(0, options))
        parts = self._parts(program, options)[: self._here]
        each = [self._memory(part, weights, options) for part in parts]
        shared = 0  # of the device, where ranks are on devices
        if not self._on_devices:
            shared = memory_bytes(options.ranks, SLOT_BYTES) + PROCESS_BYTES * (self._here - 1)
        return dataclasses.replace(
            each[0],
            weights=sum(one.weights for one in each),
            kv_block=sum(one.kv_block for one in each),
            state=sum(one.state for one in each),
            row=sum(one.row for one in each),
            logits=(self._here if self._on_devices else 1) * each[0].logits,
            scratch=sum(one.scratch for one in each) + shared,
            adapters=sum(one.adapters for one in each),
            experts=ExpertMemory.of_ranks([one.experts for one in each]),
            free=free_for_all(each) if self._on_devices else each[0].free,
        )

    def __call__(self, program: Program, weights: Weights, options: ExecutorOptions) -> Executor:
        """Start the other ranks, load rank 0's part meanwhile, and wait for them.

        Raises:
            ModelError, SettingsError: a part cannot be loaded.
            EngineFailed: a rank ended, or one on another machine cannot be reached.
        """
        if options.ranks == 1:  # a draft model, which rank 0 has whole
            return self._base(program, weights, self._of_rank(0, options))
        parts = self._parts(program, options)
        remote = self._remote()
        file = new_memory(options.ranks, SLOT_BYTES)
        meeting = nameless_file("galley-ranks") if self._on_devices else -1
        options = dataclasses.replace(options, meeting=meeting)
        children: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        links: list[RankLink] = []
        closing: list[Callable[[], None]] = []
        try:
            memory = mapped_memory(file, options.ranks, SLOT_BYTES)
            shared = communicator(memory, 0, options.ranks, SLOT_BYTES)
            children += (start_rank(file, meeting) for _ in parts[1 : self._here])
            shares = self._expert_shares(parts, weights, options)

            def begin(part: Divided) -> bytes:
                frame = self._begin(part, options, shares[part.rank])
                return encode(frame if remote is None else remote.named(frame))

            for part, (connection, child) in zip(parts[1 : self._here], children, strict=True):
                links.append(RankLink(part.rank, connection, shared, waiting_for(child)))
                links[-1].send(begin(part))
            if remote is not None:
                for part in parts[self._here :]:
                    made, where = remote.connect(part.rank), remote.address_of(part.rank)
                    links.append(RankLink(part.rank, made, shared, None, where))
                    links[-1].send(begin(part))
                closing.append(remote.mesh(memory, shared, SLOT_BYTES).close)
            closing.append(run_on(self._cpus[0]))
            own = self._base(
                parts[0].program,
                parts[0].weights(weights),
                options_of(parts[0], self._of_rank(0, options), shared, shares[0]),
            )
            loaded = [link.loaded() for link in links]
            if isinstance(own, Closable):
                closing.append(own.close)
            if remote is not None:
                remote.check_isa([getattr(own, "isa", ""), *(one.isa for one in loaded)])
                remote.check_contents(dict(enumerate(loaded, 1)))
            kind = ParallelDevices if self._on_devices else ParallelExecutor
            return kind(
                own, parts, links, loaded, shared, here=self._here, on_close=partial(_all, closing)
            )
        except BaseException:
            unlinked = children[len(links) :]
            for connection, _ in unlinked:
                connection.close()
            close_all(links)
            for _, child in unlinked:
                waiting_for(child)()
            _all(closing)
            if meeting >= 0:
                os.close(meeting)
            raise
        finally:
            os.close(file)

    def _remote(self) -> RemoteRanks | None:
        if not self._settings.tensor_parallel_rank:
            return None
        return RemoteRanks(self._settings, self._folder)

    def _begin(self, part: Divided, options: ExecutorOptions, expert_cache: int) -> Begin:
        threads = self._of_rank(part.rank, options).threads
        device = self._devices[part.rank]
        settings = dataclasses.replace(self._settings, threads=threads, device=device)
        return Begin(
            settings=settings,
            folder=str(self._folder),
            rank=part.rank,
            ranks=part.ranks,
            slot_bytes=SLOT_BYTES,
            cpus=self._cpus[part.rank],
            expert_cache_bytes=expert_cache,
            ops=digest(part),
        )

    def _of_rank(self, rank: int, options: ExecutorOptions) -> ExecutorOptions:
        """Return the options with a rank's device and threads: by default, no more than it has CPUs."""
        cpus = self._cpus[rank]
        options = dataclasses.replace(options, device=self._devices[rank])
        if self._settings.threads or not cpus:
            return options
        return dataclasses.replace(options, threads=min(options.threads, len(cpus)))

    def _parts(self, program: Program, options: ExecutorOptions) -> list[Divided]:
        """Return what each rank computes.

        Raises:
            SettingsError: the model cannot be divided among this many ranks.
        """
        if self._known is None or self._known[0] is not program:
            parts = [divide(program, rank, options.ranks) for rank in range(options.ranks)]
            if self._on_devices:
                check_equal(parts)
            self._known = program, parts
        return self._known[1]

    def _memory(self, part: Divided, weights: Weights, options: ExecutorOptions) -> ExecutorMemory:
        options = self._of_rank(part.rank, options)
        # Asking another rank's device would take memory there, and the devices are equal.
        options = dataclasses.replace(options, device=self._devices[0])
        own = options_of(part, options, None, options.expert_cache_bytes)
        return self._base.memory(part.program, part.weights(weights), own)

    def _expert_shares(
        self, parts: Sequence[Divided], weights: Weights, options: ExecutorOptions
    ) -> list[int]:
        """Return each rank's bytes of memory for experts on disk: as many slots as all can have."""
        if options.experts != "disk":
            return [options.expert_cache_bytes] * len(parts)
        slots = [self._memory(part, weights, options).experts.slot for part in parts]
        return [options.expert_cache_bytes // sum(slots) * slot for slot in slots]


def _all(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()


def check_equal(parts: Sequence[Divided]) -> None:
    """Raise SettingsError if a rank has more heads than another: each has a device of the same size."""
    ranks = len(parts)
    for ops in zip(*(part.program.ops for part in parts), strict=True):
        if not ops[0].name.endswith("attention"):
            continue
        heads, kv_heads = ([op.attrs[name] for op in ops] for name in ("heads", "kv_heads"))
        if min(heads) < max(heads) or min(kv_heads) < max(kv_heads):
            raise SettingsError(
                f"tensor_parallel is {ranks}, but ranks on GPUs need equally many heads, and these would "
                f"have {', '.join(map(str, heads))}, with {', '.join(map(str, kv_heads))} KV heads; set it "
                "to a divisor of both numbers of heads"
            )


def free_for_all(each: Sequence[ExecutorMemory]) -> int | None:
    """Return the free bytes of all ranks' devices together: equal ones, of which the first is known.

    Ranks with smaller parts do not have more than those with the largest.
    """
    if each[0].free is None:
        return None
    held = [one.weights + one.scratch + one.adapters for one in each]
    return sum(held) + len(each) * (each[0].free - max(held))


def parallel_factory(
    base: ExecutorFactory, name: str, settings: EngineSettings, folder: Path
) -> ExecutorFactory:
    """Return ``base``, or if the settings divide the model, a factory that does.

    Args:
        base: the factory of the executor.
        name: the name of the executor.
        settings: those of the engine.
        folder: the checkpoint.

    Raises:
        SettingsError: the executor cannot compute a part of a model.
    """
    if settings.tensor_parallel == 1:
        return base
    if name not in _EXECUTORS:
        raise SettingsError(
            f"tensor_parallel is {settings.tensor_parallel}, but executor {name!r} computes models whole; "
            "leave it out, or use executor 'cpu'"
        )
    if name == "gpu" and settings.tensor_parallel_rank:
        raise SettingsError(
            f"tensor_parallel_rank is {', '.join(settings.tensor_parallel_rank)}, but executor 'gpu' "
            "divides a model among the GPUs of one machine; leave it out, or use executor 'cpu'"
        )
    if name == "gpu" and settings.draft_model is not None:
        raise SettingsError(
            f"draft_model is {settings.draft_model!r}, but with executor 'gpu' and tensor_parallel one GPU "
            "would hold all of it, and the GPUs are filled alike; leave it out"
        )
    named = dataclasses.replace(settings, executor=cast(ExecutorName, name))
    return ParallelFactory(base, named, folder)

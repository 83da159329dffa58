"""Loads a model in parts, each in a process of its own."""

import dataclasses
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from galley.engine.parallel.cpus import cpus_of_ranks, run_on
from galley.engine.parallel.executor import ParallelExecutor, close_all
from galley.engine.parallel.frames import Begin, encode
from galley.engine.parallel.links import RankLink, start_rank, waiting_for
from galley.engine.parallel.rank import digest, options_of
from galley.engine.parallel.remote import RemoteRanks
from galley.errors import SettingsError
from galley.formats.weights import Weights
from galley.graph.divide import Divided, divide
from galley.graph.program import Program
from galley.ops.communicator import (
    SLOT_BYTES,
    communicator,
    mapped_memory,
    memory_bytes,
    new_memory,
)
from galley.ops.executor import (
    Executor,
    ExecutorFactory,
    ExecutorMemory,
    ExecutorOptions,
    ExpertMemory,
)
from galley.settings.engine import EngineSettings

PROCESS_BYTES: Final = 48 << 20
"""Bytes of a rank's process other than weights, keys and values, and buffers: Python and numpy."""

_EXECUTORS: Final = ("cpu", "reference")
"""Executors that can compute a part of a model."""


class ParallelFactory:
    """See :class:`galley.ops.executor.ExecutorFactory`; ``options.ranks`` says how many parts there are.

    Args:
        base: creates the executor of each part.
        settings: those of the engine, which the other ranks read the model by.
        folder: the checkpoint.
    """

    def __init__(self, base: ExecutorFactory, settings: EngineSettings, folder: Path) -> None:
        self._base = base
        self._settings = settings
        self._folder = folder
        self._here = settings.ranks_here
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
        shared = memory_bytes(options.ranks, SLOT_BYTES)
        shared += PROCESS_BYTES * (self._here - 1)
        return dataclasses.replace(
            each[0],
            weights=sum(one.weights for one in each),
            kv_block=sum(one.kv_block for one in each),
            state=sum(one.state for one in each),
            row=sum(one.row for one in each),
            scratch=sum(one.scratch for one in each) + shared,
            adapters=sum(one.adapters for one in each),
            experts=ExpertMemory.of_ranks([one.experts for one in each]),
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
        children: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []
        links: list[RankLink] = []
        closing: list[Callable[[], None]] = []
        try:
            memory = mapped_memory(file, options.ranks, SLOT_BYTES)
            shared = communicator(memory, 0, options.ranks, SLOT_BYTES)
            children += (start_rank(file) for _ in parts[1 : self._here])
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
            if remote is not None:
                remote.check_isa([getattr(own, "isa", ""), *(one.isa for one in loaded)])
                remote.check_contents(dict(enumerate(loaded, 1)))
            return ParallelExecutor(
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
            raise
        finally:
            os.close(file)

    def _remote(self) -> RemoteRanks | None:
        if not self._settings.tensor_parallel_rank:
            return None
        return RemoteRanks(self._settings, self._folder)

    def _begin(self, part: Divided, options: ExecutorOptions, expert_cache: int) -> Begin:
        threads = self._of_rank(part.rank, options).threads
        settings = dataclasses.replace(self._settings, threads=threads)
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
        """Return the options with a rank's threads: by default, no more than it has CPUs."""
        cpus = self._cpus[rank]
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
            self._known = program, parts
        return self._known[1]

    def _memory(self, part: Divided, weights: Weights, options: ExecutorOptions) -> ExecutorMemory:
        options = self._of_rank(part.rank, options)
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
    return ParallelFactory(base, settings, folder)

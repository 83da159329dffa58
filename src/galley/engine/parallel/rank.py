"""A rank other than the first: loads its part of the model and computes the steps that it is sent.

One thread reads frames, the main thread computes steps, and a third one packs adapters and copies blocks
for rank 0, so that steps do not wait for these. ``service/rank.py`` is its process.
"""

import dataclasses
import gc
import hashlib
import queue
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from galley.engine.parallel.cpus import run_on
from galley.engine.parallel.frames import (
    Allocate,
    Allocated,
    Begin,
    Block,
    Channel,
    CheckWeights,
    ErrorKind,
    Failed,
    FromRank,
    Loaded,
    PackAdapter,
    Packed,
    ReadBlock,
    RunStep,
    SetAdapter,
    ToRank,
    WriteBlock,
    adapter_of,
    batch_of,
)
from galley.engine.parallel.mesh import START_SECONDS, Mesh, connect_mesh
from galley.engine.read_model import read_model
from galley.errors import DamagedWeights, GalleyError, ModelError, SettingsError
from galley.graph.adapters import with_adapters
from galley.graph.divide import Divided, divide
from galley.links.access import read_access
from galley.machine import available_memory, bytes_text
from galley.ops.batch import Batch
from galley.ops.choice import choose_executor
from galley.ops.communicator import (
    Communicator,
    RankLost,
    communicator,
    mapped_memory,
)
from galley.ops.executor import (
    BlockAccess,
    Executor,
    ExecutorOptions,
    FollowingExecutor,
    Submitted,
    WeightChecking,
)
from galley.ops.sampling import SamplingBatch

_NOTHING: Final = SamplingBatch()


@dataclass(frozen=True)
class Group:
    """How a rank exchanges rows with the others.

    Attributes:
        shared: its communicator.
        mesh: the connections to ranks on other machines; None: there are none.
        meeting: see :class:`galley.ops.executor.ExecutorOptions`.
    """

    shared: Communicator
    mesh: Mesh | None = None
    meeting: int = -1


def serve_rank(connection: socket.socket, memory: int, meeting: int) -> None:
    """Load a part of the model and compute steps, until the connection closes or a rank fails.

    Args:
        connection: the connection to rank 0.
        memory: the descriptor of the shared memory.
        meeting: see :class:`galley.ops.executor.ExecutorOptions`.
    """
    channel = Channel(connection)
    begin = channel.receive_at_rank()
    if begin is None:
        return
    assert isinstance(begin, Begin)
    mapped = mapped_memory(memory, begin.ranks, begin.slot_bytes)
    serve_group(channel, begin, lambda: group_of(begin, mapped, meeting))


def group_of(begin: Begin, memory: npt.NDArray[np.uint8], meeting: int) -> Group:
    """Return the group of a rank of rank 0's machine.

    Raises:
        SettingsError, EngineFailed: a rank on another machine cannot be reached.
    """
    shared = communicator(memory, begin.rank, begin.ranks, begin.slot_bytes)
    if not begin.elsewhere:
        return Group(shared, meeting=meeting)
    deadline = time.monotonic() + START_SECONDS
    access = read_access(begin.settings)
    links = connect_mesh(begin.session, begin.rank, begin.elsewhere, access, deadline)
    return Group(shared, Mesh(memory, shared, begin.slot_bytes, links))


def serve_group(
    channel: Channel,
    begin: Begin,
    meet: Callable[[], Group],
    contents: Callable[[], bytes] | None = None,
) -> None:
    """Load a part of the model and compute steps, until the connection closes or a rank fails.

    Args:
        channel: the connection to rank 0.
        begin: the first frame.
        meet: connects with the other ranks.
        contents: returns a digest of the checkpoint's files, of a rank on a different machine from rank 0,
            which knows neither these files nor the free memory there.
    """
    group: Group | None = None

    def fail(kind: ErrorKind, message: str) -> None:
        _fail(channel, None if group is None else group.shared, Failed(kind, message))

    try:
        group = meet()
        run_on(begin.cpus)
        executor = load(begin, group)
        gc.freeze()
        serve(channel, executor, group.shared, contents)
    except GalleyError as error:
        fail(kind_of(error), str(error))
    except RankLost:
        pass  # another rank has said why
    except BaseException as error:
        traceback.print_exc()
        fail("engine", f"{type(error).__name__}: {error}")
    finally:
        channel.close()
        if group is not None and group.mesh is not None:
            group.mesh.close()


def _fail(channel: Channel, shared: Communicator | None, reason: Failed) -> None:
    with suppress(OSError):
        channel.send(reason)
    if shared is not None:
        shared.fail()


def kind_of(error: GalleyError) -> ErrorKind:
    """Return the kind of an error, by which rank 0 raises it again."""
    if isinstance(error, DamagedWeights):
        return "damaged"
    if isinstance(error, ModelError):
        return "model"
    return "settings" if isinstance(error, SettingsError) else "engine"


def load(begin: Begin, group: Group) -> Executor:
    """Load the part of a rank, of which only its rows are read.

    Raises:
        ModelError, SettingsError: as for the whole model.
    """
    settings = begin.settings
    name, factory = choose_executor(settings.executor, settings.device)
    model = read_model(settings, Path(begin.folder), name)
    program, options = model.program, model.options
    if settings.adapter_slots:
        program = with_adapters(program)
        options = dataclasses.replace(
            options, adapters=settings.adapter_slots, adapter_rank=settings.adapter_rank
        )
    part = divide(program, begin.rank, begin.ranks)
    if digest(part) != begin.ops:
        raise ModelError(f"{begin.folder} changed while it was being loaded; start again")
    options = dataclasses.replace(options, meeting=group.meeting)
    options = options_of(part, options, group.shared, begin.expert_cache_bytes)
    return factory(part.program, part.weights(model.weights), options)


def options_of(
    part: Divided,
    options: ExecutorOptions,
    shared: Communicator | None,
    expert_cache_bytes: int,
) -> ExecutorOptions:
    """Return the options of a rank's executor, from those of the whole model's."""
    return dataclasses.replace(
        options,
        rank=part.rank,
        ranks=part.ranks,
        communicator=shared,
        kinds=part.kinds(options.kinds),
        expert_cache_bytes=expert_cache_bytes,
    )


def digest(part: Divided) -> str:
    """Return a digest of the ops of a rank."""
    return hashlib.blake2b(repr(part.program.ops).encode(), digest_size=16).hexdigest()


def serve(
    channel: Channel,
    executor: Executor,
    shared: Communicator,
    contents: Callable[[], bytes] | None = None,
) -> None:
    """Say that the rank is loaded, and compute steps until rank 0 closes the connection.

    ``contents``: see :func:`serve_group`.

    Raises:
        RankLost: another rank has failed.
        DamagedWeights: the packed weights differ from those written to disk.
        ModelError: a file of the checkpoint cannot be read.
        SettingsError: the rank is on a machine of its own, which has too little memory for the KV blocks.
    """
    channel.send(_loaded(executor, b"" if contents is None else contents()))
    inbox: queue.SimpleQueue[ToRank | None] = queue.SimpleQueue()
    wanted: queue.SimpleQueue[PackAdapter | ReadBlock | None] = queue.SimpleQueue()
    packed: dict[int, object] = {}

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            traceback.print_exc()
            _fail(channel, shared, Failed("engine", f"{type(error).__name__}: {error}"))
            inbox.put(None)

    def read() -> None:
        guarded(lambda: _read(channel, inbox, wanted, executor))
        # Rank 0 is gone, or this rank has failed: both end waits in a step.
        shared.fail()
        inbox.put(None)
        wanted.put(None)

    def answer() -> None:
        guarded(lambda: _answer(channel, wanted, executor, packed))

    for target in (read, answer):
        threading.Thread(target=target, daemon=True).start()
    steps = _Steps(executor)
    while (frame := inbox.get()) is not None:
        if isinstance(frame, RunStep):
            steps.run(batch_of(frame))
        elif isinstance(frame, Allocate):
            _allocate(channel, executor, frame, alone=contents is not None)
        elif isinstance(frame, SetAdapter):
            steps.finish()
            for number in frame.dropped:
                packed.pop(number, None)
            executor.set_adapter(frame.slot, None if frame.number is None else packed[frame.number])
        elif isinstance(frame, CheckWeights) and isinstance(executor, WeightChecking):
            executor.check_weights()


def _loaded(executor: Executor, contents: bytes) -> Loaded:
    return Loaded(
        executor.kv_bytes_per_block(),
        _block_sizes(executor),
        executor.bytes_per_state(),
        executor.step_costs(),
        getattr(executor, "isa", ""),
        contents,
    )


class _Steps:
    """Computes steps. On a device, the next one is submitted before the last one has ended."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._most_left = 1 if isinstance(executor, FollowingExecutor) else 0
        self._running: list[Submitted] = []

    def run(self, batch: Batch) -> None:
        """Submit a step, and wait as far as needed. Raises RankLost: another rank has failed."""
        self._running.append(self._executor.submit(batch, _NOTHING))
        self.finish(self._most_left)

    def finish(self, most_left: int = 0) -> None:
        """Wait until at most ``most_left`` steps run. Raises RankLost: another rank has failed."""
        while len(self._running) > most_left:
            self._executor.collect(self._running.pop(0))


def _block_sizes(executor: Executor) -> tuple[int, ...]:
    """Return the bytes of a block in each KV group; none if the executor's blocks cannot be read."""
    if not isinstance(executor, BlockAccess):
        return ()
    return tuple(map(executor.block_bytes, range(executor.kv_groups)))


def _allocate(channel: Channel, executor: Executor, wanted: Allocate, *, alone: bool) -> None:
    """Allocate KV blocks and states. Raises SettingsError: see :func:`serve`."""
    needed = wanted.blocks * executor.kv_bytes_per_block()
    needed += wanted.states * executor.bytes_per_state()
    if alone and needed > (free := available_memory()):
        raise SettingsError(
            f"keys, values and states need {bytes_text(needed)}, but this rank's machine has "
            f"{bytes_text(free)} left; the engine's machine decided how many there are: set "
            "kv_cache_tokens to a smaller number"
        )
    executor.allocate_kv(wanted.blocks, wanted.states)
    channel.send(Allocated())


def _pack(executor: Executor, frame: PackAdapter, packed: dict[int, object]) -> Packed:
    try:
        packed[frame.number] = executor.pack_adapter(adapter_of(frame))
    except GalleyError as error:
        return Packed(str(error))
    return Packed()


def _read(
    channel: Channel,
    inbox: "queue.SimpleQueue[ToRank | None]",
    wanted: "queue.SimpleQueue[PackAdapter | ReadBlock | None]",
    executor: Executor,
) -> None:
    """Read frames for the other threads, and restore blocks, which the next step may read."""
    while (frame := channel.receive_at_rank()) is not None:
        if isinstance(frame, PackAdapter | ReadBlock):
            wanted.put(frame)
        elif isinstance(frame, WriteBlock):
            assert isinstance(executor, BlockAccess)
            executor.write_block(frame.block, frame.group, np.frombuffer(frame.data, np.uint8))
        else:
            inbox.put(frame)


def _answer(
    channel: Channel,
    wanted: "queue.SimpleQueue[PackAdapter | ReadBlock | None]",
    executor: Executor,
    packed: dict[int, object],
) -> None:
    """Pack adapters and send blocks, in the order of the frames."""
    while (frame := wanted.get()) is not None:
        if isinstance(frame, PackAdapter):
            answer: FromRank = _pack(executor, frame, packed)
        else:
            assert isinstance(executor, BlockAccess)
            answer = Block(executor.read_block(frame.block, frame.group).tobytes())
        with suppress(OSError):  # rank 0 is gone, which the reader notices
            channel.send(answer)

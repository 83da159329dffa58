"""Messages between rank 0 and the other ranks, as msgpack over Unix socket pairs or sealed connections.

Rank 0 sends; steps are not answered, since all ranks meet in the exchanges of their programs.
"""

import itertools
import socket
import struct
import threading
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Literal, Protocol, TypeAlias

import msgspec
import numpy as np

from galley.formats.adapter import AdapterWeights, LowRank
from galley.formats.weights import DenseWeight, WeightType
from galley.ops.batch import Batch, Integers, Table, join_tables
from galley.settings.engine import EngineSettings
from galley.types.model_info import StepCosts

_HEADER: Final = struct.Struct("<Q")
ErrorKind: TypeAlias = Literal["model", "settings", "damaged", "engine"]


class Begin(msgspec.Struct, tag="begin", frozen=True):
    """Load a part of the model.

    Attributes:
        settings, folder: those of the engine.
        rank, ranks: the receiver's number, and how many there are.
        slot_bytes: bytes of a slot of the shared memory.
        cpus: CPUs to run on; empty: all.
        expert_cache_bytes: memory for experts on disk.
        ops: digest of the rank's ops, which must be what rank 0 expects.
        session: identifies the group of ranks to those on other machines.
        elsewhere: rank on another machine -> host and port at which it is reached.
        samples: digest of samples of the checkpoint's files, which a rank on another machine compares
            with its own.
    """

    settings: EngineSettings
    folder: str
    rank: int
    ranks: int
    slot_bytes: int
    cpus: tuple[int, ...]
    expert_cache_bytes: int
    ops: str
    session: bytes = b""
    elsewhere: dict[int, tuple[str, int]] = {}
    samples: bytes = b""


class Allocate(msgspec.Struct, tag="allocate", frozen=True):
    """Allocate KV blocks and states."""

    blocks: int
    states: int


class Allocated(msgspec.Struct, tag="allocated", frozen=True):
    """The answer to :class:`Allocate`."""


class RunStep(msgspec.Struct, tag="step", frozen=True):
    """Compute a step. Arrays are 64-bit integers; tables are concatenated, with their starts."""

    tokens: bytes
    positions: bytes
    starts: bytes
    tables: tuple[bytes, bytes]
    wanted: bytes
    adapters: bytes | None
    copies: list[tuple[int, int]]
    types: bytes | None
    states: tuple[bytes, bytes] | None


class Factor(msgspec.Struct, frozen=True):
    """One matrix of a LoRA adapter."""

    dtype: WeightType
    shape: tuple[int, int]
    data: bytes


class PackAdapter(msgspec.Struct, tag="pack_adapter", frozen=True):
    """Pack the rank's part of an adapter: name of a matrix -> a, b and scale."""

    number: int
    factors: dict[str, tuple[Factor, Factor, float]]


class SetAdapter(msgspec.Struct, tag="set_adapter", frozen=True):
    """Put a packed adapter into a slot, or free it; ``dropped`` are packed adapters no longer needed."""

    slot: int
    number: int | None
    dropped: list[int]


class ReadBlock(msgspec.Struct, tag="read_block", frozen=True):
    """Answer with the rank's keys and values of a block."""

    block: int
    group: int


class WriteBlock(msgspec.Struct, tag="write_block", frozen=True):
    """Restore the rank's keys and values of a block."""

    block: int
    group: int
    data: bytes


class CheckWeights(msgspec.Struct, tag="check_weights", frozen=True):
    """Check the rank's packed weights: logits were NaN, and only rank 0 has them."""


class Loaded(msgspec.Struct, tag="loaded", frozen=True):
    """The rank has loaded its part.

    ``contents``: digest of the checkpoint's files, from a rank on another machine.
    """

    kv_bytes_per_block: int
    block_bytes: tuple[int, ...]
    bytes_per_state: int
    costs: StepCosts
    isa: str = ""
    contents: bytes = b""


class Block(msgspec.Struct, tag="block", frozen=True):
    """The answer to :class:`ReadBlock`."""

    data: bytes


class Packed(msgspec.Struct, tag="packed", frozen=True):
    """The answer to :class:`PackAdapter`; ``error`` says why the adapter cannot be used."""

    error: str | None = None


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The rank ends because of an error."""

    kind: ErrorKind
    message: str


ToRank: TypeAlias = (
    Begin | Allocate | RunStep | PackAdapter | SetAdapter | ReadBlock | WriteBlock | CheckWeights
)
FromRank: TypeAlias = Loaded | Allocated | Block | Packed | Failed

_ENCODER: Final = msgspec.msgpack.Encoder()
_TO_RANK: Final = msgspec.msgpack.Decoder[ToRank](ToRank)
_FROM_RANK: Final = msgspec.msgpack.Decoder[FromRank](FromRank)


class Stream(Protocol):
    """What a connection has: a stream socket, or :class:`galley.links.duplex.SealedStream`."""

    def makefile(self, mode: Literal["rb"], /) -> "Reader":
        """Return what reads from the stream."""

    def sendall(self, data: bytes, /) -> None:
        """Send bytes."""

    def shutdown(self, how: int, /) -> None:
        """End the stream in both directions."""

    def close(self) -> None:
        """Close the stream."""


class Reader(Protocol):
    """What reads from a stream."""

    def read(self, count: int, /) -> bytes:
        """Return this many bytes, or fewer at the end."""


class Channel:
    """One end of a connection; threads may send at the same time, and one may receive."""

    def __init__(self, connection: Stream) -> None:
        self._socket = connection
        self._file = connection.makefile("rb")
        self._sending = threading.Lock()

    def send(self, frame: ToRank | FromRank) -> None:
        """Send a frame. Raises OSError if the other end has closed."""
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Send a frame that :func:`encode` made."""
        with self._sending:  # the frames of two threads must not mix
            self._socket.sendall(data)

    def receive_at_rank(self) -> ToRank | None:
        """Return the next frame of rank 0; None at the end."""
        body = self._receive()
        return None if body is None else _TO_RANK.decode(body)

    def receive_from_rank(self) -> FromRank | None:
        """Return the next frame of a rank; None at the end."""
        body = self._receive()
        return None if body is None else _FROM_RANK.decode(body)

    def _receive(self) -> bytes | None:
        try:
            header = self._file.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            (length,) = _HEADER.unpack(header)
            body = self._file.read(length)
        except OSError:
            return None
        return body if len(body) == length else None

    def close(self) -> None:
        """Close this end; the other one then receives None."""
        with suppress(OSError):  # the other end has closed already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def encode(frame: ToRank | FromRank) -> bytes:
    """Return a frame with its length before it."""
    body = _ENCODER.encode(frame)
    return _HEADER.pack(len(body)) + body


def step_of(batch: Batch) -> RunStep:
    """Return a batch as a frame. It has neither encoder inputs nor sequences to align."""
    assert batch.encode is None
    assert batch.align is None
    assert batch.cross is None
    return RunStep(
        tokens=_bytes(batch.tokens),
        positions=_bytes(batch.positions),
        starts=_bytes(batch.starts),
        tables=_joined(batch.tables),
        wanted=_bytes(batch.wanted),
        adapters=None if batch.adapters is None else _bytes(batch.adapters),
        copies=list(batch.copies),
        types=None if batch.types is None else _bytes(batch.types),
        states=None if batch.states is None else _joined(batch.states),
    )


def batch_of(step: RunStep) -> Batch:
    """Return the batch of a frame."""
    return Batch(
        tokens=_integers(step.tokens),
        positions=_integers(step.positions),
        starts=_integers(step.starts),
        tables=_split(step.tables),
        wanted=_integers(step.wanted),
        adapters=None if step.adapters is None else _integers(step.adapters),
        copies=step.copies,
        types=None if step.types is None else _integers(step.types),
        states=None if step.states is None else _split(step.states),
    )


def adapter_frame(number: int, adapter: AdapterWeights) -> PackAdapter:
    """Return an adapter as a frame."""

    def factor(weight: DenseWeight) -> Factor:
        return Factor(weight.dtype, (weight.shape[0], weight.shape[1]), weight.data.tobytes())

    return PackAdapter(
        number, {n: (factor(one.a), factor(one.b), one.scale) for n, one in adapter.items()}
    )


def adapter_of(frame: PackAdapter) -> AdapterWeights:
    """Return the adapter of a frame."""

    def weight(name: str, factor: Factor) -> DenseWeight:
        return DenseWeight(name, factor.dtype, factor.shape, np.frombuffer(factor.data, np.uint8))

    return {n: LowRank(weight(n, a), weight(n, b), s) for n, (a, b, s) in frame.factors.items()}


def _bytes(values: Integers) -> bytes:
    if isinstance(values, np.ndarray):
        values = np.ascontiguousarray(values, dtype=np.int64)
    return values.tobytes()


def _integers(data: bytes) -> "array[int]":
    values = array("q")
    values.frombytes(data)
    return values


def _joined(tables: Sequence[Table]) -> tuple[bytes, bytes]:
    values, starts = join_tables(tables)
    return values.tobytes(), starts.tobytes()


def _split(tables: tuple[bytes, bytes]) -> tuple[Table, ...]:
    values, starts = map(_integers, tables)
    return tuple(values[a:b] for a, b in itertools.pairwise(starts))

"""The messages between the server's process and the engine's, as msgpack over a Unix socket pair.

Each frame is a 4-byte little-endian length followed by that many bytes. Both sides run the same code, so
there is no version negotiation; a frame that does not decode is a bug and ends the engine process.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from galley.settings.engine import EngineSettings
from galley.types import Adapter, EngineRequest, Output, Tensors
from galley.types.audio import Alignment
from galley.types.block_hashes import BlockContent
from galley.types.engine_stats import EngineStats
from galley.types.model_info import Ledger, ModelInfo
from galley.types.transfers import TransferPlan

MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
HEADER: Final = struct.Struct("<I")

_FRAME_DATA: Final = 64 << 10
"""Bytes of data after which further outputs of a step are in another frame."""


class Start(msgspec.Struct, tag="start", frozen=True):
    """The first frame, with the model to load.

    Attributes:
        spawned_at: when the process was started, on the monotonic clock that both processes share.
        promised: bytes of memory that other engines of the server have yet to allocate.
        publishes: whether the engine sends :class:`Blocks`.
        publishes_tokens: whether these have the tokens of blocks.
        transfer: how the engine exchanges keys and values with others; None: it does not.
    """

    settings: EngineSettings
    folder: str
    spawned_at: float
    promised: int = 0
    publishes: bool = False
    publishes_tokens: bool = False
    transfer: TransferPlan | None = None


class Submit(msgspec.Struct, tag="submit", frozen=True):
    """Start or continue one sequence.

    ``places``: where its inputs are that are not in the frame, see :mod:`galley.service.shared_tensors`.
    """

    request: EngineRequest
    places: tuple[tuple[int, int], ...] = ()


class Abort(msgspec.Struct, tag="abort", frozen=True):
    """Drop these requests within one step and send no further Output for them, finished or not."""

    request_ids: list[str]


class LoadAdapter(msgspec.Struct, tag="load_adapter", frozen=True):
    """Read and check a LoRA adapter; the engine replies with an AdapterLoaded."""

    adapter: Adapter


class UnloadAdapter(msgspec.Struct, tag="unload_adapter", frozen=True):
    """Free the adapter after the last request that uses it."""

    adapter: Adapter


class AdapterLoaded(msgspec.Struct, tag="adapter_loaded", frozen=True):
    """The adapter with that digest is loaded and requests may name it, or ``error`` states why not."""

    digest: str
    error: str | None = None


class Phase(msgspec.Struct, tag="phase", frozen=True):
    """A start-up phase has ended, after ``seconds``."""

    name: str
    seconds: float


class Planned(msgspec.Struct, tag="planned", frozen=True):
    """The memory plan of the model, sent before its weights are loaded."""

    ledger: Ledger


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine accepts requests from now on.

    Attributes:
        info: the description of the model.
        stats: the statistics before the first step.
        seats: sequences that run at the same time.
        contents: digest of the checkpoint's files, from a replica elsewhere.
        release: the release that a replica elsewhere serves; empty: it has no name for it.
        stores: whether files for the next start are still being written, such as packed weights.
    """

    info: ModelInfo
    stats: EngineStats
    seats: int = 0
    contents: str = ""
    release: str = ""
    stores: bool = False


class Leaving(msgspec.Struct, tag="leaving", frozen=True):
    """A replica elsewhere is about to end: its requests are to be continued by others."""


class Released(msgspec.Struct, tag="released", frozen=True):
    """A replica elsewhere that is about to end may do so: others continue its requests.

    Until then, they may fetch the blocks of these from it.
    """


class StartFailed(msgspec.Struct, tag="start_failed", frozen=True):
    """The engine cannot start, and trying again will not help."""

    kind: Literal["model", "settings", "memory", "engine"]
    message: str


class Alive(msgspec.Struct, tag="alive", frozen=True):
    """A sign of life during a long step, which has taken ``step_seconds`` so far.

    ``stores``: see :class:`Ready`.
    """

    step_seconds: float
    stores: bool = False


class Step(msgspec.Struct, tag="step", frozen=True):
    """Outputs of one engine step; see :func:`steps_of`.

    ``frames_seen`` counts the frames that the engine had read before the step.
    """

    outputs: list[Output]
    stats: EngineStats
    frames_seen: int


class Blocks(msgspec.Struct, tag="blocks", frozen=True):
    """Changes of what the prefix cache holds, as keys of blocks; ``removed`` applies first.

    ``contents``: of stored blocks, if asked for (:class:`Start`) and known.
    """

    stored: list[bytes]
    removed: list[bytes]
    contents: list[BlockContent] = []


ToEngine = Start | Submit | Abort | LoadAdapter | UnloadAdapter | Released
FromEngine = Phase | Planned | Ready | StartFailed | Alive | Step | AdapterLoaded | Blocks | Leaving

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(frame: ToEngine | FromEngine) -> memoryview:
    """Return the encoded frame with its length in front, ready to be written.

    It may have megabytes of tensors, which are not copied for the length, nor when a part is written.
    """
    data = bytearray(HEADER.size)
    _encoder.encode_into(frame, data, HEADER.size)
    HEADER.pack_into(data, 0, len(data) - HEADER.size)
    return memoryview(data)


def bare(frame: ToEngine | FromEngine) -> bytes:
    """Return the encoded frame without its length."""
    return _encoder.encode(frame)


def steps_of(outputs: Sequence[Output], stats: EngineStats, frames_seen: int) -> Iterator[Step]:
    """Yield the frames of a step: one, or more if its outputs have a lot of data.

    The last one is needed even without outputs, for the statistics.
    """
    together: list[Output] = []
    size = 0
    for output in outputs:
        together.append(output)
        size += _data_bytes(output)
        if size > _FRAME_DATA:
            yield Step(together, stats, frames_seen)
            together, size = [], 0
    yield Step(together, stats, frames_seen)


def _data_bytes(output: Output) -> int:
    """Return the bytes of an output's tensors or of its alignment's weights."""
    result = output.result
    if isinstance(result, Tensors):
        return sum(len(one.data) for one in result.outputs)
    return len(result.data) if isinstance(result, Alignment) else 0


def decode_to_engine(body: bytes | memoryview) -> ToEngine:
    """Decode a frame for the engine.

    Raises:
        msgspec.DecodeError: :func:`encode` did not write it.
    """
    return _to_engine.decode(body)


def decode_from_engine(body: bytes | memoryview) -> FromEngine:
    """Decode a frame from the engine.

    Raises:
        msgspec.DecodeError: :func:`encode` did not write it.
    """
    return _from_engine.decode(body)

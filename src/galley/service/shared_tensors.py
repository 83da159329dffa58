"""Memory that the server shares with an engine's process, for inputs that are too large for frames.

The server decides which bytes are used. A request's inputs stay until the engine has answered it, or has
read that it was aborted: by then the engine has finished with them.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

import msgspec

from galley.types import EngineRequest, Predict, Tensor

Place: TypeAlias = tuple[int, int]
"""Where the data of an input is: its first byte in the memory, and its length."""

LEAST_BYTES: Final = 64 << 10
"""Inputs with fewer bytes are copied into a frame sooner than they are placed."""

_SIZE: Final = 256 << 20
"""Addresses, not memory: that is provided as far as it is needed."""

_KEPT: Final = 64 << 20
"""Bytes at the beginning that remain provided while nothing is in use."""

_ALIGNMENT: Final = 64


class _Lent(NamedTuple):
    """Bytes that the engine may read.

    Attributes:
        begin, end: the bytes.
        request_id: the request whose inputs they are; empty once it was aborted.
        frame: number of the frame that lent them, or that aborted the request.
    """

    begin: int
    end: int
    request_id: str
    frame: int


class SharedTensors:
    """The server's side of the memory that it shares with one engine. For use in one event loop."""

    def __init__(self, file: int) -> None:
        """Use the memory behind a descriptor of :func:`new_shared_tensors`, and close it at the end."""
        self._file = file
        self._map: mmap.mmap | None = None
        self._lent: list[_Lent] = []  # in the order of their places
        self._provided = 0
        """Bytes at the beginning for which the system has provided memory."""

    def place(self, request: EngineRequest, frame: int) -> tuple[EngineRequest, tuple[Place, ...]]:
        """Move a request's inputs into the memory, if they are large, there is room, and memory is left.

        Args:
            request: the request.
            frame: number of the frame with which it is sent.

        Returns:
            The request as it is sent, and where its inputs are; no places: it has them itself.
        """
        payload = request.payload
        if not isinstance(payload, Predict):
            return request, ()
        sizes = [len(one.data) for one in payload.inputs]
        whole = sum(map(_aligned, sizes))
        begin = self._room(whole) if sum(sizes) >= LEAST_BYTES else None
        memory = None if begin is None else self._memory()
        if begin is None or memory is None or not self._provide(begin + whole):
            return request, ()
        places: list[Place] = []
        end = begin
        for one, size in zip(payload.inputs, sizes, strict=True):
            memory[end : end + size] = one.data
            places.append((end, size))
            end += _aligned(size)
        self._lent.append(_Lent(begin, end, request.id, frame))
        self._lent.sort()
        bare = tuple(msgspec.structs.replace(one, data=b"") for one in payload.inputs)
        payload = msgspec.structs.replace(payload, inputs=bare)
        return msgspec.structs.replace(request, payload=payload), tuple(places)

    @property
    def is_lent(self) -> bool:
        """Whether the engine may read some of it."""
        return bool(self._lent)

    def aborted(self, request_ids: Sequence[str], frame: int) -> None:
        """Record that the engine is told, by a frame with this number, to drop requests."""
        self._lent = [
            one._replace(request_id="", frame=frame) if one.request_id in request_ids else one
            for one in self._lent
        ]

    def seen(self, frames_seen: int, answered: Sequence[str]) -> None:
        """Reuse what the engine has finished with.

        Args:
            frames_seen: how many frames it had read before its latest step.
            answered: ids of requests that it has answered.
        """
        self._lent = [
            one
            for one in self._lent
            # An answer may be an earlier request's with the same id.
            if one.frame > frames_seen or (one.request_id and one.request_id not in answered)
        ]
        if not self._lent and self._provided > _KEPT and self._map is not None:
            with suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, _KEPT, _SIZE - _KEPT)
                self._provided = _KEPT

    def close(self) -> None:
        """Unmap the memory, and close its descriptor."""
        if self._map is not None:
            self._map.close()
        os.close(self._file)

    def _room(self, size: int) -> int | None:
        """Return the first byte of the first gap of a size; None: there is none."""
        begin = 0
        for one in self._lent:
            if one.begin - begin >= size:
                break
            begin = one.end
        return begin if begin + size <= _SIZE else None

    def _provide(self, end: int) -> bool:
        """Have the system provide the bytes before ``end``; return whether it could.

        Without that, writing to a page for which no memory is left (strict overcommit, a full file system)
        would end the process with SIGBUS.
        """
        if end > self._provided:
            try:
                os.posix_fallocate(self._file, self._provided, end - self._provided)
            except OSError:
                return False
            self._provided = end
        return True

    def _memory(self) -> mmap.mmap | None:
        """Return the memory; None if there are no addresses left for it."""
        if self._map is None:
            with suppress(OSError):
                self._map = mmap.mmap(self._file, _SIZE)
        return self._map


class PlacedTensors:
    """The engine's side: reads inputs where the server has put them."""

    def __init__(self, file: int) -> None:
        """Read the memory behind an inherited descriptor."""
        self._file = file
        self._view: memoryview | None = None

    def restore(self, request: EngineRequest, places: Sequence[Place]) -> EngineRequest:
        """Return a request with its inputs, whose data is read-only and valid until it is answered.

        Raises:
            MemoryError: there are no addresses left for the memory.
        """
        payload = request.payload
        assert isinstance(payload, Predict)
        if self._view is None:
            try:
                self._view = memoryview(mmap.mmap(self._file, _SIZE, access=mmap.ACCESS_READ))
            except OSError as error:
                raise MemoryError(
                    f"no {_SIZE} addresses are left for inputs: raise ulimit -v"
                ) from error
        inputs = tuple(
            Tensor(
                name=one.name,
                datatype=one.datatype,
                shape=one.shape,
                data=self._view[begin : begin + size],
            )
            for one, (begin, size) in zip(payload.inputs, places, strict=True)
        )
        payload = msgspec.structs.replace(payload, inputs=inputs)
        return msgspec.structs.replace(request, payload=payload)


def new_shared_tensors() -> int | None:
    """Return a descriptor of memory to share.

    None where the system has no such memory, or the size of files is limited (``ulimit -f``).
    """
    try:
        file = os.memfd_create("galley-tensors")
    except (AttributeError, OSError):
        return None
    try:
        os.ftruncate(file, _SIZE)
    except OSError:
        os.close(file)
        return None
    return file


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT

"""One engine process and the socket to it, seen from the server's event loop."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from galley.errors import EngineFailed, ModelError, NotEnoughMemory, SettingsError
from galley.service.frame_reader import FrameReader
from galley.service.frames import (
    HEADER,
    Abort,
    FromEngine,
    Start,
    StartFailed,
    Step,
    Submit,
    ToEngine,
    decode_from_engine,
    encode,
)
from galley.service.shared_tensors import SharedTensors
from galley.service.spawn import Spawned
from galley.settings.engine import EngineSettings
from galley.types.transfers import TransferPlan

_TOGETHER_BYTES: Final = 64 << 10
"""Bytes of frames that are written together; copying more costs more than another system call."""

_ERRORS = {
    "model": ModelError,
    "settings": SettingsError,
    "memory": NotEnoughMemory,
    "engine": EngineFailed,
}


class EngineProcess:
    """The owner of an engine's child process, which cannot outlive this object's socket."""

    def __init__(
        self,
        child: "subprocess.Popen[bytes]",
        reader: FrameReader,
        transport: asyncio.Transport,
        memory: SharedTensors | None = None,
    ) -> None:
        self._child = child
        self._reader = reader
        self._transport = transport
        self._memory = memory
        self.frames_sent = -1  # the Start frame does not count
        self._unsent = bytearray()
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def start(
        cls,
        spawned: Spawned,
        settings: EngineSettings,
        folder: str,
        promised: int = 0,
        *,
        publishes: bool = False,
        publishes_tokens: bool = False,
        transfer: TransferPlan | None = None,
    ) -> "EngineProcess":
        """Have the process load ``folder``; its first frames report the progress.

        ``promised`` and so on: see :class:`galley.service.frames.Start`.
        """
        try:
            loop = asyncio.get_running_loop()
            made = await loop.create_connection(FrameReader, sock=spawned.connection)
        except BaseException:
            spawned.connection.close()  # the child ends with it
            if spawned.memory is not None:
                os.close(spawned.memory)
            await asyncio.to_thread(spawned.child.wait)
            raise
        memory = None if spawned.memory is None else SharedTensors(spawned.memory)
        transport, reader = made
        process = cls(spawned.child, reader, transport, memory)
        at = spawned.at
        process.send(Start(settings, folder, at, promised, publishes, publishes_tokens, transfer))
        return process

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def send(self, frame: ToEngine) -> None:
        """Queue a frame. If the process is dead, the frame is dropped and :meth:`frames` ends.

        What is sent in one round of the loop is written at once: a system call that wakes the engine costs
        more than all else that the server does with a small frame, and the engine gets the requests that
        arrived together as one batch.
        """
        self.frames_sent += 1
        if self._memory is not None:
            if isinstance(frame, Submit):
                frame = Submit(*self._memory.place(frame.request, self.frames_sent))
            elif isinstance(frame, Abort):
                self._memory.aborted(frame.request_ids, self.frames_sent)
        data = encode(frame)
        if len(self._unsent) + len(data) > _TOGETHER_BYTES:
            self._write_unsent()
            self._write(data)
            return
        if not self._unsent:
            self._loop.call_soon(self._write_unsent)
        self._unsent += data

    def _write_unsent(self) -> None:
        if self._unsent:
            data, self._unsent = self._unsent, bytearray()
            self._write(data)

    def _write(self, data: bytearray | memoryview) -> None:
        with suppress(ConnectionError, RuntimeError):
            self._transport.write(data)

    async def frames(self) -> AsyncIterator[list[FromEngine]]:
        """Yield the frames until the process closes its end, each time all that have arrived.

        Raises:
            ModelError, SettingsError, EngineFailed: the engine reports that it cannot start.
        """
        while await self._reader.more():
            frames = taken_from(self._reader.received)
            if self._memory is not None and self._memory.is_lent:
                _reuse(self._memory, frames)
            yield frames

    def kill(self) -> None:
        """Kill a process that hangs; :meth:`frames` then ends."""
        self._child.kill()

    async def close(self) -> int:
        """Close the connection, kill the process if it does not exit, and return its exit status."""
        self._write_unsent()
        self._transport.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        try:
            return await asyncio.to_thread(self._child.wait, 2.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return await asyncio.to_thread(self._child.wait)


def _reuse(memory: SharedTensors, frames: Sequence[FromEngine]) -> None:
    """Take back the memory that the engine has finished with, according to its frames."""
    for frame in frames:
        if isinstance(frame, Step):
            answered = [one.request_id for one in frame.outputs if one.finish_reason]
            memory.seen(frame.frames_seen, answered)


def taken_from(received: bytearray) -> list[FromEngine]:
    """Remove the complete frames from the front of ``received`` and return them."""
    frames: list[FromEngine] = []
    start = 0
    while start + HEADER.size <= len(received):
        (length,) = HEADER.unpack_from(received, start)
        end = start + HEADER.size + length
        if end > len(received):
            break
        frame = decode_from_engine(memoryview(received)[start + HEADER.size : end])
        if isinstance(frame, StartFailed):
            raise _ERRORS[frame.kind](frame.message)
        frames.append(frame)
        start = end
    del received[:start]
    return frames

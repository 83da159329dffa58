"""Decodes recordings in a separate process, within a budget; see :mod:`galley.speech.decode_worker`."""

import logging
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Protocol, Self

import numpy as np

from galley.errors import (
    AudioError,
    AudioTooLong,
    EngineError,
    EngineNotReady,
    QueueFull,
    RequestError,
)
from galley.service.spawn import Spawned, spawn_decoder
from galley.speech.decode_frames import (
    Answer,
    Block,
    Decode,
    Died,
    Done,
    Opened,
    OutOfMemory,
    Refused,
    receive_answer,
    send,
)
from galley.speech.features import SAMPLE_RATE
from galley.speech.open_files import open_file
from galley.speech.sources import TWO, RawPcm, Samples, Source

log = logging.getLogger("galley.speech")

SECONDS: Final = 10.0
"""Default budget of CPU time, in seconds."""
BYTES: Final = 256 * 1024 * 1024
"""Default budget of memory, in bytes."""
_HANG_SECONDS: Final = 120.0
"""Seconds without output after which a decoder counts as stopped."""
MOST: Final = 64
"""Default maximum of concurrent recordings; each one can use its whole memory budget."""


class Audio(Protocol):
    """The interface that transcription needs from a recording."""

    @property
    def duration(self) -> float | None:
        """The duration in seconds that the recording states."""

    @property
    def warnings(self) -> list[str]:
        """Faults of the recording, as far as it was read."""

    @property
    def seconds(self) -> float:
        """Seconds of audio decoded so far."""

    def __iter__(self) -> Iterator[Samples]:
        """Yield blocks of at most a few seconds, mono float32 ``[samples]`` at 16 kHz; usable only once."""

    def close(self) -> None:
        """Free all resources. Idempotent."""


class Decoder:
    """The process in which recordings are decoded, each in its own fork. Thread-safe.

    It starts with the first recording or with :meth:`start`, and is restarted if it died.
    """

    def __init__(self, seconds: float = SECONDS, max_bytes: int = BYTES, most: int = MOST) -> None:
        """Set the limits; the process starts later.

        Args:
            seconds: CPU time in seconds that a recording may use before its first block, and by which it
                may fall behind later.
            max_bytes: memory in bytes that a recording may use.
            most: maximum number of open recordings.
        """
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._most = most
        self._lock = threading.RLock()  # a finalizer may run while the lock is held
        self._sending = threading.Lock()
        """Held for a whole job and the answer to it, which may take as long as the process's start."""
        self._process: Spawned | None = None
        self._silent: list[Spawned] = []
        self._open_now = 0
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The ids of running processes, without forks."""
        process = self._process
        return [process.child.pid] if process is not None and _runs(process) else []

    def start(self) -> None:
        """Start the process now, so that the first recording need not wait for it."""
        with suppress(EngineNotReady), self._lock:  # the first recording will report the error
            self._running()

    def open(
        self,
        source: Source,
        *,
        raw: RawPcm | None = None,
        normalize: bool = False,
        max_seconds: float | None = None,
        name: str = "",
        track: int | None = None,
        channel: int | None = None,
        apart: bool = False,
    ) -> "DecodedRecording":
        """Start decoding a recording; the arguments are those of :class:`galley.speech.audio.Recording`.

        Raises:
            AudioError: the recording cannot be read, or not within the budget.
            AudioTooLong: the recording is longer than ``max_seconds``.
            RequestError: there is no such track or channel.
            QueueFull: the maximum number of recordings is already open.
            EngineNotReady: the decoder process is not available.
        """
        name = name or (str(source) if isinstance(source, str | Path) else "the recording")
        name = name.encode("utf-8", "replace").decode()  # a path can be invalid UTF-8
        with self._lock:
            if self._open_now == self._most:
                raise QueueFull(
                    f"{self._most} recordings, the maximum, are being decoded", retry_after=5
                )
            self._open_now += 1
        try:
            with closing(open_file(source)) as file:
                job = Decode(
                    name=name,
                    offset=file.offset,
                    raw=raw,
                    normalize=normalize,
                    max_seconds=max_seconds,
                    track=track,
                    channel=channel,
                    apart=apart,
                    seconds=self._seconds,
                    max_bytes=self._max_bytes,
                )
                return self._opened(job, file.number)
        except BaseException:
            self._ended()
            raise

    def _ended(self) -> None:
        with self._lock:
            self._open_now -= 1

    def _opened(self, job: Decode, file: int) -> "DecodedRecording":
        try:
            return self._open(job, file)
        except _Gone:  # the process was killed, perhaps while it was idle
            with suppress(_Gone):
                return self._open(job, file)
        raise EngineNotReady("The audio decoder was killed twice", retry_after=1)

    def _open(self, job: Decode, file: int) -> "DecodedRecording":
        with self._lock:
            process = self._running()
        answers, answering = socket.socketpair()
        reports, reporting = socket.socketpair()
        try:
            with answering, reporting:
                self._hand_over(process, job, [file, answering.fileno(), reporting.fileno()])
            return DecodedRecording(job, answers, reports, self._ended)
        except BaseException as error:
            if isinstance(error, _Gone):
                with self._lock:
                    self._replace(process)
            answers.close()
            reports.close()
            raise

    def _hand_over(self, process: Spawned, job: Decode, descriptors: list[int]) -> None:
        """Send a job and wait until the process has received its descriptors.

        Raises:
            _Gone: the process has ended, or hangs.
        """
        try:
            with self._sending:
                send(process.connection, job, descriptors)
                taken = process.connection.recv(1)
        except OSError as error:
            raise _Gone from error
        if not taken:
            raise _Gone

    def _running(self) -> Spawned:
        if self._closed:
            raise EngineNotReady("The audio decoder is closed", retry_after=1)
        if self._process is None or not _runs(self._process):
            try:
                self._process = spawn_decoder()
            except OSError as error:
                raise EngineNotReady(
                    f"Cannot start the audio decoder: {error.strerror}", retry_after=1
                ) from error
            self._process.connection.settimeout(_HANG_SECONDS)
        return self._process

    def _replace(self, process: Spawned) -> None:
        """Send the process no more recordings; the open ones may continue."""
        if self._process is process:
            self._process = None
            self._disconnect(process)
            self._silent = [other for other in self._silent if _runs(other)]
            self._silent.append(process)

    def _disconnect(self, process: Spawned) -> None:
        with suppress(OSError):  # it may have ended
            # A thread that waits for an answer fails at once, and does not hold the lock any longer.
            process.connection.shutdown(socket.SHUT_RDWR)
        with self._sending:
            process.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process; recordings that are still being decoded fail. Idempotent."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
            ending = [*self._silent, *([] if process is None else [process])]
            self._silent = []
        for one in ending:
            self._disconnect(one)
            one.child.kill()  # it has no state to save
            one.child.wait()


class DecodedRecording:
    """One recording, decoded in a separate process while iterating; see :class:`Audio`.

    Attributes:
        channels: number of channels of the track.
        keeps_two: blocks are ``[samples, 2]``, since two channels are kept apart.
    """

    def __init__(
        self,
        job: Decode,
        answers: socket.socket,
        reports: socket.socket,
        ended: Callable[[], None],
    ) -> None:
        """Create the recording, and wait for its first answer; called by :meth:`Decoder.open`.

        Args:
            job: the recording.
            answers: the socket of its answers.
            reports: the socket on which the death of its fork is reported.
            ended: called once, on close.
        """
        self._job = job
        self._answers = answers
        self._reports = reports
        for connection in (answers, reports):
            connection.settimeout(_HANG_SECONDS)
        self._samples = 0
        self.warnings: list[str] = []
        opened = self._answer(first=True)
        assert isinstance(opened, Opened)
        self.duration = opened.duration
        self.channels = opened.channels
        self.keeps_two = job.apart and opened.channels == TWO
        self._ended = weakref.finalize(self, ended)
        self._ended.atexit = False

    @property
    def seconds(self) -> float:
        """Seconds of audio decoded so far."""
        return self._samples / SAMPLE_RATE

    def __iter__(self) -> Iterator[Samples]:
        with closing(self):
            while isinstance(answer := self._answer(), Block):
                block = np.frombuffer(answer.samples, np.float32)
                if self.keeps_two:
                    block = block.reshape(-1, TWO)
                self._samples += len(block)
                yield block
            assert isinstance(answer, Done)
            self.warnings = answer.warnings

    def close(self) -> None:
        """Close the sockets; the decoding fork ends when it notices. Idempotent."""
        self._answers.close()
        self._reports.close()
        self._ended()

    def _answer(self, *, first: bool = False) -> Answer:
        """Return the next answer; raise the exception if the answer is an error."""
        try:
            answer = receive_answer(self._answers) or receive_answer(self._reports)
        except OSError as error:
            log.warning("no answer from the audio decoder: %s", error)
            answer = None
        if answer is None:
            if first:
                raise _Gone
            raise EngineNotReady("The audio decoder was killed", retry_after=1)
        if isinstance(answer, Refused):
            raise _refusal(answer)
        if isinstance(answer, OutOfMemory):
            raise self._over_memory()
        if isinstance(answer, Died):
            raise self._death(answer, first=first)
        return answer

    def _death(self, died: Died, *, first: bool) -> Exception:
        name = self._job.name
        log.warning(
            "the audio decoder of a recording ended with signal %d, status %d",
            died.signal,
            died.code,
        )
        if died.code:
            return EngineError("The audio decoder failed; see the server's log")
        if died.signal == signal.SIGPROF:
            return AudioError(
                f"{name} takes too long to decode: more than {self._job.seconds:g} s of CPU time "
                "(audio_decode_seconds) in addition to the allowance for its length"
            )
        if died.signal == signal.SIGKILL:  # by the kernel, for lack of memory, or by an operator
            return (
                _Gone()
                if first
                else EngineNotReady(
                    "The audio decoder was killed; the server may be short of memory",
                    retry_after=1,
                )
            )
        if died.signal == signal.SIGABRT:
            return self._over_memory()
        return AudioError(
            f"{name} cannot be decoded: it crashes the decoder (signal {died.signal})"
        )

    def _over_memory(self) -> AudioError:
        return AudioError(
            f"{self._job.name} needs more than {self._job.max_bytes} bytes of memory to decode "
            "(audio_decode_bytes)"
        )


class _Gone(Exception):
    """The decoder process ended before it answered."""


def _refusal(answer: Refused) -> RequestError:
    if answer.too_long:
        return AudioTooLong(answer.message)
    if answer.param == "file":
        return AudioError(answer.message)
    return RequestError(answer.message, param=answer.param)


def _runs(process: Spawned) -> bool:
    return process.child.poll() is None

"""A lane for text work: one worker process at a time, and the queue of jobs that wait for it."""

import asyncio
import logging
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from galley.errors import EngineError, EngineNotReady, ModelError
from galley.service.frames import HEADER
from galley.service.spawn import Spawned, spawn_text
from galley.service.text_frames import (
    FromText,
    Loaded,
    OutOfMemory,
    Refused,
    TextStart,
    Unusable,
    decode_from_text,
    encode,
)
from galley.service.turns import Share, Turns

log = logging.getLogger("galley.text")

_GRACE: Final = 2.0
"""Grace period in seconds; a worker exits at the end of a job's budget unless it is stopped."""

_PATIENCE: Final = 3
"""Maximum wait of a job for its turn, in job budgets; the job before it can use a whole one."""


class Lane:
    """One worker process at a time, and the jobs that wait for it."""

    def __init__(self, name: str, start: TextStart, unchanged: Callable[[], bool]) -> None:
        """Create a lane without a worker.

        Args:
            name: the model's name.
            start: the worker's first frame.
            unchanged: returns whether the checkpoint's files are still those that are served; if they are
                not, no worker is started.
        """
        self._name = name
        self._start = start
        self._unchanged = unchanged
        self._process: _Process | None = None
        self._turns = Turns(_PATIENCE * start.seconds)
        self._closed = False

    @property
    def started(self) -> bool:
        """Whether a worker is running."""
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int | None:
        """The worker's process id, or None if no worker is running."""
        return self._process.pid if self._process is not None and self._process.alive else None

    @property
    def busy(self) -> bool:
        """Whether the worker has a job."""
        return self._turns.taken

    async def begin(self, *, with_server: bool = False) -> "_Process":
        """Start a worker if none is running, without waiting until it has loaded.

        Args:
            with_server: the server is about to load the same files, whatever they are now.

        Raises:
            EngineNotReady: no worker can be started.
        """
        if self._process is not None and not self._process.alive:
            await self._end_process()  # it died while idle, so no job is to blame
        if self._process is None:
            if not (with_server or self._unchanged()):
                raise EngineNotReady(
                    f"The files of {self._name} have changed; it must be reloaded", retry_after=5
                )
            try:
                self._process = await _Process.start(spawn_text(self._name), self._start)
            except OSError as error:
                raise EngineNotReady(
                    f"No text worker can be started: {error.strerror}", retry_after=1
                ) from error
        return self._process

    async def loaded(self) -> "_Process":
        """Return a worker that has loaded the checkpoint's tokenizer and chat template.

        Raises:
            EngineNotReady: no worker can be started.
            ModelError: the two cannot be used, or take too long or too much memory to load.
        """
        for _ in range(2):  # the first one may have been killed from outside
            process = await self.begin()
            answer = await process.loaded(self._start.load_seconds)
            if isinstance(answer, Loaded):
                return process
            code = await self._end_process()
            if isinstance(answer, Unusable):
                raise ModelError(answer.message)
            if code != -signal.SIGKILL or self._closed:
                break
        if self._closed:
            raise EngineNotReady("The server is shutting down", retry_after=1)
        raise ModelError(
            f"{self._name}: its tokenizer or chat template cannot be loaded within "
            f"{self._start.load_seconds:g} s and {self._start.load_bytes} bytes of memory"
        )

    async def run(
        self,
        frame: bytes,
        param: str,
        share: Share,
        known: Callable[[], FromText | None] = lambda: None,
    ) -> FromText:
        """Run a job and return its result.

        Args:
            frame: the job's encoded frame.
            param: the request's field that a refusal names.
            share: the tenant's share.
            known: called when the job's turn has come: returns an answer that makes the work unnecessary.

        Raises:
            QueueFull: too much text work waits already.
            EngineNotReady, ModelError, EngineError: no worker can do the job.
        """
        await self._turns.wait(len(frame), share)
        work = asyncio.create_task(self._work(frame, param, known))
        work.add_done_callback(_retrieve)
        # Finish the job even if the caller is cancelled, so that the next job does not receive its answer.
        return await asyncio.shield(work)

    async def _work(
        self, frame: bytes, param: str, known: Callable[[], FromText | None]
    ) -> FromText:
        try:
            answer = known() or await self._answer(frame, param)
        finally:
            self._turns.pass_on()
        return self._over_memory(param) if isinstance(answer, OutOfMemory) else answer

    async def _answer(self, frame: bytes, param: str) -> FromText:
        # A worker that was stopped or killed from outside is not the job's fault.
        for may_repeat in (True, False):
            if self._closed:
                break
            process = await self.loaded()
            answer = await process.ask(frame, self._start.seconds)
            if answer is not None:
                return answer
            code = await self._end_process()
            if self._closed:
                break
            log.warning(
                "a text worker of %s ended with status %d; its job was %s", self._name, code, param
            )
            if code == -signal.SIGALRM:
                return self._over_time(param)
            if code != -signal.SIGKILL and code < 0:
                break
            if code > 0 or (process.silent and not may_repeat):
                raise EngineError("The text worker failed; see the server's log")
        if self._closed:
            raise EngineNotReady("The server is shutting down", retry_after=1)
        return self._over_memory(param)

    def _over_time(self, param: str) -> Refused:
        seconds = self._start.seconds
        message = f"{param}: processing the text takes longer than {seconds:g} s (text_seconds)"
        return Refused(message, param, None, budget=True)

    def _over_memory(self, param: str) -> Refused:
        limit = self._start.max_bytes
        message = (
            f"{param}: processing the text exceeds the stack, the available memory or {limit} bytes "
            "(text_bytes)"
        )
        return Refused(message, param, None, budget=True)

    async def _end_process(self) -> int:
        """End the worker, if one is running, and return its exit status."""
        process, self._process = self._process, None
        return 0 if process is None else await process.close()

    async def close(self) -> None:
        """End the worker; a running job fails. Idempotent."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        await self._end_process()


def _retrieve(task: "asyncio.Task[FromText]") -> None:
    """Retrieve the task's error, since its caller may be gone."""
    if not task.cancelled():
        task.exception()


class _Process:
    """One worker process and the socket to it.

    Attributes:
        silent: it did not answer in time and was killed; it must have been stopped from outside.
    """

    def __init__(
        self,
        child: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer
        self._loaded: FromText | None = None
        self.silent = False

    @classmethod
    async def start(cls, spawned: Spawned, start: TextStart) -> "_Process":
        reader, writer = await asyncio.open_connection(sock=spawned.connection)
        writer.write(encode(start))
        return cls(spawned.child, reader, writer)

    async def loaded(self, seconds: float) -> FromText | None:
        """Return the worker's first frame, which reports whether it has loaded; None if it has died."""
        if self._loaded is None:
            self._loaded = await self._receive(seconds)
        return self._loaded

    async def ask(self, frame: bytes, seconds: float) -> FromText | None:
        """Return the answer to a job with a budget of ``seconds``; None if the process has died."""
        with suppress(ConnectionError):
            self._writer.write(frame)
        return await self._receive(seconds)

    async def _receive(self, seconds: float) -> FromText | None:
        try:
            async with asyncio.timeout(seconds + _GRACE):
                (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                return decode_from_text(await self._reader.readexactly(length))
        except TimeoutError:
            log.error("a text worker does not respond; its process may be stopped. Replacing it")
            self.silent = True
            self._child.kill()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the exit status is more informative
        return None

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    def kill(self) -> None:
        self._child.kill()

    async def close(self) -> int:
        """Close the connection, wait, and return the exit status.

        A worker has nothing to save, so one that lingers is killed.
        """
        self._writer.close()
        try:
            return await asyncio.to_thread(self._child.wait, 1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return await asyncio.to_thread(self._child.wait)

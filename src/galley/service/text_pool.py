"""Text work of one model, bounded: chat templates and long texts go to worker processes."""

import asyncio
import heapq
import itertools
import logging
import signal
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from galley.config import Settings
from galley.errors import EngineError, EngineNotReady, QueueFull, RequestError
from galley.service.frames import HEADER
from galley.service.spawn import Spawned, spawn_text
from galley.service.text_frames import (
    CheckGrammar,
    Compiled,
    CutTexts,
    EncodeChat,
    EncodePairs,
    EncodeTexts,
    FromText,
    Ids,
    Job,
    OutOfMemory,
    Pairs,
    Refused,
    TextStart,
    decode_from_text,
    encode,
)
from galley.text.tokenizer import Tokenizer
from galley.types import Grammar, SamplingParams

log = logging.getLogger("galley.text")

SHORT_CHARS: Final = 16 * 1024
"""Texts of at most so many characters are encoded in the server's process, in some milliseconds."""

_SMALL_BYTES: Final = 64 * 1024
"""Larger jobs have a worker of their own: nobody's short conversation waits for them."""

_GRAMMARS_KEPT: Final = 256
"""Checked grammars that are remembered, each of at most ``SHORT_CHARS`` characters."""

_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Of jobs that wait for one worker; the server's process keeps them meanwhile."""


class TextPool:
    """Encodes the texts and conversations of one model's requests.

    There are at most two worker processes, one for small and one for large jobs, each started when it is
    first needed. Each does one job at a time, the smallest that waits first. A job that takes more time or
    memory than the settings grant (``text_seconds``, ``text_bytes``) costs its worker's life and is the
    request's error; the next job gets a new worker.

    Attributes:
        tokenizer: in the server's process, for short texts and whatever else there needs one.
    """

    def __init__(
        self,
        settings: Settings,
        name: str,
        folder: Path,
        tokenizer: Tokenizer,
        *,
        unchanged: Callable[[], bool],
    ) -> None:
        """Args:
        name, folder, tokenizer: the model's.
        unchanged: whether the folder's files are still those that ``tokenizer`` was loaded from. When they
            are not, no worker is started, since it would load others.
        """
        self.tokenizer = tokenizer
        self._unchanged = unchanged
        start = TextStart(str(folder), settings.text_seconds, settings.text_bytes)
        self._grammars: OrderedDict[Grammar, Grammar] = OrderedDict()
        self._small = _Lane(name, start, unchanged)
        self._large = _Lane(name, start, unchanged)

    @property
    def busy(self) -> bool:
        """Whether a worker has a job."""
        return self._small.busy or self._large.busy

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that run."""
        return [pid for lane in (self._small, self._large) if (pid := lane.pid) is not None]

    async def warm(self) -> None:
        """Start the worker for conversations now, so that the first one need not wait for it."""
        with suppress(EngineNotReady):  # whoever needs it will see
            await self._small.start()

    async def chat(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_last: bool = False,
        context: int | None = None,
    ) -> list[int]:
        """Token ids of a conversation; see :meth:`galley.text.template.ChatTemplate.encode`.

        Raises:
            RequestError: the template refuses the messages, or takes too long or too much memory.
            QueueFull: too much text work waits already.
        """
        job = EncodeChat(
            messages,
            list(tools),
            dict(variables or {}),
            add_generation_prompt,
            continue_last,
            context,
        )
        answer = await self._work(job, "messages")
        assert isinstance(answer, Ids)
        return answer.ids[0]

    async def encode(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        context: int | None = None,
    ) -> list[list[int]]:
        """Token ids of each text; see :meth:`galley.text.tokenizer.Tokenizer.encode_all`.

        Raises:
            RequestError: a text is certainly longer than ``context``, or takes too long or too much memory.
            QueueFull: too much text work waits already.
        """
        if sum(map(len, texts)) <= SHORT_CHARS:
            return await asyncio.to_thread(
                self.tokenizer.encode_all,
                texts,
                add_special_tokens=add_special_tokens,
                context=context,
            )
        job = EncodeTexts(list(texts), add_special_tokens, context)
        answer = await self._work(job, "prompt")
        assert isinstance(answer, Ids)
        return answer.ids

    async def encode_cut(self, texts: Sequence[str], most: int) -> list[list[int]]:
        """Token ids of each text, at most so many; see :meth:`galley.text.tokenizer.Tokenizer.encode_cut`.

        Raises:
            RequestError: ``most`` is too few, or the work takes too long or too much memory.
            QueueFull: too much text work waits already.
        """
        if sum(map(len, texts)) <= SHORT_CHARS:
            return await asyncio.to_thread(self.tokenizer.encode_cut, texts, most)
        answer = await self._work(CutTexts(list(texts), most), "input")
        assert isinstance(answer, Ids)
        return answer.ids

    async def encode_pairs(
        self, first: str, seconds: Sequence[str], most: int | None, most_second: int | None
    ) -> list[tuple[list[int], int]]:
        """Token ids of pairs; see :meth:`galley.text.tokenizer.Tokenizer.encode_pairs`.

        Raises:
            RequestError: as :meth:`encode_cut`.
            QueueFull: too much text work waits already.
        """
        if sum(map(len, seconds)) + len(first) * len(seconds) <= SHORT_CHARS:
            encode = self.tokenizer.encode_pairs
            return await asyncio.to_thread(encode, first, seconds, most, most_second)
        job = EncodePairs(first, list(seconds), most, most_second)
        answer = await self._work(job, "documents")
        assert isinstance(answer, Pairs)
        return answer.pairs

    async def check_grammar(self, params: SamplingParams, field: str) -> SamplingParams:
        """The same parameters with their grammar, if they have one, checked and compiled.

        Args:
            params: of a request.
            field: the request's, that has the grammar.

        Raises:
            RequestError: the grammar cannot be followed; see :func:`galley.grammar.check.check`.
            QueueFull: too much text work waits already.
        """
        grammar = params.grammar
        if grammar is None:
            return params
        compiled = self._grammars.pop(grammar, None)
        if compiled is None:
            # Among the large jobs: nobody's conversation waits for a grammar.
            answer = await self._work(CheckGrammar(grammar, field), field, large=True)
            assert isinstance(answer, Compiled)
            compiled = answer.grammar
        if len(grammar.source) <= SHORT_CHARS:
            self._grammars[grammar] = compiled
            if len(self._grammars) > _GRAMMARS_KEPT:
                self._grammars.popitem(last=False)
        return msgspec.structs.replace(params, grammar=compiled)

    async def close(self) -> None:
        """End the workers; jobs still under way fail. Idempotent."""
        await asyncio.gather(self._small.close(), self._large.close())

    async def _work(self, job: Job, param: str, *, large: bool = False) -> FromText:
        frame = encode(job)
        large = (large or len(frame) > _SMALL_BYTES) and (self._large.started or self._unchanged())
        lane = self._large if large else self._small
        answer = await lane.run(frame, param)
        if isinstance(answer, Refused):
            raise RequestError(answer.message, param=answer.param, code=answer.code)
        return answer


class _Lane:
    """One worker process at a time, and the jobs that wait for it."""

    def __init__(self, name: str, start: TextStart, unchanged: Callable[[], bool]) -> None:
        self._name = name
        self._start = start
        self._unchanged = unchanged
        self._process: _Process | None = None
        self._turns = _Turns(start.seconds)
        self._closed = False

    @property
    def started(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.alive else None

    @property
    def busy(self) -> bool:
        return self._turns.taken

    async def start(self) -> None:
        """Begin the process, if there is none. Raises EngineNotReady."""
        if self._process is None:
            if not self._unchanged():
                raise EngineNotReady(
                    f"The files of {self._name} have changed; it must be reloaded", retry_after=5
                )
            try:
                self._process = await _Process.start(spawn_text(self._name), self._start)
            except OSError as error:
                raise EngineNotReady(
                    f"No text worker can be started: {error.strerror}", retry_after=1
                ) from error

    async def run(self, frame: bytes, param: str) -> FromText:
        await self._turns.wait(len(frame))
        work = asyncio.create_task(self._work(frame, param))
        work.add_done_callback(_retrieve)
        # A caller that is cancelled leaves the job to its end: its answer must not be the next one's.
        return await asyncio.shield(work)

    async def _work(self, frame: bytes, param: str) -> FromText:
        try:
            answer = await self._answer(frame, param)
        finally:
            self._turns.pass_on()
        if isinstance(answer, OutOfMemory):
            raise self._over_memory(param)
        return answer

    async def _answer(self, frame: bytes, param: str) -> FromText:
        # One that somebody has killed, perhaps while it was idle, says nothing against the job.
        for may_repeat in (True, False):
            if self._closed:
                break
            await self.start()
            assert self._process is not None
            answer = await self._process.ask(frame)
            if answer is not None:
                return answer
            code = await self.end_process()
            if self._closed:
                break
            log.warning(
                "a text worker of %s ended with status %d; its job was %s", self._name, code, param
            )
            if code == -signal.SIGALRM:
                seconds = self._start.seconds
                raise RequestError(
                    f"{param}: the text work takes longer than {seconds:g} s (text_seconds)",
                    param=param,
                )
            if code != -signal.SIGKILL and code < 0:
                raise self._over_memory(param)
            if code > 0:
                raise EngineError("The text worker failed; the server's log says why")
            if not may_repeat:
                raise self._over_memory(param)
        raise EngineNotReady("The server is shutting down", retry_after=1)

    def _over_memory(self, param: str) -> RequestError:
        limit = self._start.max_bytes
        return RequestError(
            f"{param}: the text work nests too deeply, or takes more memory than there is, or than {limit} "
            "bytes (text_bytes)",
            param=param,
        )

    async def end_process(self) -> int:
        """End the worker, if there is one; its exit status."""
        process, self._process = self._process, None
        return 0 if process is None else await process.close()

    async def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()
        await self.end_process()


def _retrieve(task: "asyncio.Task[FromText]") -> None:
    """Nobody may be left to ask for the error."""
    if not task.cancelled():
        task.exception()


class _Turns:
    """A lock for which the smallest job waits the least, and none for longer than ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.taken = False
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._bytes = 0

    async def wait(self, size: int) -> None:
        """Take the turn. Raises QueueFull."""
        if not self.taken:
            self.taken = True
            return
        if self._bytes + size > _MOST_WAITING_BYTES:
            raise self._full("too much waits already")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size, next(self._order), turn))
        self._bytes += size
        try:
            await asyncio.wait_for(turn, self._seconds)
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done() and not turn.cancelled():  # it came in the same moment
                self.pass_on()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise self._full(f"its turn did not come within {self._seconds:g} s") from None
        finally:
            self._bytes -= size

    def pass_on(self) -> None:
        """Give the turn to the next, if one waits."""
        self.taken = False
        while self._waiting and not self.taken:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                self.taken = True

    def _full(self, why: str) -> QueueFull:
        return QueueFull(
            f"The server has too much text to tokenise: {why}", retry_after=self._seconds
        )


class _Process:
    """One worker process and the socket to it."""

    def __init__(
        self,
        child: "subprocess.Popen[bytes]",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, spawned: Spawned, start: TextStart) -> "_Process":
        reader, writer = await asyncio.open_connection(sock=spawned.connection)
        writer.write(encode(start))
        return cls(spawned.child, reader, writer)

    async def ask(self, frame: bytes) -> FromText | None:
        """The answer to one job; None when the process has died."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            self._writer.write(frame)
            (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            return decode_from_text(await self._reader.readexactly(length))
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
        """Hang up and wait; the exit status. A worker has nothing to save: one that lingers is killed."""
        self._writer.close()
        try:
            return await asyncio.to_thread(self._child.wait, 1.0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return await asyncio.to_thread(self._child.wait)

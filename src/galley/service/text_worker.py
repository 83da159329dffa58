"""A text worker: ``python -m galley.service.text_worker SOCKET MODEL``.

A chat template is a program of the checkpoint, a prompt may be megabytes, and some grammars end the
process that compiles them: all are processed here, outside of the server's process, one job at a time.
Each job has a budget, which the kernel enforces:

- of time: an interval timer whose signal (SIGALRM) ends the process, whatever the process is doing;
- of memory: the address space may grow by ``max_bytes`` over what the loaded tokenizer takes.

Loading has a budget, too: it runs a normalizer over the added tokens and compiles regular expressions.

If the container's memory is short, the kernel kills this process before the engine and the server. The
process ends when its socket closes; if it is busy then, it ends after its job.
"""

import ctypes
import gc
import signal
import socket
import sys
import threading
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from galley.errors import GalleyError, RequestError, UnsupportedModel
from galley.service.frames import HEADER
from galley.service.process_limits import give_way, limit_growth
from galley.service.text_frames import (
    CheckGrammar,
    Compiled,
    CutTexts,
    Decoded,
    DecodeIds,
    EncodeChat,
    EncodePairs,
    FromText,
    Ids,
    Job,
    Loaded,
    OutOfMemory,
    Pairs,
    Refused,
    TextStart,
    Unusable,
    decode_to_text,
    encode,
)
from galley.text.template import ChatTemplate
from galley.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_STACK_BYTES: Final = 4 * 2**20
"""Stack size for compiling a grammar, always less than in an engine."""

_TRIM_BYTES: Final = 64 * 1024
"""Job size above which freed memory is returned to the system, instead of kept by the allocator."""


class TextSide:
    """The tokenizer and chat template of one checkpoint, and the jobs that use them."""

    def __init__(self, start: TextStart) -> None:
        folder = Path(start.folder)
        self._folder = folder
        self._tokenizer = Tokenizer.load(folder)
        self._template = ChatTemplate.load(folder)

    def answer(self, body: bytes) -> FromText:
        """Run the job in the frame ``body`` and return its result, which may be a refusal."""
        try:
            job = decode_to_text(body)
            assert not isinstance(job, TextStart)
            return self._work(job)
        except RequestError as error:
            return Refused(str(error), error.param, error.code)
        except MemoryError:
            return OutOfMemory()

    def _work(self, job: Job) -> FromText:
        if isinstance(job, EncodeChat):
            ids = self._template.encode(
                self._tokenizer,
                job.messages,
                tools=job.tools,
                variables=job.variables,
                add_generation_prompt=job.add_generation_prompt,
                continue_last=job.continue_last,
                context=job.context,
            )
            return Ids([ids])
        if isinstance(job, CheckGrammar):
            return self._check(job)
        if isinstance(job, EncodePairs):
            pairs = self._tokenizer.encode_pairs(job.first, job.seconds, job.most, job.most_second)
            return Pairs(pairs)
        if isinstance(job, DecodeIds):
            return Decoded(self._tokenizer.decode(job.ids, skip_special_tokens=False))
        if isinstance(job, CutTexts):
            return Ids(self._tokenizer.encode_cut(job.texts, job.most))
        texts = self._tokenizer.encode_all(
            job.texts, add_special_tokens=job.add_special_tokens, context=job.context
        )
        return Ids(texts)

    def _check(self, job: CheckGrammar) -> FromText:
        from galley.grammar.check import check

        answers: list[FromText] = []

        def work() -> None:
            try:
                answers.append(Compiled(check(job.grammar, self._vocabulary, job.field)))
            except RequestError as error:
                answers.append(Refused(str(error), error.param, error.code))
            except UnsupportedModel as error:
                answers.append(Refused(f"{job.field}: {error}", job.field, None))
            except MemoryError:
                answers.append(OutOfMemory())

        threading.stack_size(_STACK_BYTES)
        thread = threading.Thread(target=work)
        try:
            thread.start()
        except RuntimeError:  # not enough memory for its stack
            return OutOfMemory()
        thread.join()
        return answers[0]

    @cached_property
    def _vocabulary(self) -> "LLTokenizer":
        """The vocabulary, read for the first grammar: most checkpoints are never used with one."""
        from galley.grammar.vocabulary import load_vocabulary

        return load_vocabulary(self._folder)


def main() -> None:
    """Serve one connection until it closes."""
    # Signals from terminals and service managers are for the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    give_way()
    connection = socket.socket(fileno=int(sys.argv[1]))
    frames = connection.makefile("rb")
    first = _receive(frames)
    if first is None:
        return
    start = decode_to_text(first)
    assert isinstance(start, TextStart)
    signal.setitimer(signal.ITIMER_REAL, start.load_seconds)
    limit_growth(start.load_bytes)
    try:
        side = TextSide(start)
    except GalleyError as error:
        with suppress(OSError):
            connection.sendall(encode(Unusable(str(error))))
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.freeze()
    limit_growth(start.max_bytes)
    with suppress(OSError):
        connection.sendall(encode(Loaded()))
    while (body := _receive(frames)) is not None:
        signal.setitimer(signal.ITIMER_REAL, start.seconds)
        answer = encode(side.answer(body))
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            connection.sendall(answer)
        except OSError:
            return
        large = len(body) + len(answer) > _TRIM_BYTES
        del body, answer
        if large:
            _trim()


def _receive(frames: BinaryIO) -> bytes | None:
    """Return the next frame, or None when the server has closed its end."""
    header = frames.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    body = frames.read(length)
    return body if len(body) == length else None


def _trim() -> None:
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


if __name__ == "__main__":
    main()

"""The decoder process for recordings: ``python -m galley.speech.decode_worker SOCKET``.

A recording is untrusted input, and FFmpeg has hundreds of thousands of lines of code that read it. So each
recording is read here, outside the server's process, in its own fork. The fork's memory is returned to the
system when it ends, and it has a budget, which the kernel enforces on Linux:

- CPU time: a profiling timer, whose signal (SIGPROF) ends the fork, whatever it is doing. Decoded audio
  earns more time, so long recordings need no larger budget than short ones;
- memory: it may grow by ``max_bytes`` (:func:`galley.service.process_limits.limit_growth`).

A fork waits while its samples are not read. It ends when its socket closes, and this process ends when its
own socket closes. On Linux, forks end with this process, however that ends.
"""

import gc
import io
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any, BinaryIO, Final, cast

from galley.errors import AudioTooLong, RequestError
from galley.service.process_limits import end_with_parent, give_way, limit_growth
from galley.speech.audio import Recording, Samples
from galley.speech.decode_frames import (
    BLOCK_SAMPLES,
    DESCRIPTORS,
    TAKEN,
    Answer,
    Block,
    Decode,
    Died,
    Done,
    Opened,
    OutOfMemory,
    Refused,
    receive_job,
    send,
)

_NICE: Final = 5
_EARNED: Final = 0.1
"""CPU seconds allowed per second of audio. Stereo uses a thirtieth of this, 7.1 at 192 kHz a third."""
_RESERVE_BYTES: Final = 1024 * 1024
"""Reserve of memory, freed in order to send the out-of-memory answer."""


class DecodeWorker:
    """Forks for each received recording, and reports how forks died."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._forks: dict[int, socket.socket] = {}
        """Process id of each fork -> the socket on which its death is reported."""
        self._poll = select.poll()
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def serve(self) -> None:
        """Serve until the other side closes the connection and the last fork has ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        self._poll.register(self._woken, select.POLLIN)
        self._poll.register(self._control, select.POLLIN)
        serving = True
        while serving or self._forks:
            for ready, _ in self._poll.poll():
                if ready == self._woken:
                    self._reap()
                elif not self._take():
                    self._poll.unregister(self._control)
                    serving = False

    def _take(self) -> bool:
        """Start the next job; return False if the other side has closed the connection."""
        try:
            received = receive_job(self._control)
            if received is None:
                return False
            self._control.sendall(TAKEN)
        except OSError:
            return False
        job, descriptors = received
        if len(descriptors) == DESCRIPTORS:  # otherwise too many files were open: the sockets close
            file, answers, death = descriptors
            self._fork(job, file, socket.socket(fileno=answers), socket.socket(fileno=death))
        else:
            _close(descriptors)
        return True

    def _fork(self, job: Decode, file: int, answers: socket.socket, death: socket.socket) -> None:
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            print(
                f"galley: cannot start a process for a recording: {error.strerror}", file=sys.stderr
            )
            death.close()
        else:
            if child == 0:
                death.close()
                self._become_fork(parent)
                _decode(job, file, answers)
            self._forks[child] = death
        answers.close()  # so that the other side notices when the fork ends
        os.close(file)

    def _become_fork(self, parent: int) -> None:
        end_with_parent()
        if os.getppid() != parent:
            os._exit(0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        for other in self._forks.values():
            other.close()
        _close([self._woken, self._wake])

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                child, status = ended
                code = os.waitstatus_to_exitcode(status)
                # The other side may have closed the socket; it cannot be full.
                with self._forks.pop(child) as death, suppress(OSError):
                    if code:
                        send(death, Died(max(0, -code), max(0, code)))


def _decode(job: Decode, descriptor: int, answers: socket.socket) -> None:
    """Decode one recording within its budget, and end this process."""
    code = 1
    reserve = bytearray(_RESERVE_BYTES)
    try:
        # Before the limits, so that imports do not count against the recording's budget.
        file = cast(BinaryIO, io.BufferedReader(_Shared(descriptor, job.offset)))
        limit_growth(job.max_bytes)
        signal.setitimer(signal.ITIMER_PROF, job.seconds)
        try:
            _answer(job, file, answers)
        except MemoryError:
            del reserve
            _send(answers, OutOfMemory())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(job: Decode, file: BinaryIO, answers: socket.socket) -> None:
    try:
        with Recording(
            file,
            raw=job.raw,
            normalize=job.normalize,
            max_seconds=job.max_seconds,
            name=job.name,
            track=job.track,
            channel=job.channel,
            apart=job.apart,
        ) as recording:
            _send(answers, Opened(recording.duration, recording.channels))
            counted = 0.0
            for block in recording:
                _send_samples(answers, block)
                # Not for every block, because the kernel rounds up to a whole tick each time.
                if (more := recording.seconds - counted) > 1:
                    _earn(more * _EARNED, job.seconds)
                    counted += more
            _send(answers, Done(recording.warnings))
    except RequestError as error:
        _send(answers, Refused(str(error), error.param, isinstance(error, AudioTooLong)))


def _send_samples(answers: socket.socket, samples: Samples) -> None:
    values = samples.ravel()
    for first in range(0, len(values), BLOCK_SAMPLES):
        _send(answers, Block(values[first : first + BLOCK_SAMPLES].tobytes()))


def _send(answers: socket.socket, answer: Answer) -> None:
    try:
        send(answers, answer)
    except OSError:  # the reader has closed the socket
        os._exit(0)


def _earn(seconds: float, most: float) -> None:
    """Add CPU time, up to the initial budget."""
    left, _ = signal.getitimer(signal.ITIMER_PROF)
    signal.setitimer(signal.ITIMER_PROF, min(most, left + seconds))


class _Shared(io.RawIOBase):
    """A file with its own position, although another process shares its descriptor."""

    def __init__(self, descriptor: int, position: int) -> None:
        self._descriptor = descriptor
        self._position = position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += os.fstat(self._descriptor).st_size
        if offset < 0:
            raise OSError("a position before the file's beginning")
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def main() -> None:
    """Serve one connection until it closes."""
    # Signals from the terminal and service managers are meant for the server, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    give_way()
    os.nice(_NICE)
    gc.freeze()
    DecodeWorker(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()

"""Rank 0's side of the connections to the other ranks."""

import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from galley.engine.parallel.frames import (
    Allocated,
    Block,
    Channel,
    Failed,
    FromRank,
    Loaded,
    PackAdapter,
    Packed,
    ReadBlock,
    Stream,
    encode,
)
from galley.errors import (
    DamagedWeights,
    EngineFailed,
    GalleyError,
    ModelError,
    RankKilled,
    SettingsError,
    UnsupportedModel,
)
from galley.ops.communicator import Communicator

_ERRORS = {
    "model": ModelError,
    "settings": SettingsError,
    "damaged": DamagedWeights,
    "engine": EngineFailed,
}

Answer = TypeVar("Answer", Loaded, Allocated, Block, Packed)


class RankLink:
    """A connection to one rank. When it ends, the step in progress fails at all ranks.

    Args:
        rank: the number of the rank.
        connection: a connected socket.
        shared: rank 0's communicator.
        wait: waits for the rank's process to end, and returns its exit status: minus the signal if
            one killed it; None: the rank is on another machine, where nobody here sees it.
        address: HOST:PORT of a rank on another machine, for messages.
    """

    def __init__(
        self,
        rank: int,
        connection: Stream,
        shared: Communicator,
        wait: Callable[[], int] | None,
        address: str = "",
    ) -> None:
        self._name = f"rank {rank} at {address}" if address else f"rank {rank}"
        self._shared = shared
        self._wait = wait
        self._channel = Channel(connection)
        self._answers: queue.SimpleQueue[FromRank | None] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._closing = False
        self.error: GalleyError | None = None
        self._reader = threading.Thread(target=self._read, daemon=True, name=f"galley-rank-{rank}")
        self._reader.start()

    def send(self, data: bytes) -> None:
        """Send an encoded frame.

        Raises:
            EngineFailed: the rank has ended.
        """
        try:
            self._channel.send_encoded(data)
        except OSError:
            self._reader.join()
            raise self.lost() from None

    def loaded(self) -> Loaded:
        """Wait until the rank has loaded its part.

        Raises:
            GalleyError: it could not, for the same reasons as an executor of the whole model.
        """
        return self._answer(Loaded)

    def allocated(self) -> None:
        """Wait until the rank has allocated its KV blocks.

        Raises:
            EngineFailed: it could not.
        """
        self._answer(Allocated)

    def pack(self, frame: PackAdapter) -> None:
        """Have the rank pack its part of an adapter. May be called on any thread.

        Raises:
            UnsupportedModel: a value is out of range of the type in which adapters are stored.
        """
        with self._asking:
            self.send(encode(frame))
            error = self._answer(Packed).error
        if error is not None:
            raise UnsupportedModel(error)

    def read_block(self, frame: ReadBlock) -> bytes:
        """Return the rank's keys and values of a block. May be called on any thread."""
        with self._asking:
            self.send(encode(frame))
            return self._answer(Block).data

    def lost(self) -> GalleyError:
        """Return why the rank ended, or will not answer."""
        return self.error or EngineFailed(f"{self._name} does not answer")

    def hang_up(self) -> None:
        """Have the rank end, and do not wait for it."""
        self._closing = True
        self._channel.close()

    def close(self) -> None:
        """End the rank."""
        self.hang_up()
        self._reader.join()

    def _answer(self, kind: type[Answer]) -> Answer:
        frame = self._answers.get()
        if frame is None:
            self._answers.put(None)
            raise self.lost()
        assert isinstance(frame, kind)
        return frame

    def _read(self) -> None:
        while (frame := self._channel.receive_from_rank()) is not None:
            if isinstance(frame, Failed):
                self.error = _ERRORS[frame.kind](f"{self._name}: {frame.message}")
            else:
                self._answers.put(frame)
        if self._wait is None:
            if self.error is None and not self._closing:
                # A rank whose requests crash it computes the same as rank 0, which would crash, too.
                self.error = RankKilled(
                    f"{self._name} of the model was lost: its process or its machine ended, or the "
                    "connection to it"
                )
            status = 0
        else:
            status = self._wait()
        # A rank that ends with status 0 does so because another has failed, which says why.
        if status and self.error is None and not self._closing:
            what = f"{self._name} of the model ended"
            if status == -signal.SIGKILL:
                self.error = RankKilled(f"{what}: it was killed, perhaps for lack of memory")
            else:
                self.error = EngineFailed(f"{what} (status {status})")
        self._shared.fail()
        self._answers.put(None)


def start_rank(memory: int, meeting: int) -> "tuple[socket.socket, subprocess.Popen[bytes]]":
    """Start the process of a rank, which imports its modules and waits for its first frame.

    Args:
        memory: the descriptor of the shared memory.
        meeting: see :class:`galley.ops.executor.ExecutorOptions`.
    """
    ours, theirs = socket.socketpair()
    # The kernel ends a bound process with the thread that started it, which may end before this process.
    bound = ("bound",) if threading.current_thread() is threading.main_thread() else ()
    with theirs:
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "galley.service.rank"),
                *(str(theirs.fileno()), str(memory), str(meeting), *bound),
            ],
            pass_fds=[theirs.fileno(), memory, *([] if meeting < 0 else [meeting])],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
        )
    return ours, child


def waiting_for(child: "subprocess.Popen[bytes]", seconds: float = 5.0) -> Callable[[], int]:
    """Return a function that waits for a process whose connection has ended, and kills it if it hangs."""

    def wait() -> int:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()

    return wait

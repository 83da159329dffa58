"""How the ranks of a divided model exchange rows: NCCL between GPUs, gloo where kernels are interpreted.

Ranks find each other through a file in memory that only they have open, so no port is opened for that. The
connections that NCCL and gloo make afterwards are on the loopback interface, unless the environment names
another.
"""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, Final

import torch
from torch import cuda, distributed

from galley.errors import SettingsError
from galley.ops.communicator import Communicator, RankLost
from galley.ops.triton.tiles import Device

_DISTRIBUTED: Final[Any] = distributed
"""torch.distributed, which does not export to type checkers what it documents."""

_TIMEOUT: Final = timedelta(minutes=10)
"""Bound of an exchange. A rank that ends is noticed at once, a step that hangs after ``step_timeout``."""

_PAUSE_SECONDS: Final = 2e-5
"""Pause between two looks at whether an exchange or a step is complete."""

_INTERFACES: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class TensorRanks:
    """Exchanges tensors with the other ranks, which are on the same machine.

    They connect in the first exchange, when all have loaded their parts: a rank that cannot load would
    otherwise keep the others waiting. Exchanges of NCCL are launched like kernels, and can be captured.

    Args:
        shared: the rank's communicator in host memory, which says whether a rank has failed.
        meeting: see :class:`galley.ops.executor.ExecutorOptions`.
        device: where the tensors are.

    Raises:
        SettingsError: torch has no NCCL.
    """

    def __init__(self, shared: Communicator, meeting: int, device: Device) -> None:
        self.rank, self.ranks = shared.rank, shared.ranks
        self._shared, self._meeting = shared, meeting
        self._device = device
        self._on_host = device.torch.type == "cpu"
        if not self._on_host and not distributed.is_nccl_available():
            raise SettingsError(
                f"tensor_parallel is {self.ranks}, but this torch ({torch.__version__}) was built without "
                "NCCL, through which GPUs exchange rows; install one with it, or leave tensor_parallel out"
            )
        self._options = _DISTRIBUTED.distributed_c10d.AllgatherOptions()
        self._options.asyncOp = False
        self._backend: Any = None
        self._met = False
        """Whether the connections have been begun, which use the file."""

    def gather(self, x: torch.Tensor, ranks: Sequence[int], y: torch.Tensor | None) -> None:
        """Write the columns of all ranks to ``y``; see :class:`galley.ops.reference_ranks.Communicator`.

        Args:
            x: [rows, columns of this rank].
            ranks: columns of each rank.
            y: [rows, columns of all]; None if only other ranks need them.

        Raises:
            RankLost: another rank has ended or failed.
        """
        if not len(x):
            return
        widest = max(ranks)
        if x.shape[1] < widest:
            x = torch.nn.functional.pad(x, (0, widest - x.shape[1]))
        found = self.gather_all(x)
        if y is None:
            return
        if min(ranks) == widest:
            y.view(len(x), self.ranks, widest).copy_(found.transpose(0, 1))
        else:
            parts = [part[:, :width] for part, width in zip(found, ranks, strict=True)]
            torch.cat(parts, dim=1, out=y)

    def gather_all(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks, which have one shape: [ranks, *x.shape].

        Raises:
            RankLost: another rank has ended or failed.
        """
        found = x.new_empty((self.ranks * len(x), *x.shape[1:]))
        own = x.contiguous()
        self._exchange(lambda to: to._allgather_base(found, own, self._options))
        return found.view(self.ranks, *x.shape)

    def broadcast(self, x: torch.Tensor) -> None:
        """Replace ``x`` by rank 0's.

        Raises:
            RankLost: another rank has ended or failed.
        """
        self._exchange(lambda to: to.broadcast(x, 0))

    def wait(self, event: "cuda.Event") -> None:
        """Wait for an event on the device, which an exchange with a rank that has ended would never reach.

        Raises:
            RankLost: another rank has ended or failed.
        """
        while not event.query():  # type: ignore[no-untyped-call]
            self._pause()

    def close(self) -> None:
        """Leave the group. No exchange is possible afterwards."""
        # The store keeps using its descriptor until torch destroys it, so that stays open.
        if not self._met:
            os.close(self._meeting)
        elif self._backend is not None:
            self._backend.abort()

    def _exchange(self, start: Any) -> None:
        """Start an exchange and wait for it, on the device if that is a GPU."""
        try:
            if self._backend is None:
                self._backend = self._meet()
            work = start(self._backend)
            while self._on_host and not work.is_completed():
                self._pause()
            if work is not None:
                work.wait()
        except RankLost:
            raise
        except RuntimeError as error:
            self._shared.fail()
            raise RankLost(f"rank {self.rank} cannot exchange rows: {error}") from error

    def _pause(self) -> None:
        if self._shared.failed:
            raise RankLost(f"a rank has failed while rank {self.rank} waited for it")
        time.sleep(_PAUSE_SECONDS)

    def _meet(self) -> Any:
        """Connect with the other ranks, on a thread: one that has ended would be waited for without end.

        Raises:
            RankLost: another rank has ended or failed.
        """
        self._met, made = True, Future[Any]()

        def connect() -> None:
            try:
                made.set_result(self._connected())
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=connect, daemon=True, name="galley-ranks-meet").start()
        while not made.done():
            self._pause()
        return made.result()

    def _connected(self) -> Any:
        """Return torch's group of the ranks: not the default one, which a caller's process may have."""
        for name in _INTERFACES:
            os.environ.setdefault(name, "lo")
        store = _DISTRIBUTED.FileStore(f"/proc/self/fd/{self._meeting}", self.ranks)
        if self._on_host:
            return _DISTRIBUTED.ProcessGroupGloo(store, self.rank, self.ranks, _TIMEOUT)
        options = _DISTRIBUTED.ProcessGroupNCCL.Options()
        options._timeout = _TIMEOUT
        made = _DISTRIBUTED.ProcessGroupNCCL(store, self.rank, self.ranks, options)
        with self._device.current():  # NCCL connects in the first exchange
            made.broadcast(torch.zeros(1, device=self._device.torch), 0).wait()
            self._device.synchronize()
        return made


def check_gpus(names: Sequence[str]) -> None:
    """Check that there is an equal GPU for each rank.

    Args:
        names: torch's name of each rank's device.

    Raises:
        SettingsError: two ranks would share a GPU, there are fewer GPUs, or they differ.
    """
    for name in names:
        if not name.startswith("cuda:"):
            raise SettingsError(
                f"device is {name!r}, but executor 'gpu' with tensor_parallel needs a GPU for each rank; "
                "set device to cuda, or to a list such as cuda:0,cuda:1"
            )
        if names.count(name) > 1:
            raise SettingsError(
                f"device gives {name} to {names.count(name)} of {len(names)} ranks, but each needs a GPU "
                "of its own; set device to cuda, or to a list such as cuda:0,cuda:1"
            )
    count = cuda.device_count()
    if missing := [name for name in names if int(name.removeprefix("cuda:")) >= count]:
        raise SettingsError(
            f"tensor_parallel is {len(names)} and needs {missing[0]}, but the number of GPUs that this "
            f"process may use is {count}; lower tensor_parallel, or run galley doctor"
        )
    kinds = {name: _kind(name) for name in names}
    for name, kind in kinds.items():
        if kind != kinds[names[0]]:
            raise SettingsError(
                f"{names[0]} is a {kinds[names[0]]} and {name} a {kind}, but the ranks of tensor_parallel "
                "need equal GPUs; name equal ones in device, such as cuda:0,cuda:1"
            )


def _kind(name: str) -> str:
    """Return what two GPUs must have in common."""
    found = cuda.get_device_properties(name)
    gib = found.total_memory / (1 << 30)
    return f"{found.name} ({found.major}.{found.minor}, {gib:.0f} GiB)"

"""What an executor is: it runs a Program over a ragged batch against a paged KV cache."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
import numpy.typing as npt

from galley.errors import SettingsError
from galley.formats.weights import Weights
from galley.graph.program import Program

Ints = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's tokens, ragged: sequence s owns rows ``starts[s]`` to ``starts[s + 1]``.

    Attributes:
        tokens: [rows] token ids.
        positions: [rows] absolute positions; consecutive within a sequence.
        starts: [sequences + 1].
        tables: for each sequence the KV blocks of positions 0 up to its last row, in order.
        wanted: [wanted] rows whose logits are returned, ascending.
    """

    tokens: Ints
    positions: Ints
    starts: Ints
    tables: tuple[Ints, ...]
    wanted: Ints

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.positions) == self.starts[-1]
        assert len(self.tables) == len(self.starts) - 1


class Executor(Protocol):
    """Rows are independent: a row's logits have the same bits whatever else is in the batch."""

    def kv_bytes_per_block(self) -> int:
        """Bytes of keys and values, over all layers, of one block of BLOCK_TOKENS tokens."""
        ...

    def free_device_memory(self) -> int | None:
        """Bytes free for a KV cache on the executor's device; None if that is the host's memory."""
        ...

    def allocate_kv(self, blocks: int) -> None:
        """Make room for ``blocks`` KV blocks. Called once, before :meth:`forward`."""
        ...

    def forward(self, batch: Batch) -> Logits:
        """Float32 logits [wanted, vocab].

        In each layer all of the batch's keys and values are written before any are read: sequences may
        share blocks that the batch itself fills.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """How to run a program.

    Attributes:
        dtype: of weights, activations and KV.
        device: where to run.
        threads: to compute with.
        quantize: what weights become, or "" for ``dtype``.
    """

    dtype: str
    device: str
    threads: int
    quantize: str = ""


class ExecutorFactory(Protocol):
    """Packs canonical weights into the executor's own layout."""

    def __call__(self, program: Program, weights: Weights, options: ExecutorOptions) -> Executor:
        """Pack and plan.

        Args:
            program: what to run.
            weights: its tensors, as in the checkpoint.
            options: how.

        Raises:
            SettingsError: the executor cannot do what is asked.
        """
        ...


EXECUTORS: Final[Mapping[str, tuple[str, str]]] = {
    "cpu": ("galley.ops.cpu", "CpuExecutor"),
    "reference": ("galley.ops.reference", "ReferenceExecutor"),
}
"""Name -> module and class; a module is imported only when it is asked for."""


def executor_factory(name: str) -> ExecutorFactory:
    """Raises SettingsError if the name is unknown or what the executor needs is not installed."""
    if name not in EXECUTORS:
        raise SettingsError(f"executor {name!r} is unknown; known: {', '.join(EXECUTORS)}")
    module, attribute = EXECUTORS[name]
    try:
        loaded: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("galley"):
            raise
        raise SettingsError(
            f"executor {name!r} needs the package {error.name!r}: pip install 'galley[torch]'"
        ) from error
    return cast(ExecutorFactory, getattr(loaded, attribute))

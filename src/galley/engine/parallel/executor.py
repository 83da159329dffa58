"""The executor of a model whose parts are in several processes, as the engine sees it."""

import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from galley.engine.parallel.frames import (
    Allocate,
    CheckWeights,
    Loaded,
    ReadBlock,
    SetAdapter,
    WriteBlock,
    adapter_frame,
    encode,
    step_of,
)
from galley.engine.parallel.links import RankLink
from galley.errors import EngineFailed, GalleyError
from galley.formats.adapter import AdapterWeights, LowRank
from galley.formats.parts import Part, rows_of
from galley.formats.weights import DenseWeight
from galley.graph.divide import Divided
from galley.ops.batch import Batch
from galley.ops.communicator import Communicator, RankLost
from galley.ops.executor import (
    BlockAccess,
    Bytes,
    Executor,
    ExpertCounts,
    FollowingExecutor,
    Submitted,
)
from galley.ops.sampling import SamplingBatch, StepResult
from galley.types.model_info import ExpertCosts, StepCosts

_REASON_SECONDS: Final = 2.0
"""How long a rank that failed may take to report why, once the step has ended."""


class PackedAdapter:
    """An adapter that all ranks have packed."""

    def __init__(self, number: int, own: object) -> None:
        self.number = number
        self.own = own


class RankedExecutor:
    """See :class:`galley.ops.executor.Executor`: rank 0's executor, and the links to the others.

    A step is sent to all ranks and then computed here, too; all meet in the exchanges of the program.
    Tokens are chosen here, where the logits of all ranks are. If a rank ends, the step fails, and so do all
    later ones.

    Args:
        own: rank 0's executor.
        parts: what each rank computes.
        links: the connections to the other ranks, in their order.
        loaded: what these have loaded.
        shared: rank 0's communicator.
        here: how many ranks are on this machine, rank 0 included.
        on_close: called when the ranks have ended.
    """

    def __init__(
        self,
        own: Executor,
        parts: Sequence[Divided],
        links: Sequence[RankLink],
        loaded: Sequence[Loaded],
        shared: Communicator,
        *,
        here: int,
        on_close: Callable[[], None],
    ) -> None:
        self._own = own
        self._parts = parts
        self._links = links
        self._loaded = loaded
        self._here = loaded[: here - 1]
        self._shared = shared
        self._adapters = itertools.count()
        self._dropped: list[int] = []
        self.kv_groups = own.kv_groups
        self.activations = own.activations
        self._end = weakref.finalize(self, _close, list(links), on_close)

    @property
    def isa(self) -> str:
        """The instruction set of the kernels, and the number of ranks, on which measurements depend."""
        isa = getattr(self._own, "isa", "")
        return f"{isa} x {len(self._parts)}" if isa else ""

    @property
    def forward_seconds(self) -> float:
        """See :attr:`galley.ops.executor.Executor.forward_seconds`."""
        return self._own.forward_seconds

    @property
    def sample_seconds(self) -> float:
        """See :attr:`galley.ops.executor.Executor.sample_seconds`."""
        return self._own.sample_seconds

    def close(self) -> None:
        """End the other ranks; no step can be computed afterwards."""
        self._end()

    def step_costs(self) -> StepCosts:
        """Return the sums over all ranks."""
        costs = [self._own.step_costs(), *(one.costs for one in self._loaded)]
        experts = sum(one.experts.bytes for one in costs)
        read = sum(one.experts.bytes * one.experts.share for one in costs)
        return StepCosts(
            weight_bytes=sum(one.weight_bytes for one in costs),
            kv_bytes_per_token=sum(one.kv_bytes_per_token for one in costs),
            row_operations=sum(one.row_operations for one in costs),
            logit_operations=sum(one.logit_operations for one in costs),
            experts=ExpertCosts(experts, read / experts) if experts else ExpertCosts(),
        )

    def expert_counts(self) -> ExpertCounts:
        """Return the statistics of rank 0: all ranks choose the same experts, and have parts of each."""
        return self._own.expert_counts()

    def kv_bytes_per_block(self) -> int:
        """Return the bytes of a block over all ranks of this machine."""
        others = sum(one.kv_bytes_per_block for one in self._here)
        return self._own.kv_bytes_per_block() + others

    def bytes_per_state(self) -> int:
        """Return the bytes of a sequence's state over all ranks of this machine."""
        return self._own.bytes_per_state() + sum(one.bytes_per_state for one in self._here)

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Allocate blocks of the same numbers at all ranks, each with the keys and values of its heads."""
        self._send(encode(Allocate(blocks, states)))
        self._own.allocate_kv(blocks, states)
        for link in self._links:  # which read and write blocks as soon as they receive such frames
            link.allocated()

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """See :meth:`galley.ops.executor.Executor.pack_adapter`: each rank gets its rows of b."""
        number = next(self._adapters)
        for part, link in zip(self._parts[1:], self._links, strict=True):
            link.pack(adapter_frame(number, adapter_part(adapter, part)))
        packed = PackedAdapter(
            number, self._own.pack_adapter(adapter_part(adapter, self._parts[0]))
        )
        weakref.finalize(packed, self._dropped.append, number)
        return packed

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """See :meth:`galley.ops.executor.Executor.set_adapter`."""
        assert packed is None or isinstance(packed, PackedAdapter)
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        self._send(encode(SetAdapter(slot, None if packed is None else packed.number, dropped)))
        self._own.set_adapter(slot, None if packed is None else packed.own)

    def submit(self, batch: Batch, sampling: SamplingBatch) -> Submitted:
        """See :meth:`galley.ops.executor.Executor.submit`.

        Raises:
            EngineFailed: a rank has ended or failed; the engine has to be started again.
        """
        with self._together():
            self._send(encode(step_of(batch)))
            return self._own.submit(batch, sampling)

    def collect(self, step: Submitted) -> StepResult:
        """See :meth:`galley.ops.executor.Executor.collect`.

        Raises:
            EngineFailed: as for :meth:`submit`.
        """
        with self._together():
            result = self._own.collect(step)
        if result.nan_logits:
            self._send(encode(CheckWeights()))
        return result

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Say why a rank was lost, and end the other ranks' wait for this one if it fails."""
        try:
            yield
        except RankLost as error:
            raise self._reason() or EngineFailed(str(error)) from error
        except BaseException:
            self._shared.fail()
            raise

    def _send(self, data: bytes) -> None:
        for link in self._links:
            link.send(data)

    def _reason(self) -> GalleyError | None:
        """Return why a rank was lost: its report may not have arrived yet."""
        until = time.monotonic() + _REASON_SECONDS
        while time.monotonic() < until:
            for link in self._links:
                if link.error is not None:
                    return link.error
            time.sleep(0.01)
        return None


class ParallelExecutor(RankedExecutor):
    """Ranks in host memory; ``own`` is a :class:`galley.ops.executor.BlockAccess`, and so is this."""

    def block_bytes(self, group: int) -> int:
        """See :class:`galley.ops.executor.BlockAccess`."""
        return sum(self._sizes(group))

    def read_block(self, block: int, group: int) -> Bytes:
        """Return the keys and values of all ranks, one after another."""
        frame = ReadBlock(block, group)
        own = self._access.read_block(block, group)
        others = [np.frombuffer(link.read_block(frame), np.uint8) for link in self._links]
        return np.concatenate([own, *others])

    def write_block(self, block: int, group: int, data: Bytes) -> None:
        """See :class:`galley.ops.executor.BlockAccess`."""
        size, *others = self._sizes(group)
        self._access.write_block(block, group, np.ascontiguousarray(data[:size]))
        for link, length in zip(self._links, others, strict=True):
            link.send(encode(WriteBlock(block, group, data[size : size + length].tobytes())))
            size += length

    def _sizes(self, group: int) -> list[int]:
        """Return the bytes that each rank has of a block."""
        others = (one.block_bytes[group] for one in self._loaded)
        return [self._access.block_bytes(group), *others]

    @property
    def _access(self) -> BlockAccess:
        assert isinstance(self._own, BlockAccess)
        return self._own


class ParallelDevices(RankedExecutor):
    """Ranks on devices; ``own`` is a :class:`galley.ops.executor.FollowingExecutor`, and so is this.

    The tokens that a step draws are at rank 0, which sends them to the other ranks when a step that was
    submitted before they were known needs them.
    """

    def may_follow(self, step: Submitted) -> bool:
        """See :meth:`galley.ops.executor.FollowingExecutor.may_follow`."""
        return self._following.may_follow(step)

    def follow(self, step: Submitted, batch: Batch, sampling: SamplingBatch) -> Submitted | None:
        """See :meth:`galley.ops.executor.FollowingExecutor.follow`.

        Raises:
            EngineFailed: as for :meth:`submit`.
        """
        if not self.may_follow(step):
            return None
        with self._together():
            self._send(encode(step_of(batch)))
            return self._following.follow(step, batch, sampling)

    @property
    def _following(self) -> FollowingExecutor:
        assert isinstance(self._own, FollowingExecutor)
        return self._own


def adapter_part(adapter: AdapterWeights, part: Divided) -> AdapterWeights:
    """Return what a rank adds to its rows of the adapted matrices."""

    def own(name: str, one: LowRank) -> LowRank:
        if name not in part.adapted:
            return one
        rows = [rows_of(one.b, Part(name, *bounds)) for bounds in part.adapted[name]]
        found = [piece for piece in rows if isinstance(piece, DenseWeight)]
        shape = (sum(piece.shape[0] for piece in found), one.b.shape[1])
        data = np.concatenate([piece.data for piece in found])
        return one._replace(b=DenseWeight(one.b.name, one.b.dtype, shape, data))

    return {name: own(name, one) for name, one in adapter.items()}


def close_all(links: Sequence[RankLink]) -> None:
    """End ranks, which takes as long as the slowest of them."""
    for link in links:
        link.hang_up()
    for link in links:
        link.close()


def _close(links: Sequence[RankLink], on_close: Callable[[], None]) -> None:
    close_all(links)
    on_close()

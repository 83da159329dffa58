"""The executor interface: an executor runs a Program over a ragged batch with a paged KV cache."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt

from galley.errors import SettingsError
from galley.formats.adapter import AdapterWeights
from galley.formats.reader import CheckpointReader
from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.ops.batch import NO_TOKENS, Batch, EncoderBatch
from galley.ops.sampling import Logits, SamplingBatch, StepResult
from galley.types.model_info import StepCosts

Attention = npt.NDArray[np.float32]


class ExpertMemory(NamedTuple):
    """The memory needed for experts that stay on disk.

    Attributes:
        experts: number of experts, over all layers.
        bytes: size of all of them on disk.
        slot: bytes of memory reserved for one expert: the size of the largest.
        least: number of experts that must be in memory at the same time: those of one layer.
        token: most bytes of the experts that one token is routed to.
    """

    experts: int = 0
    bytes: int = 0
    slot: int = 0
    least: int = 0
    token: int = 0

    @classmethod
    def of_ranks(cls, each: "Sequence[ExpertMemory]") -> "ExpertMemory":
        """Return the memory of all ranks, each of which has a part of every expert."""
        if not each[0].experts:
            return NO_EXPERTS
        return each[0]._replace(
            bytes=sum(one.bytes for one in each),
            slot=sum(one.slot for one in each),
            token=sum(one.token for one in each),
        )

    @property
    def least_bytes(self) -> int:
        """Bytes of the experts that must be in memory at the same time."""
        return self.least * self.slot

    def cache_bytes(self, wanted: int | None, left: int) -> int:
        """Return the bytes of memory for experts, in whole slots: ``wanted``, or half of ``left``.

        Raises:
            SettingsError: the experts of a layer do not fit into ``wanted``.
        """
        if not self.experts:
            return 0
        if wanted is not None and wanted < self.least_bytes:
            raise SettingsError(
                f"expert_cache_bytes is {wanted}, but the experts of a layer, {self.least} of up to "
                f"{self.slot} bytes, must fit in memory together; set it to at least {self.least_bytes}, "
                "or leave it out"
            )
        slots = (max(0, left) // 2 if wanted is None else wanted) // self.slot
        return min(self.experts, max(self.least, slots)) * self.slot


NO_EXPERTS: Final = ExpertMemory()


class ExpertCounts(NamedTuple):
    """Statistics of experts on disk: their ``bytes`` of memory, and counts since the executor was made.

    An expert that a step's rows choose in a layer is a hit if it was in memory, and a miss if it was read.
    """

    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0


class Executor(Protocol):
    """Runs a program step by step, and keeps weights, keys, values and logits.

    Rows are independent: the result of a row has the same bits whatever else is in the batch.
    """

    @property
    def activations(self) -> str:
        """The type that linear-layer inputs are rounded to: "float32", "bfloat16", "float16" or "int8"."""
        ...

    @property
    def forward_seconds(self) -> float:
        """Seconds that steps have taken so far, without the engine's own work."""
        ...

    @property
    def sample_seconds(self) -> float:
        """The part of :attr:`forward_seconds` that was spent on choosing tokens from logits."""
        ...

    @property
    def kv_groups(self) -> int:
        """The number of block tables per sequence; see :class:`galley.graph.program.KVGroup`."""
        ...

    def step_costs(self) -> StepCosts:
        """Return the number of bytes that a step reads and of operations that it computes."""
        ...

    def expert_counts(self) -> ExpertCounts:
        """Return the statistics of experts that stay on disk; zeros if there are none."""
        ...

    def kv_bytes_per_block(self) -> int:
        """Return the bytes of a KV block: BLOCK_TOKENS tokens or encoder rows in each layer of a group."""
        ...

    def bytes_per_state(self) -> int:
        """Return the bytes of recurrent state of one sequence; 0 for a model without recurrent layers."""
        ...

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Allocate ``blocks`` KV blocks and ``states`` states. Called once, before any step."""
        ...

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """Pack a LoRA adapter for :meth:`set_adapter`. May be called on any thread.

        Raises:
            UnsupportedModel: a value is out of range of the type in which adapters are stored.
        """
        ...

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """Put the adapter into the slot, for all later steps; None frees the slot's memory.

        Must not be called while a step runs.
        """
        ...

    def submit(self, batch: Batch, sampling: SamplingBatch) -> "Submitted":
        """Submit a step: copy blocks, encode, align, compute the tokens' rows, and do the ``sampling``.

        The step may still run after the call returns; steps run in the order of submission. Until its
        results are collected, the caller must not change the arrays of ``batch`` and ``sampling``.

        In each layer, all of the batch's keys and values are written before any are read, so sequences
        may share blocks that the batch itself fills. Logits leave the executor only if ``sampling``
        requests them.
        """
        ...

    def collect(self, step: "Submitted") -> StepResult:
        """Wait for a step and return its results. Each step is collected once, in submission order.

        Raises:
            DamagedWeights: the packed weights differ from those written to disk.
        """
        ...


@runtime_checkable
class FollowingExecutor(Protocol):
    """The further method of an executor on a device: it takes a step before the last one has ended."""

    def follow(
        self, step: "Submitted", batch: Batch, sampling: SamplingBatch
    ) -> "Submitted | None":
        """Submit a step after ``step``, the latest one, which may still run.

        Everything that the call needs is copied: the caller may change block tables afterwards, and give
        blocks and adapter slots of either step to later ones. If ``step`` fails, this one is never
        collected.

        Args:
            step: the step whose draws the batch continues from.
            batch: as in :meth:`Executor.submit`, but token id -1 - d stands for the token of draw d of
                ``step``.
            sampling: as in :meth:`Executor.submit`.

        Returns:
            The submitted step; None if it must not be followed, see :meth:`may_follow`.
        """
        ...

    def may_follow(self, step: "Submitted") -> bool:
        """Return whether a step may follow this one: not if its tokens are drawn on the host, later."""
        ...


Bytes = npt.NDArray[np.uint8]


@runtime_checkable
class BlockAccess(Protocol):
    """The further methods of an executor whose KV blocks can be stored elsewhere.

    Blocks that no step uses meanwhile may be copied on any thread.
    """

    def block_bytes(self, group: int) -> int:
        """Return the bytes of a block in the layers of a KV group."""
        ...

    def read_block(self, block: int, group: int) -> Bytes:
        """Return a copy of a block's keys and values."""
        ...

    def write_block(self, block: int, group: int, data: Bytes) -> None:
        """Restore what :meth:`read_block` returned, in this or another process with the same model."""
        ...


@runtime_checkable
class WeightChecking(Protocol):
    """The further methods of an executor whose packed weights are on disk, with checksums."""

    def check_weights(self) -> None:
        """Check them again, since logits were NaN; not more often than once a minute.

        Raises:
            DamagedWeights: they differ from those written to disk.
        """
        ...


@runtime_checkable
class Closable(Protocol):
    """The further method of an executor that holds more than memory."""

    def close(self) -> None:
        """End other processes. No step may be computed afterwards."""
        ...


Submitted: TypeAlias = object
"""A submitted step, returned by :meth:`Executor.submit` and passed to ``collect``."""


class SynchronousExecutor(ABC):
    """Base class of executors that complete a step within :meth:`submit`, so ``collect`` never waits."""

    @abstractmethod
    def execute(self, batch: Batch, sampling: SamplingBatch) -> StepResult:
        """Compute one step; see :meth:`Executor.submit`."""

    def submit(self, batch: Batch, sampling: SamplingBatch) -> Submitted:
        """See :meth:`Executor.submit`."""
        return self.execute(batch, sampling)

    def collect(self, step: Submitted) -> StepResult:
        """See :meth:`Executor.collect`."""
        assert isinstance(step, StepResult)
        return step


def execute(executor: Executor, batch: Batch, sampling: SamplingBatch) -> StepResult:
    """Compute one step, wait for it and return its results."""
    return executor.collect(executor.submit(batch, sampling))


def forward(executor: Executor, batch: Batch) -> Logits:
    """Return the logits [wanted, vocab], valid until the next step, for measurements and comparisons."""
    logits = execute(executor, batch, SamplingBatch(keep_logits=True)).logits
    assert logits is not None
    return logits


def encode(executor: Executor, inputs: EncoderBatch) -> None:
    """Encode the inputs and do nothing else: fill their KV blocks for later steps to attend to."""
    execute(executor, msgspec.structs.replace(NO_TOKENS, encode=inputs), SamplingBatch())


def align(executor: Executor, batch: Batch) -> Attention:
    """Return the alignment heads' attention [rows, heads, encoder rows], zero past a sequence's rows."""
    attention = execute(
        executor, msgspec.structs.replace(NO_TOKENS, align=batch), SamplingBatch()
    ).attention
    assert attention is not None
    return attention


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """The options with which an executor runs a program.

    Attributes:
        dtype: "float32" or "bfloat16"; the reference executor computes in it.
        weight_dtype: weight type that dense matrices are converted to: "float32", "bf16", "f16", "int8" or
            "int4". Matrices that are integers in the checkpoint stay as they are.
        kinds: tensor name -> weight type, for dense matrices that are not converted to ``weight_dtype``.
        kv_dtype: type of keys and values in the cache: "float32", "bfloat16", "int8" or "int4".
        device: the device to run on.
        threads: number of compute threads.
        activations: type that the inputs of linear layers are rounded to: "float32", "bfloat16", "int8", or
            "auto" for the fastest type with such weights.
        disable_pass: names of passes over the program (``graph/passes/``) that are skipped.
        weight_cache: the checkpoint of these weights, so that the packed weights can be kept on disk; None
            keeps nothing.
        adapters: number of slots for LoRA adapters in memory; if above 0, the program has ``lora`` ops.
        adapter_rank: the highest rank of an adapter.
        experts: "memory", or "disk" to read experts from the file of packed weights when they are chosen.
        expert_cache_bytes: memory for experts on disk; at least the experts of one layer are in memory.
        rank, ranks: the number of this process among those that compute the model together, and how many
            there are. Packed weights are kept by rank.
        communicator: through which they exchange rows; the executor knows its type. Without one, the
            executor has the whole model, whatever ``ranks`` is.
        meeting: descriptor of a file in memory through which ranks on devices find each other; -1: none.
        pause: called often while a program runs, between two ops; it may block, to leave the cores to
            other work.
    """

    dtype: str
    weight_dtype: str
    kv_dtype: str
    device: str
    threads: int
    activations: str = "auto"
    disable_pass: tuple[str, ...] = ()
    weight_cache: CheckpointReader | None = None
    pause: Callable[[], None] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    adapters: int = 0
    adapter_rank: int = 0
    experts: str = "memory"
    expert_cache_bytes: int = 0
    rank: int = 0
    ranks: int = 1
    communicator: object | None = None
    meeting: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMemory:
    """Bytes that an executor will use, known before it packs a weight.

    Attributes:
        isa: instruction set of its native kernels; empty for an executor without such kernels.
        activations: type of the inputs of linear layers; see :attr:`Executor.activations`.
        kinds: weight types of the matrices, as text for people.
        weights: bytes of the weights in the executor's layout, without experts on disk.
        kv_block: bytes of one KV block, as :meth:`Executor.kv_bytes_per_block` will return.
        state: bytes of the state of one sequence, as :meth:`Executor.bytes_per_state` will return.
        row: bytes of the buffers between ops, per token of a step.
        logits: bytes of a row of logits.
        encoder: bytes of the buffers for the longest encoder input; 0 for a text model.
        scratch: bytes of the compute threads' scratch memory.
        adapters: bytes of all slots for LoRA adapters, at the highest rank.
        experts: memory for experts that stay on disk; none by default.
        static_inputs: number of matrices whose inputs are rounded by the checkpoint's static scales.
        free: free bytes of a device with its own memory; None if the executor uses the host's.
    """

    isa: str
    activations: str
    kinds: str
    weights: int
    kv_block: int
    row: int
    logits: int
    encoder: int
    scratch: int
    adapters: int = 0
    state: int = 0
    experts: ExpertMemory = NO_EXPERTS
    static_inputs: int = 0
    free: int | None = None

    def buffers(self, rows: int, wanted: int) -> int:
        """Return the bytes of working memory for steps of up to ``rows`` rows, ``wanted`` with logits."""
        return max(self.row * rows, self.encoder) + self.logits * wanted + self.scratch


@runtime_checkable
class DeviceChecking(Protocol):
    """The further method of the factory of an executor whose ranks each need a device of their own."""

    def check_devices(self, names: Sequence[str]) -> None:
        """Check that the devices of all ranks can compute a model together.

        Raises:
            SettingsError: there are too few, or they differ.
        """
        ...


@runtime_checkable
class CapabilityChecking(Protocol):
    """The further method of the factory of an executor that does not run on all devices of a kind."""

    def check_capability(self, name: str) -> None:
        """Raise SettingsError for a device that is too old; a device that is not there is refused later."""
        ...


class ExecutorFactory(Protocol):
    """Packs canonical weights into the executor's own layout."""

    def memory(
        self, program: Program, weights: Weights, options: ExecutorOptions
    ) -> ExecutorMemory:
        """Return the memory that an executor made with these arguments will use; read no weight.

        Raises:
            SettingsError: as when the executor is made.
        """
        ...

    def __call__(self, program: Program, weights: Weights, options: ExecutorOptions) -> Executor:
        """Pack the weights, plan the memory and return the executor.

        Args:
            program: the program to run.
            weights: its tensors, as in the checkpoint.
            options: how to run it.

        Raises:
            SettingsError: the executor does not support the options.
        """
        ...

"""What an executor is: it runs a Program over a ragged batch against a paged KV cache."""

import importlib
import itertools
import logging
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt

from galley.errors import DISTRIBUTION, SettingsError, pip_install
from galley.formats.adapter import AdapterWeights
from galley.formats.reader import CheckpointReader
from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.ops.sampling import Logits, SamplingBatch, StepResult
from galley.types.model_info import StepCosts

log = logging.getLogger("galley.ops")

Ints = npt.NDArray[np.int64]
Attention = npt.NDArray[np.float32]
EncoderRows = npt.NDArray[np.float32]
Integers: TypeAlias = "array[int] | Ints"
"""64 bits each. In a decoding step a call of numpy would cost more than its work."""
Table: TypeAlias = Integers
"""KV blocks in order, perhaps more than are needed. The engine may change a table after the step."""


@dataclass(frozen=True, slots=True)
class CrossContext:
    """The encoder outputs that a step's sequences attend to, one for each sequence, all encoded before.

    Attributes:
        tables: for each sequence the KV blocks of its encoder output.
        rows: [sequences] how many rows each encoder output has.
    """

    tables: tuple[Table, ...]
    rows: Ints


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """Encoder inputs, ragged: input i owns frames ``starts[i]`` to ``starts[i + 1]``.

    Attributes:
        features: [frames, mels] log-mel.
        starts: [inputs + 1].
        tables: for each input the KV blocks for all rows that the encoder makes of it.
    """

    features: npt.NDArray[np.float32]
    starts: Ints
    tables: tuple[Table, ...]

    def __post_init__(self) -> None:
        assert len(self.features) == self.starts[-1]
        assert len(self.tables) == len(self.starts) - 1


class Batch(msgspec.Struct, frozen=True):
    """One step's work. Token rows are ragged: sequence s owns rows ``starts[s]`` to ``starts[s + 1]``.

    Attributes:
        tokens: [rows] token ids.
        positions: [rows] absolute positions; consecutive within a sequence.
        starts: [sequences + 1].
        tables: block tables by KV group, then by sequence: entry ``g * sequences + s`` has the KV blocks of
            positions 0 up to the last row of sequence s in the layers of group g. Blocks that have left a
            sliding window are named by some other block.
        wanted: [wanted] rows whose logits are wanted, ascending.
        cross: what the decoder of a speech model attends to; None for a text model.
        adapters: [sequences] the slot of each sequence's adapter, -1 for none; None: no sequence has one.
        copies: (from, to): KV blocks to copy in every layer, before all else.
        encode: encoder inputs of a speech model, which are encoded before the tokens are computed.
        align: sequences of which a speech model's alignment heads are wanted instead of logits. Their
            keys and values are written, but not in all layers.
        types: [rows] of the tokens; None: all 0.
        states: of a recurrent model, for each sequence the slot in which its state lies (-1: it begins,
            with zeros), then by turns how many of its rows are done and the slot in which to leave the
            state that it has then; the last of these is after all rows. A sequence may go on from a state
            that one before it in the batch leaves. None: sequence s has slot s for its own.
    """

    tokens: Integers
    positions: Integers
    starts: Integers
    tables: tuple[Table, ...]
    wanted: Integers
    cross: CrossContext | None = None
    adapters: "array[int] | Ints | None" = None
    copies: Sequence[tuple[int, int]] = ()
    encode: EncoderBatch | None = None
    align: "Batch | None" = None
    types: "Integers | None" = None
    states: tuple[Table, ...] | None = None

    def __post_init__(self) -> None:
        sequences = len(self.starts) - 1
        assert len(self.tokens) == len(self.positions) == self.starts[-1]
        assert self.types is None or len(self.types) == len(self.tokens)
        assert not sequences or len(self.tables) % sequences == 0
        assert self.cross is None or len(self.cross.tables) == sequences
        assert self.adapters is None or len(self.adapters) == sequences
        assert self.states is None or len(self.states) == sequences

    def state_slots(self) -> tuple[Table, ...]:
        """``states``, or what None stands for."""
        if self.states is not None:
            return self.states
        return tuple(
            array("q", [s if self.positions[begin] else -1, end - begin, s])
            for s, (begin, end) in enumerate(itertools.pairwise(self.starts))
        )


class ExpertMemory(NamedTuple):
    """What experts that stay on disk take.

    Attributes:
        experts: how many there are, over all layers.
        bytes: of all of them on disk.
        slot: bytes in memory of any of them, as many as of the largest.
        least: how many must be in memory at a time: those of a layer.
        token: bytes of the experts that one token goes to, at most.
    """

    experts: int = 0
    bytes: int = 0
    slot: int = 0
    least: int = 0
    token: int = 0

    @property
    def least_bytes(self) -> int:
        """Of those that must be in memory."""
        return self.least * self.slot

    def cache_bytes(self, wanted: int | None, left: int) -> int:
        """Memory for them, in whole slots: as ``wanted``, else half of the ``left`` bytes.

        Raises:
            SettingsError: the experts of a layer do not fit what is wanted.
        """
        if not self.experts:
            return 0
        if wanted is not None and wanted < self.least_bytes:
            raise SettingsError(
                f"expert_cache_bytes is {wanted}, but the experts of a layer, {self.least} of up to "
                f"{self.slot} bytes, must be in memory together: set it to at least {self.least_bytes}, "
                "or leave it out"
            )
        slots = (max(0, left) // 2 if wanted is None else wanted) // self.slot
        return min(self.experts, max(self.least, slots)) * self.slot


NO_EXPERTS: Final = ExpertMemory()


class ExpertCounts(NamedTuple):
    """Of experts on disk: ``bytes`` of memory for them; the others since the executor was made.

    A hit or miss is an expert that a step's rows chose in a layer, and that was in memory or was read.
    """

    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0


class Executor(Protocol):
    """Runs a program step by step, and keeps weights, keys, values and logits.

    Rows are independent: what comes of a row has the same bits whatever else is in the batch.
    """

    @property
    def activations(self) -> str:
        """What the inputs of linear layers are rounded to: "float32", "bfloat16", "float16" or "int8"."""
        ...

    @property
    def forward_seconds(self) -> float:
        """Seconds that steps have taken so far; the rest of a step is the engine's own."""
        ...

    @property
    def sample_seconds(self) -> float:
        """Of :attr:`forward_seconds`, what was spent on choosing tokens from logits."""
        ...

    @property
    def kv_groups(self) -> int:
        """How many block tables a sequence has; see :class:`galley.graph.program.KVGroup`."""
        ...

    def step_costs(self) -> StepCosts:
        """What a step reads and computes."""
        ...

    def expert_counts(self) -> ExpertCounts:
        """Of experts that stay on disk; zeros if they do not."""
        ...

    def kv_bytes_per_block(self) -> int:
        """Bytes of one KV block: BLOCK_TOKENS tokens or encoder rows in every layer of a KV group."""
        ...

    def bytes_per_state(self) -> int:
        """Bytes of what the recurrent layers keep for one sequence; 0 for a model without any."""
        ...

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Make room for ``blocks`` KV blocks and ``states`` states. Called once, before any step."""
        ...

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """A LoRA adapter as :meth:`set_adapter` takes it. Any thread may call it.

        Raises:
            UnsupportedModel: a value is beyond the type in which adapters are kept.
        """
        ...

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """From now on sequences whose slot this is have the adapter; None frees its memory.

        Not while a step runs.
        """
        ...

    def submit(self, batch: Batch, sampling: SamplingBatch) -> "Submitted":
        """Take a step: copy blocks, encode, align, compute the tokens' rows, and answer ``sampling``.

        It may run on after the call returns; steps run in the order in which they were submitted. Until
        its results are collected, the caller leaves the arrays of ``batch`` and ``sampling`` alone.

        In each layer all of the batch's keys and values are written before any are read: sequences may
        share blocks that the batch itself fills. Logits leave the executor only if ``sampling`` says so.
        """
        ...

    def collect(self, step: "Submitted") -> StepResult:
        """Wait for a step's results. Each step is collected once, in the order of submission.

        Raises:
            DamagedWeights: the packed weights are not what was written to disk.
        """
        ...


Submitted: TypeAlias = object
"""A step that an executor has taken: what :meth:`Executor.submit` returns and ``collect`` takes."""


class SynchronousExecutor(ABC):
    """What executors have in common that compute a step within the call: nothing is left to wait for."""

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
    """Compute one step and wait for it."""
    return executor.collect(executor.submit(batch, sampling))


_NONE: Final = np.zeros(0, dtype=np.int64)
NO_TOKENS: Final = Batch(_NONE, _NONE, np.zeros(1, dtype=np.int64), (), _NONE)
"""A batch without token rows."""


def forward(executor: Executor, batch: Batch) -> Logits:
    """The logits [wanted, vocab] themselves, valid until the next step: for measuring and comparing."""
    logits = execute(executor, batch, SamplingBatch(keep_logits=True)).logits
    assert logits is not None
    return logits


def encode(executor: Executor, inputs: EncoderBatch) -> None:
    """Encode and nothing else: fills the inputs' KV blocks for later steps to attend to."""
    execute(executor, msgspec.structs.replace(NO_TOKENS, encode=inputs), SamplingBatch())


def align(executor: Executor, batch: Batch) -> Attention:
    """Where the alignment heads look, [rows, heads, encoder rows], zeros beyond a sequence's own rows."""
    attention = execute(
        executor, msgspec.structs.replace(NO_TOKENS, align=batch), SamplingBatch()
    ).attention
    assert attention is not None
    return attention


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOptions:
    """How to run a program.

    Attributes:
        dtype: "float32" or "bfloat16"; the reference executor computes in it.
        quantize: what dense matrices become: "float32", "bf16", "f16", "int8" or
            "int4". Matrices that are
            integers in the checkpoint stay as they are.
        kinds: tensor name -> as ``quantize``, for dense matrices that become something else.
        kv_dtype: of keys and values in the cache: "float32", "bfloat16", "int8" or "int4".
        device: where to run.
        threads: to compute with.
        activations: what the inputs of linear layers become: "float32", "bfloat16", "int8", or "auto" for
            what is fastest with such weights.
        disable_pass: names of passes over the program (``graph/passes/``) that are left out.
        weight_cache: whose weights these are, to keep them on disk as the executor packs them; None keeps
            nothing.
        adapters: slots for LoRA adapters in memory; the program has ``lora`` ops if there are any.
        adapter_rank: the highest rank of an adapter.
        experts: "memory", or "disk": experts are read from the file of packed weights when they are chosen.
        expert_cache_bytes: memory for experts on disk; at least those of a layer are in memory at a time.
        pause: called often while a program runs, between two ops; it may wait, for others who want
            the cores.
    """

    dtype: str
    quantize: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorMemory:
    """Bytes that an executor will hold, known before it packs a weight.

    Attributes:
        isa: instruction set of its kernels; empty for an executor without kernels of its own.
        activations: what the inputs of linear layers become; see :attr:`Executor.activations`.
        kinds: of the matrices, for people.
        weights: in the executor's layout, but for experts on disk.
        kv_block: of one KV block, as :meth:`Executor.kv_bytes_per_block` will say.
        state: of the state of one sequence, as :meth:`Executor.bytes_per_state` will say.
        row: of buffers between ops, for each token of a step.
        logits: of a row of logits.
        encoder: of buffers for the longest encoder input; 0 for a text model.
        scratch: of the compute threads.
        adapters: of all slots for LoRA adapters, at the highest rank.
        experts: those that stay on disk; none by default.
        free: on a device with memory of its own; None where the executor uses the host's.
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
    free: int | None = None

    def buffers(self, rows: int, wanted: int) -> int:
        """Of working memory for steps of up to so many rows, of which so many have their logits wanted."""
        return max(self.row * rows, self.encoder) + self.logits * wanted + self.scratch


class ExecutorFactory(Protocol):
    """Packs canonical weights into the executor's own layout."""

    def memory(
        self, program: Program, weights: Weights, options: ExecutorOptions
    ) -> ExecutorMemory:
        """What the executor that is made with these arguments will hold; no weight is read.

        Raises:
            SettingsError: as for making it.
        """
        ...

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


class Entry(NamedTuple):
    """Where an executor is, the package that it stands on, and how to come by that."""

    module: str
    attribute: str
    needs: str
    remedy: str


EXECUTORS: Final[Mapping[str, Entry]] = {
    "cpu": Entry(
        "galley.ops.cpu",
        "CpuExecutor",
        "galley._native",
        f"install {DISTRIBUTION} from a wheel for this machine, or from source with a C++17 compiler",
    ),
    "gpu": Entry("galley.ops.triton.executor", "TritonExecutor", "triton", pip_install("gpu")),
    "reference": Entry("galley.ops.reference", "ReferenceExecutor", "torch", pip_install("torch")),
}
"""By name. A module is imported only when it is asked for."""


def executor_factory(name: str) -> ExecutorFactory:
    """Raises SettingsError if the name is unknown or what the executor needs cannot be imported."""
    if name not in EXECUTORS:
        raise SettingsError(f"executor {name!r} is unknown; known: {', '.join(EXECUTORS)}")
    entry = EXECUTORS[name]
    try:
        importlib.import_module(entry.needs)
    except ImportError as error:
        raise SettingsError(
            f"executor {name!r} needs {entry.needs}, which cannot be imported ({error}): "
            f"{entry.remedy}"
        ) from error
    loaded: Any = importlib.import_module(entry.module)
    return cast(ExecutorFactory, getattr(loaded, entry.attribute))


def choose_executor(name: str, device: str) -> tuple[str, ExecutorFactory]:
    """The executor that was asked for by name, or with "auto" the best for ``device``.

    Where the native one is missing, "auto" warns and takes the reference executor.

    Raises:
        SettingsError: what was asked for cannot be had, or nothing that runs on ``device``.
    """
    if name != "auto":
        return name, executor_factory(name)
    if device != "cpu":
        return "reference", executor_factory("reference")
    try:
        return "cpu", executor_factory("cpu")
    except SettingsError as native:
        try:
            factory = executor_factory("reference")
        except SettingsError as reference:
            raise SettingsError(f"no executor runs here. {native}. Or {reference}") from native
        log.warning(
            "%s. Until then the reference executor serves, which is many times slower", native
        )
        return "reference", factory

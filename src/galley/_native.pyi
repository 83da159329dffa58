"""The native executor (``native/bindings/``)."""

from array import array
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.int64] | array[int]

LOGITS: int
"""Offset of the slot that stands for the caller's logits array."""

Slot = tuple[int, int, int]
"""Offset in the arena of a one-row step, bytes from row to row, and bytes into each row."""

def supported_isas() -> list[str]:
    """Instruction sets of this CPU that there are kernels for, best first."""

LAYOUT_VERSION: int
"""Goes up when the packed layout changes, or how weights are rounded."""

class TooFewThreads(RuntimeError):
    """The system does not start as many threads as were asked for."""

LONGEST_GROUP: int
"""Weights that can share a scale: an int8 matrix is no wider."""

def top_k(row: npt.NDArray[np.float32], isa: str, ids: npt.NDArray[np.int64]) -> None:
    """Fill ``ids`` with those of the greatest, greatest first, equals by id."""

def sum_exp(row: npt.NDArray[np.float32], most: float, isa: str) -> float:
    """Return the sum of exp(x - most); ``most`` is finite and nothing is above it."""

def softmax_weights(
    row: npt.NDArray[np.float32],
    most: float,
    scale: float,
    isa: str,
    weights: npt.NDArray[np.int32],
) -> int:
    """Fill ``weights`` as ``ops/draws.py`` does; the sum of them."""

def read_rates(
    isa: str, threads: int, cpus: list[int], bytes: int, huge: bool, repeats: int
) -> list[float]:
    """Bytes a second that all threads read from memory, once for each repeat."""

def multiply_rates(
    isa: str, threads: int, cpus: list[int], kind: str, seconds: float, repeats: int
) -> list[float]:
    """Operations a second of the linear kernels' products in registers, once for each repeat."""

class Packed:
    """A weight matrix in the layout of the kernels (``native/kernels/kernels.hpp``).

    With ``memory`` it views the bytes of one that was packed before, and keeps them alive. With
    ``file_offset`` its bytes stay in a file, for an :class:`ExpertCache` to read.
    """

    def __init__(
        self,
        kind: str,
        outputs: int,
        depth: int,
        group: int = 0,
        scale_type: str = "F32",
        zeros: bool = False,
        minima: bool = False,
        memory: Bytes | None = None,
        file_offset: int | None = None,
    ) -> None: ...
    def fill(self, parts: Sequence[tuple[Bytes, str]], threads: int) -> int:
        """From tensors (bytes, type tag) whose rows are the outputs one after another.

        Integer kinds are rounded to nearest with the bits of ``galley.quant.rtn``. Returns the index
        of a tensor that holds a value which is not finite, so has no integer; else -1.
        """

    def fill_integer(
        self,
        q: Bytes,
        scales: Bytes,
        zeros: Bytes | None,
        threads: int,
        minima: Bytes | None = None,
        super_scales: Bytes | None = None,
        super_minima: Bytes | None = None,
    ) -> None:
        """From integers [outputs, depth]; scales, zero points and minima [outputs, groups].

        Of scale type "F16xI8" scales and minima are int8, and there is a float16 of each for 256 columns.
        """
    @property
    def memory(self) -> Bytes: ...
    @property
    def kind(self) -> str: ...
    @property
    def outputs(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def group(self) -> int:
        """Of an integer kind, columns that share a scale, rounded up."""

    @property
    def bytes(self) -> int: ...

def packed_bytes(
    kind: str,
    outputs: int,
    depth: int,
    group: int = 0,
    scale_type: str = "F32",
    zeros: bool = False,
    minima: bool = False,
) -> int:
    """Bytes of a :class:`Packed` made with these arguments, padding included."""

def kv_block_bytes(
    kv_heads: int, key_dim: int, value_dim: int, type: str, shared: bool = False
) -> int:
    """Bytes of one KV block in a layer that :meth:`Runtime.add_kv_layer` adds with these arguments."""

def joined(parts: Sequence[Packed]) -> list[Packed]:
    """Matrices of floats with the same values, which lie one after another in one piece of memory."""

class ExpertCache:
    """Experts whose matrices stay in a file: those used last are in memory, in slots of one size."""

    def __init__(self, file: int, slots: int, slot_bytes: int) -> None:
        """``file``: an open descriptor; another is made of it."""

    @property
    def slots(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def counts(self) -> tuple[int, int, int, int, float]:
        """Hits, misses, evictions, bytes read, and the seconds that reading took."""

class RankLost(RuntimeError):
    """Another rank ended, failed or did not answer in time."""

class Communicator:
    """One of several ranks that exchange rows through shared memory, which begins zeroed.

    Ranks on other machines have slots there, too; see :meth:`reach`.

    ``timeout``: milliseconds after which a rank that does not answer counts as lost.
    """

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        rank: int,
        ranks: int,
        slot_bytes: int,
        timeout: int,
    ) -> None: ...
    @staticmethod
    def bytes(ranks: int, slot_bytes: int) -> int:
        """Return the bytes of shared memory for this many ranks."""

    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    def gather(
        self,
        x: npt.NDArray[np.float32],
        ranks: Sequence[int],
        y: npt.NDArray[np.float32],
    ) -> None:
        """Write the columns of all ranks to ``y`` [rows, columns]; ``ranks``: columns of each."""

    def reach(self, elsewhere: Sequence[int], carrier: Callable[[int, int], bool | None]) -> None:
        """Reach these ranks through ``carrier(parity, bytes)`` from now on.

        It sends the first ``bytes`` of this rank's slot of the parity to them, and fills their slots. It
        returns soon, and is called again, until it returns True; None: a rank was lost.
        """

    @staticmethod
    def slot_at(ranks: int, slot_bytes: int, rank: int, parity: int) -> int:
        """Where a rank's slot of a parity begins in the shared memory."""

    def fail(self) -> None:
        """End all waits, of all ranks, with RankLost."""

    @property
    def failed(self) -> bool: ...

class InputLayout:
    """Rows of activations, ready to be multiplied with matrices of one kind, depth and group.

    ``inputs``: what the activations are rounded to, "bfloat16", or "int8" for integer matrices. ``step``:
    what all int8 inputs are multiples of; 0: each group of a row has a scale.
    """

    def __init__(
        self, kind: str, depth: int, group: int, inputs: str, step: float = 0.0
    ) -> None: ...
    @property
    def row_bytes(self) -> int: ...

class Runtime:
    """What the programs of a model share: kernels, threads, keys and values, working memory.

    With ``cpus`` (one for each thread) the threads are pinned, but for the caller's.
    """

    def __init__(self, isa: str, threads: int, cpus: list[int]) -> None: ...
    def add_kv_layer(
        self,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        type: str,
        group: int = 0,
        page: int | None = None,
        factors: list[float] = [],
        shared: bool = False,
    ) -> None:
        """Add a layer of a KV group; layers of different groups may share a ``page``, by default none do.

        ``factors``: by which int4 keys are divided and queries multiplied, [kv_heads * key_dim]; none: 1.
        ``shared``: values are the first columns of keys, whatever an op gives as values.

        Raises:
            ValueError: factors are not of int4 keys or not one a column, blocks of a page differ in size,
                or shared keys have fewer columns than the values.
        """

    def set_pause(self, pause: Callable[[], None]) -> None:
        """Call it between two ops, about once a millisecond. It may wait, and raise."""

    def kv_bytes_per_block(self, group: int = ...) -> int:
        """Bytes of a block; with ``group``, of the layers of that KV group alone."""

    def read_block(self, block: int, group: int, bytes: npt.NDArray[np.uint8]) -> None:
        """Copy a block of a KV group into ``bytes``, on any thread, if no step uses the block.

        Raises:
            IndexError: the block does not exist.
            ValueError: ``bytes`` has another size than such a block.
        """

    def write_block(self, block: int, group: int, bytes: npt.NDArray[np.uint8]) -> None:
        """Copy what :meth:`read_block` returned into a block, under the same conditions."""

    def add_state_layer(self, rows: int, width: int) -> None:
        """Add the state that a recurrent layer keeps of a sequence, [rows, width] floats."""

    def bytes_per_state(self) -> int:
        """Of all layers, padding included."""

    def allocate_kv(self, blocks: int, states: int = 0) -> None: ...
    def copy_block(self, from_: int, to: int) -> None:
        """Copy block ``from_`` in every layer. IndexError for one that does not exist."""

    def set_adapter(self, slot: int, module: int, a: Packed, b: Packed, scale: float) -> None:
        """Set what an adapter adds to a module of the programs' ``lora`` ops: scale * b (a x).

        ``a`` is [rank, depth] and ``b`` [outputs, rank], of floats of one kind.
        """

    def clear_adapter(self, slot: int) -> None:
        """Make a slot that adds nothing."""

    def draw(
        self,
        logits: npt.NDArray[np.float32],
        rows: Sequence[int],
        positions: Sequence[int],
        records: bytes,
    ) -> list[int]:
        """Draw the tokens that ``ops/draws.py`` specifies, on all threads."""

    @property
    def isa(self) -> str: ...

class Program:
    """A model as a list of ops over one arena; each op's method appends it."""

    def __init__(self, runtime: Runtime, arena_bytes: int, vocab_size: int) -> None: ...
    def embed(self, weight: Packed, y: Slot) -> None: ...
    def all_gather(
        self, communicator: Communicator, ranks: Sequence[int], leader_only: bool, x: Slot, y: Slot
    ) -> None:
        """``ranks``: columns of each rank."""

    def embed_part(
        self, weight: Packed, ranks: Sequence[int], communicator: Communicator, y: Slot
    ) -> None:
        """``ranks``: rows of the table that each rank has."""

    def quantize_input(self, layout: InputLayout, x: Slot, y: Slot) -> None: ...
    def linear(
        self,
        weight: Packed,
        bias: npt.NDArray[np.float32] | None,
        layout: InputLayout | None,
        x: Slot,
        y: Slot,
    ) -> None:
        """``layout``: of x; None for float32."""

    def lora(
        self,
        modules: Sequence[tuple[int, int, int]],
        depth: int,
        width: int,
        y: Slot,
        x: Slot,
        z: Slot,
    ) -> None:
        """``modules``: number, first column and columns of each layer in y; z is y's place."""

    def rms_norm(
        self,
        weight: npt.NDArray[np.float32],
        eps: float,
        width: int,
        layout: InputLayout | None,
        x: Slot,
        y: Slot,
    ) -> None: ...
    def add_rms_norm(
        self,
        weight: npt.NDArray[np.float32],
        eps: float,
        width: int,
        layout: InputLayout | None,
        a: Slot,
        b: Slot,
        sum: Slot,
        y: Slot,
    ) -> None: ...
    def layer_norm(
        self,
        weight: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32] | None,
        eps: float,
        head_dim: int,
        layout: InputLayout | None,
        x: Slot,
        y: Slot,
    ) -> None: ...
    def add_layer_norm(
        self,
        weight: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32] | None,
        eps: float,
        head_dim: int,
        layout: InputLayout | None,
        a: Slot,
        b: Slot,
        sum: Slot,
        y: Slot,
    ) -> None: ...
    def rope(
        self,
        inv_freq: list[float],
        scale: float,
        adjacent: bool,
        head_dim: int,
        width: int,
        x: Slot,
        y: Slot,
    ) -> None: ...
    def scale_queries_by_position(
        self, interval: int, factor: float, width: int, x: Slot, y: Slot
    ) -> None: ...
    def attention(
        self,
        sinks: npt.NDArray[np.float32] | None,
        layer: int,
        heads: int,
        scale: float,
        window: int,
        chunked: bool,
        cap: float,
        q: Slot,
        k: Slot,
        v: Slot,
        y: Slot,
    ) -> None: ...
    def rope_attention(
        self,
        inv_freq: list[float],
        rope_scale: float,
        adjacent: bool,
        sinks: npt.NDArray[np.float32] | None,
        layer: int,
        heads: int,
        scale: float,
        window: int,
        chunked: bool,
        cap: float,
        q: Slot,
        k: Slot,
        v: Slot,
        turned: Slot,
        y: Slot,
    ) -> None: ...
    def route(
        self,
        bias: npt.NDArray[np.float32] | None,
        experts: int,
        per_token: int,
        scores: str,
        normalize: bool,
        factor: float,
        groups: int,
        kept_groups: int,
        group_best: int,
        x: Slot,
        y: Slot,
    ) -> None: ...
    def experts(
        self,
        gate: Sequence[tuple[Packed, InputLayout | None]],
        up: Sequence[tuple[Packed, InputLayout | None]],
        down: Sequence[tuple[Packed, InputLayout | None]],
        gate_bias: npt.NDArray[np.float32] | None,
        up_bias: npt.NDArray[np.float32] | None,
        down_bias: npt.NDArray[np.float32] | None,
        per_token: int,
        alpha: float,
        limit: float,
        scaled_inputs: bool,
        ranks: Sequence[int],
        communicator: Communicator | None,
        cache: ExpertCache | None,
        work: Slot,
        x: Slot,
        routes: Slot,
        y: Slot,
    ) -> None:
        """Each expert's matrices, with what their inputs become; the biases one after another.

        With a ``cache`` all matrices stay in its file. ``ranks`` has how many outputs of gate and up each
        rank has; it is empty if there is only one.
        """

    def head_linear(
        self, weight: Sequence[tuple[Packed, InputLayout | None]], work: Slot, x: Slot, y: Slot
    ) -> None:
        """Each head's matrix, with what its inputs become."""

    def join_heads(self, heads: int, size: int, width: int, a: Slot, b: Slot, y: Slot) -> None: ...
    def sigmoid_scale(self, width: int, x: Slot, gate: Slot, y: Slot) -> None: ...
    def silu_mul(
        self, width: int, layout: InputLayout | None, a: Slot, b: Slot, y: Slot
    ) -> None: ...
    def gelu_tanh_mul(
        self, width: int, layout: InputLayout | None, a: Slot, b: Slot, y: Slot
    ) -> None: ...
    def gelu_mul(
        self, width: int, layout: InputLayout | None, a: Slot, b: Slot, y: Slot
    ) -> None: ...
    def sigmoid_mul(
        self, width: int, layout: InputLayout | None, a: Slot, b: Slot, y: Slot
    ) -> None: ...
    def scale(
        self, number: float, width: int, layout: InputLayout | None, x: Slot, y: Slot
    ) -> None: ...
    def soft_cap(
        self, number: float, width: int, layout: InputLayout | None, x: Slot, y: Slot
    ) -> None: ...
    def gelu_tanh(self, width: int, layout: InputLayout | None, x: Slot, y: Slot) -> None: ...
    def gelu(self, width: int, layout: InputLayout | None, x: Slot, y: Slot) -> None: ...
    def add(self, width: int, layout: InputLayout | None, a: Slot, b: Slot, y: Slot) -> None: ...
    def select_rows(self, width: int, x: Slot, y: Slot) -> None: ...
    def head_columns(
        self, start: int, size: int, stride: int, width: int, x: Slot, y: Slot
    ) -> None: ...
    def features(self, mels: int, y: Slot) -> None: ...
    def encoder_rows(self, width: int, x: Slot) -> None: ...
    def im2col(self, width: int, size: int, stride: int, x: Slot, y: Slot) -> None: ...
    def embed_positions(
        self, weight: npt.NDArray[np.float32], first: int, width: int, y: Slot
    ) -> None: ...
    def embed_types(self, weight: npt.NDArray[np.float32], width: int, y: Slot) -> None: ...
    def encoder_attention(
        self,
        heads: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        scale: float,
        before: int,
        after: int,
        exact: bool,
        q: Slot,
        k: Slot,
        v: Slot,
        y: Slot,
    ) -> None:
        """``exact``: products of float32; else of bfloat16, two at a time."""

    def causal_conv(
        self,
        weight: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32] | None,
        state: int,
        size: int,
        width: int,
        x: Slot,
        y: Slot,
    ) -> None: ...
    def ssm(
        self,
        a_log: npt.NDArray[np.float32],
        dt_bias: npt.NDArray[np.float32],
        skip: npt.NDArray[np.float32],
        state: int,
        heads: int,
        groups: int,
        x: Slot,
        b: Slot,
        c: Slot,
        dt: Slot,
        y: Slot,
    ) -> None: ...
    def delta_rule(
        self,
        a_log: npt.NDArray[np.float32],
        dt_bias: npt.NDArray[np.float32],
        state: int,
        heads: int,
        groups: int,
        q: Slot,
        k: Slot,
        v: Slot,
        a: Slot,
        b: Slot,
        y: Slot,
    ) -> None: ...
    def cross_kv(self, layer: int, k: Slot, v: Slot) -> None: ...
    def cross_attention(self, layer: int, heads: int, scale: float, q: Slot, y: Slot) -> None: ...
    def cross_weights(
        self, layer: int, heads: int, chosen: Sequence[int], first: int, scale: float, q: Slot
    ) -> None: ...
    def forward(
        self,
        tokens: Ids,
        positions: Ids,
        starts: Ids,
        tables: Ids,
        table_starts: Ids,
        wanted: Ids,
        logits: npt.NDArray[np.float32],
        cross: tuple[Ids, Ids, Ids] | None = None,
        adapters: Ids | None = None,
        types: Ids | None = None,
        states: tuple[Ids, Ids] | None = None,
    ) -> None:
        """One step of sequences.

        ``cross``: the KV blocks of the sequences' encoder outputs, where each begins, and how many rows
        each has. ``adapters``: the slot of each sequence's adapter, -1 for none. ``types``: of the tokens;
        None: all 0. ``states``: of all sequences, one after another, where each's state is and goes
        (:attr:`galley.ops.batch.Batch.states`), and where each begins.
        """

    def align(
        self,
        tokens: Ids,
        positions: Ids,
        starts: Ids,
        tables: Ids,
        table_starts: Ids,
        attention: npt.NDArray[np.float32],
        cross: tuple[Ids, Ids, Ids],
    ) -> None:
        """One step of sequences through a program with ``cross_weights``.

        ``attention``: [rows, heads, most rows of an encoder output], filled as far as each one goes.
        """

    def encode(
        self,
        frames: npt.NDArray[np.float32],
        starts: npt.NDArray[np.int64],
        tables: Ids,
        table_starts: Ids,
        given: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Run encoder inputs through a program that begins with ``features``.

        ``given``: [rows of all outputs, width], filled by ``encoder_rows``.
        """

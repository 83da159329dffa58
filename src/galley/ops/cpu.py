"""The native executor: a whole program in one call of ``galley._native``. No GIL, no torch."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from galley import _native
from galley.errors import SettingsError
from galley.formats.weights import Weights
from galley.graph.plan import Lifetime, plan_arena
from galley.graph.program import Op, Program
from galley.ops.executor import Batch, ExecutorOptions, Logits
from galley.ops.packing import Matrices
from galley.quant.weights import to_float32

ISA_VARIABLE: Final = "GALLEY_CPU_ISA"
_ROW_ALIGNMENT: Final = 64
"""Bytes; rows begin on a cache line."""
_IN_PLACE: Final = frozenset({"rms_norm", "rope", "silu_mul", "add"})
"""Steps that may write where they read."""


class CpuExecutor:
    """See :class:`galley.ops.executor.Executor`.

    Between ops, rows are float32. A linear layer rounds its input to what its weights want: bfloat16 for
    ``bf16``, int8 with one scale a row for ``int8`` and ``int4``. Keys and values are kept in ``dtype``.
    """

    def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
        if options.device != "cpu":
            raise SettingsError(
                f"device is {options.device!r}, but executor 'cpu' runs on 'cpu' alone"
            )
        threads = options.threads
        lowered = lower(program, weights, Matrices(weights, options.quantize))
        slots, arena_bytes = lowered.slots(program.vocab_size)
        self._vocab_size = program.vocab_size
        self._native = _native.Program(
            choose_isa(os.environ), threads, _cpus(threads), arena_bytes, program.vocab_size
        )
        for kv in program.kv:
            self._native.add_kv_layer(kv.kv_heads, kv.head_dim, options.dtype == "bfloat16")
        for write, step in enumerate(lowered.steps):
            buffers = [slots[b] for b in (*step.reads, write)]
            getattr(self._native, step.name)(*step.arguments, *buffers)

    @property
    def isa(self) -> str:
        """Which set of kernels runs."""
        return self._native.isa

    def kv_bytes_per_block(self) -> int:
        """Bytes over all layers, padding included."""
        return self._native.kv_bytes_per_block()

    def free_device_memory(self) -> int | None:
        """None: keys and values are in the host's memory."""
        return None

    def allocate_kv(self, blocks: int) -> None:
        """Zeroed, so pages are only touched when they are used."""
        self._native.allocate_kv(blocks)

    def forward(self, batch: Batch) -> Logits:
        """See :meth:`galley.ops.executor.Executor.forward`.

        Raises:
            ValueError: the batch contradicts itself or names blocks that do not exist.
        """
        logits = np.empty((len(batch.wanted), self._vocab_size), dtype=np.float32)
        table_starts = np.zeros(len(batch.tables) + 1, dtype=np.int64)
        np.cumsum([len(table) for table in batch.tables], out=table_starts[1:])
        self._native.forward(
            batch.tokens,
            batch.positions,
            batch.starts,
            np.concatenate(batch.tables),
            table_starts,
            batch.wanted,
            logits,
        )
        return logits


def choose_isa(environ: Mapping[str, str]) -> str:
    """The best instruction set of this CPU, or the one that GALLEY_CPU_ISA names.

    Raises:
        SettingsError: the named one is unknown, or this CPU lacks it.
    """
    supported = _native.supported_isas()
    wanted = environ.get(ISA_VARIABLE) or supported[0]
    if wanted not in supported:
        raise SettingsError(
            f"{ISA_VARIABLE}: {wanted!r} is unknown or missing from this CPU, "
            f"which supports {', '.join(supported)}"
        )
    return wanted


def _cpus(threads: int) -> list[int]:
    """Where to pin the threads: nowhere if there are more cores, which another process may want."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus if len(cpus) == threads else []


@dataclass(frozen=True, slots=True)
class NativeStep:
    """A method of ``_native.Program`` and what to call it with. Step i writes buffer i."""

    name: str
    arguments: tuple[Any, ...]
    reads: tuple[int, ...]


@dataclass(slots=True)
class Lowered:
    """The program in native steps. ``row_bytes``: one entry for each buffer; the last is the logits."""

    steps: list[NativeStep] = field(default_factory=list)
    row_bytes: list[int] = field(default_factory=list)

    def emit(
        self, name: str, arguments: tuple[Any, ...], reads: tuple[int, ...], row_bytes: int
    ) -> int:
        """Append a step; returns the buffer it writes."""
        self.row_bytes.append(-(-row_bytes // _ROW_ALIGNMENT) * _ROW_ALIGNMENT)
        self.steps.append(NativeStep(name, arguments, reads))
        return len(self.steps) - 1

    def slots(self, vocab_size: int) -> tuple[list[tuple[int, int]], int]:
        """Offset and row bytes of each buffer, and the bytes of the arena, all for one row."""
        plan = plan_arena(self.lifetimes())
        slots = [
            (plan.offsets[owner], size)
            for owner, size in zip(self._owners(), self.row_bytes, strict=True)
        ]
        slots[-1] = (_native.LOGITS, 4 * vocab_size)
        return slots, plan.size

    def lifetimes(self) -> list[Lifetime]:
        """Of each buffer's row, in steps; what lies in another's room or with the caller has no size."""
        owners, last_use = self._owners(), self._last_use()
        sizes = [
            size if owner == i else 0
            for i, (owner, size) in enumerate(zip(owners, self.row_bytes, strict=True))
        ]
        sizes[-1] = 0
        last = list(range(len(owners)))
        for i, owner in enumerate(owners):
            last[owner] = max(last[owner], last_use.get(i, i))
        return [Lifetime(size, i, last[i]) for i, size in enumerate(sizes)]

    def _last_use(self) -> dict[int, int]:
        return {b: i for i, step in enumerate(self.steps) for b in step.reads}

    def _owners(self) -> list[int]:
        """For each buffer the one whose room it takes: its input's, when that is not needed again."""
        last_use = self._last_use()
        owners = list(range(len(self.steps)))
        for i, step in enumerate(self.steps[:-1]):
            if step.name in _IN_PLACE:
                free = (b for b in step.reads if last_use[b] == i and self._fits(b, i))
                owners[i] = owners[next(free, i)]
        return owners

    def _fits(self, a: int, b: int) -> bool:
        return self.row_bytes[a] == self.row_bytes[b]


def lower(program: Program, weights: Weights, matrices: Matrices) -> Lowered:
    """Turn the program's ops into native steps, one or two for each; ``matrices`` packs the weights."""
    lowered = Lowered()
    buffers: dict[int, int] = {}
    prepared: dict[tuple[int, int], int] = {}

    def input_of(weight: _native.Packed, x: int) -> int:
        """``x`` as ``weight`` wants it; layers that read the same buffer share it."""
        if matrices.kind == "float32":
            return x
        # Of one kind and depth, so one layout: the same executor quantises all matrices alike.
        key = (x, weight.activation_bytes)
        if key not in prepared:
            prepared[key] = lowered.emit("prepare", (weight,), (x,), weight.activation_bytes)
        return prepared[key]

    for op in program.ops:
        reads = tuple(buffers[b] for b in op.inputs)
        arguments: tuple[Any, ...]
        if op.name == "linear":
            weight = matrices.packed(op.weights["weight"])
            arguments = (weight, _vector(weights, op.weights.get("bias")))
            reads = (input_of(weight, reads[0]),)
        elif op.name == "embed":
            arguments = (matrices.packed(op.weights["weight"]),)
        else:
            arguments = _arguments(op, weights)
        buffers[op.output] = lowered.emit(op.name, arguments, reads, 4 * op.width)
    return lowered


def _arguments(op: Op, weights: Weights) -> tuple[Any, ...]:
    a = op.attrs
    if op.name == "rms_norm":
        return (_vector(weights, op.weights["weight"]), a["eps"], op.width)
    if op.name == "rope":
        return (list(a["inv_freq"]), a["scale"], op.width)
    if op.name == "attention":
        return (a["layer"], a["heads"], a["scale"], a["window"])
    return (op.width,)


def _vector(weights: Weights, name: str | None) -> Any:
    return None if name is None else np.array(to_float32(weights[name]))

"""The native executor: a whole program in one call of ``galley._native``. No GIL, no torch."""

import os
import time
from array import array
from collections.abc import Collection, Sequence

import numpy as np

from galley import _native
from galley.errors import SettingsError
from galley.formats.weights import Kinds, Weights, flat
from galley.graph.passes import run_passes
from galley.graph.program import Program
from galley.graph.quantize_inputs import quantize_inputs
from galley.ops.draws import Draws
from galley.ops.executor import Attention, Batch, EncoderBatch, ExecutorOptions, Logits, Table
from galley.ops.isa import choose_isa, cpus_to_pin, naming
from galley.ops.kinds import main_activations, own_kinds, plan_activations, plan_kinds
from galley.ops.lowering import Cost, Lowered, lower, weight_bytes
from galley.ops.packing import Matrices, check_kind
from galley.ops.weight_cache import WeightCache
from galley.types import BLOCK_TOKENS, StepCosts


class CpuExecutor:
    """See :class:`galley.ops.executor.Executor`.

    Between ops, rows are float32. A linear layer rounds its input to ``activations``: by itself bfloat16
    for ``bf16`` weights (AMX, AVX-512) and int8 with one scale a row for ``int8`` and ``int4``. Keys and
    values are kept in ``kv_dtype``, int8 ones with one scale for each token and head.
    """

    cost: Cost
    """Of the program as it runs, after the passes."""

    def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
        if options.device != "cpu":
            raise SettingsError(
                f"device is {options.device!r}, but executor 'cpu' runs on 'cpu' alone"
            )
        isa = choose_isa(os.environ)
        kinds = plan_kinds(
            program, options.quantize, own=own_kinds(program, weights), chosen=options.kinds
        )
        for name, kind in kinds.items():
            check_kind(name, kind, flat(program.all_shapes[name])[1])
        program = program.with_kinds(kinds)
        activations = plan_activations(kinds, options.quantize, options.activations, isa)
        self.activations = main_activations(program, activations)
        cache = None
        if options.weight_cache is not None:
            cache = WeightCache(options.weight_cache, options.quantize)
        matrices = Matrices(weights, kinds, threads=options.threads, cache=cache)

        def lowered(traced: Program) -> Lowered:
            return lower(run_passes(quantize_inputs(traced, activations), options.disable_pass))

        decoder = lowered(program)
        with naming(options.threads):
            self._runtime = _native.Runtime(isa, options.threads, cpus_to_pin(options.threads))
            for kv in program.kv:
                self._runtime.add_kv_layer(kv.kv_heads, kv.key_dim, kv.value_dim, options.kv_dtype)
            self._decoder = decoder.built(self._runtime, matrices, program.vocab_size)
            self._encoder, self._aligner = (
                None if traced is None else lowered(traced).built(self._runtime, matrices, 0)
                for traced in (program.encoder, program.aligner)
            )
        matrices.keep()
        self.cost = decoder.cost()
        self._vocab_size = program.vocab_size
        self._logits = np.empty((0, program.vocab_size), dtype=np.float32)
        self._operations = decoder.program.operations()
        self.forward_seconds = 0.0
        if options.pause is not None:
            self._runtime.set_pause(options.pause)
        self._attention_shape = (0, 0)
        if program.encoder is not None and program.aligner is not None:
            rows = program.encoder.max_rows
            self._attention_shape = (program.aligner.aligned_heads, rows)

    @property
    def isa(self) -> str:
        """Which set of kernels runs."""
        return self._runtime.isa

    def step_costs(self) -> StepCosts:
        """See :meth:`galley.ops.executor.Executor.step_costs`."""
        return StepCosts(
            weight_bytes=self.cost.weight_bytes,
            kv_bytes_per_token=self.kv_bytes_per_block() // BLOCK_TOKENS,
            row_operations=self._operations[0],
            logit_operations=self._operations[1],
        )

    def kv_bytes_per_block(self) -> int:
        """Bytes over all layers, padding included."""
        return self._runtime.kv_bytes_per_block()

    def free_device_memory(self) -> int | None:
        """None: keys and values are in the host's memory."""
        return None

    def allocate_kv(self, blocks: int) -> None:
        """Zeroed, so pages are only touched when they are used."""
        self._runtime.allocate_kv(blocks)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """See :meth:`galley.ops.executor.Executor.copy_blocks`."""
        for source, target in copies:
            self._runtime.copy_block(source, target)

    def encode(self, windows: EncoderBatch) -> None:
        """See :meth:`galley.ops.executor.Executor.encode`.

        Raises:
            ValueError: the windows contradict themselves or name blocks that do not exist.
        """
        assert self._encoder is not None, "a text model has no encoder"
        began = time.perf_counter()
        self._encoder.encode(windows.features, windows.starts, *_joined(windows.tables))
        self.forward_seconds += time.perf_counter() - began

    def align(self, batch: Batch) -> Attention:
        """See :meth:`galley.ops.executor.Executor.align`. Raises as :meth:`forward`."""
        assert self._aligner is not None, "the model has no heads to align by"
        assert batch.cross is not None
        attention = np.zeros((len(batch.tokens), *self._attention_shape), dtype=np.float32)
        cross = (*_joined(batch.cross.tables), batch.cross.rows)
        began = time.perf_counter()
        self._aligner.align(
            batch.tokens, batch.positions, batch.starts, *_joined(batch.tables), attention, cross
        )
        self.forward_seconds += time.perf_counter() - began
        return attention

    def forward(self, batch: Batch) -> Logits:
        """See :meth:`galley.ops.executor.Executor.forward`.

        Raises:
            ValueError: the batch contradicts itself or names blocks that do not exist.
        """
        if len(self._logits) < len(batch.wanted):
            self._logits = np.empty((len(batch.wanted), self._vocab_size), dtype=np.float32)
        logits = self._logits[: len(batch.wanted)]
        tables = _joined(batch.tables)
        cross = None if batch.cross is None else (*_joined(batch.cross.tables), batch.cross.rows)
        began = time.perf_counter()
        self._decoder.forward(
            batch.tokens, batch.positions, batch.starts, *tables, batch.wanted, logits, cross
        )
        self.forward_seconds += time.perf_counter() - began
        return logits

    def choose(self, logits: Logits, draws: Draws) -> list[int]:
        """See :meth:`galley.ops.executor.Executor.choose`."""
        began = time.perf_counter()
        tokens = self._runtime.choose(logits, draws.rows, draws.positions, draws.how)
        self.forward_seconds += time.perf_counter() - began
        return tokens


def _joined(tables: Sequence[Table]) -> "tuple[array[int], array[int]]":
    """All tables one after another, and where each begins."""
    blocks, starts = array("q"), array("q", [0])
    for table in tables:
        blocks.extend(table)
        starts.append(len(blocks))
    return blocks, starts


def planned_step_costs(
    program: Program, kinds: Kinds, *, kv_dtype: str, disable_pass: Collection[str] = ()
) -> StepCosts:
    """What :meth:`CpuExecutor.step_costs` will say, before any weight is read.

    Args:
        program: as traced.
        kinds: of its matrices; see :func:`galley.ops.kinds.plan_kinds`.
        kv_dtype: of keys and values in the cache: "float32", "bfloat16" or "int8".
        disable_pass: names of passes that are left out.
    """
    runs = run_passes(program.with_kinds(kinds), disable_pass)
    row_operations, logit_operations = runs.operations()
    block_bytes = sum(
        _native.kv_block_bytes(kv.kv_heads, kv.key_dim, kv.value_dim, kv_dtype) for kv in program.kv
    )
    return StepCosts(
        weight_bytes=weight_bytes(runs),
        kv_bytes_per_token=block_bytes // BLOCK_TOKENS,
        row_operations=row_operations,
        logit_operations=logit_operations,
    )

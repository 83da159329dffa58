"""The native executor: a whole program in one call of ``galley._native``. No GIL, no torch."""

import os
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from galley import _native
from galley.errors import SettingsError
from galley.formats.weights import Weights
from galley.graph.passes import run_passes
from galley.graph.prepare import prepare_inputs
from galley.graph.program import Program
from galley.ops.draws import Draws
from galley.ops.executor import Attention, Batch, EncoderBatch, ExecutorOptions, Logits, Table
from galley.ops.isa import choose_isa, cpus_to_pin, naming
from galley.ops.lowering import Cost, lower
from galley.ops.packing import Matrices
from galley.ops.weight_cache import WeightCache
from galley.types import BLOCK_TOKENS, StepCosts

_ACTIVATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "float32": ("float32",),
    "bf16": ("bfloat16", "float32"),
    "int8": ("int8", "bfloat16", "float32"),
    "int4": ("int8", "bfloat16", "float32"),
}
"""Kind of the weights -> what they are multiplied with, first what some instruction set is fastest with."""

_MULTIPLY_BF16: Final = frozenset({"amx", "avx512"})


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
        self.activations = choose_activations(options.quantize, options.activations, isa)
        cache = None
        if options.weight_cache is not None:
            cache = WeightCache(options.weight_cache, options.quantize)
        matrices = Matrices(weights, options.quantize, threads=options.threads, cache=cache)

        def rewritten(traced: Program) -> Program:
            return run_passes(prepare_inputs(traced, self.activations), options.disable_pass)

        runs = rewritten(program)
        with naming(options.threads):
            decoder = lower(runs, weights, matrices, self.activations)
            encoder, aligner = (
                None
                if traced is None
                else lower(rewritten(traced), weights, matrices, self.activations)
                for traced in (program.encoder, program.aligner)
            )
            self._runtime = _native.Runtime(isa, options.threads, cpus_to_pin(options.threads))
        matrices.keep()
        self.cost = decoder.cost()
        self._vocab_size = program.vocab_size
        self._logits = np.empty((0, program.vocab_size), dtype=np.float32)
        self._operations = runs.operations()
        self.forward_seconds = 0.0
        if options.pause is not None:
            self._runtime.set_pause(options.pause)
        for kv in program.kv:
            self._runtime.add_kv_layer(kv.kv_heads, kv.key_dim, kv.value_dim, options.kv_dtype)
        self._decoder = decoder.built(self._runtime, program.vocab_size)
        self._encoder, self._aligner = (
            None if lowered is None else lowered.built(self._runtime, 0)
            for lowered in (encoder, aligner)
        )
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


def _takers(activations: str) -> str:
    return " or ".join(kind for kind, choices in _ACTIVATIONS.items() if activations in choices)


def choose_activations(quantize: str, wanted: str, isa: str) -> str:
    """What the inputs of linear layers become: as ``wanted``, or with "auto" what ``isa`` is fastest with.

    Raises:
        SettingsError: there is no product of these with weights that are ``quantize``.
    """
    choices = _ACTIVATIONS[quantize]
    if wanted == "auto":
        # Where no instruction multiplies bfloat16, it is widened first, and rounding to it wasted.
        widens = choices[0] == "bfloat16" and isa not in _MULTIPLY_BF16
        return "float32" if widens else choices[0]
    if wanted not in choices:
        raise SettingsError(
            f"activations is {wanted!r}, but executor 'cpu' multiplies weights that are {quantize!r} "
            f"with {' or '.join(choices)} alone: leave it out, or set quantize to {_takers(wanted)}"
        )
    return wanted

"""The native executor: runs a whole program in one call into ``galley._native``, without GIL or torch."""

import time
from typing import Final, TypeAlias, cast

import numpy as np

from galley import _native
from galley.formats.adapter import AdapterWeights
from galley.formats.weights import Weights
from galley.graph.program import Program
from galley.ops.batch import Batch, EncoderBatch, EncoderRows, join_tables
from galley.ops.converted import log_converted
from galley.ops.cpu_plan import (
    CpuPlan,
    adapter_bytes,
    adapter_kind,
    kv_bytes_per_block,
    kv_bytes_per_token,
    pages_of,
    state_bytes,
)
from galley.ops.draws import NO_TOKEN, Draws
from galley.ops.executor import (
    NO_EXPERTS,
    Attention,
    Bytes,
    ExecutorMemory,
    ExecutorOptions,
    ExpertCounts,
    SynchronousExecutor,
)
from galley.ops.isa import cpus_to_pin, naming
from galley.ops.key_factors import key_factors
from galley.ops.lowering import (
    Cost,
    expert_costs,
    expert_matrices,
    expert_memory,
    held_bytes,
    matrix_bytes,
)
from galley.ops.packed_files import Key, Names
from galley.ops.packing import Matrices, pack
from galley.ops.sampling import Logits, SamplingBatch, StepResult, sample
from galley.ops.weight_cache import WeightCache
from galley.types.model_info import StepCosts

SCRATCH_BYTES: Final = 2 << 20
"""Bytes per thread, for linear-layer inputs while they are rounded, and for attention scores."""


_PackedFactors: TypeAlias = tuple[int, _native.Packed, _native.Packed, float]
"""The number of a module, its two factors and their scale."""


class CpuExecutor(SynchronousExecutor):
    """See :class:`galley.ops.executor.Executor`.

    Between ops, rows are float32. A linear layer rounds its input to ``activations``: by default to
    bfloat16 for ``bf16`` weights (AMX, AVX-512), and to int8, with a scale per row and group of columns,
    for ``int8`` and ``int4``. Keys and values are kept in ``kv_dtype``: int8 with one scale for each token
    and head, int4 with a scale and a minimum, where keys are first divided by factors of their columns
    (``ops/key_factors.py``). If some columns of the keys are also the values, these columns and the others
    each have their own scale (and minimum).
    """

    cost: Cost
    """Cost of the program as it runs, after the passes."""

    def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
        plan = CpuPlan.of(program, weights, options)
        program, decoder = plan.program, plan.decoder
        self.activations = plan.activations
        log_converted(program, weights)
        matrices, cache = _matrices(plan, weights, options)
        with naming(options.threads):
            self._runtime = _native.Runtime(plan.isa, options.threads, cpus_to_pin(options.threads))
            factors = key_factors(program, weights) if options.kv_dtype == "int4" else None
            for layer, (kv, group, page) in enumerate(pages_of(program)):
                self._runtime.add_kv_layer(
                    kv.kv_heads,
                    kv.key_dim,
                    kv.value_dim,
                    options.kv_dtype,
                    group,
                    page,
                    factors[layer].reshape(-1).tolist() if factors else [],
                    kv.shared,
                )
            for state in program.states:
                self._runtime.add_state_layer(state.rows, state.width)
            communicator = cast("_native.Communicator | None", options.communicator)
            self._decoder = decoder.built(self._runtime, matrices, program.vocab_size, communicator)
            self._encoder, self._aligner = (
                None if lowered is None else lowered.built(self._runtime, matrices, 0)
                for lowered in (plan.encoder, plan.aligner)
            )
        matrices.keep()
        self._expert_cache = matrices.expert_cache
        self._check = None if cache is None else cache.check
        if self._check is not None:
            self._check.wait()
        self.cost = decoder.cost()
        self._vocab_size = program.vocab_size
        self._modules = {name: number for number, name in enumerate(program.adapted)}
        self._adapter_kind = adapter_kind(options.weight_dtype)
        self.kv_groups = len(program.kv_groups)
        self._recurs = bool(program.states)
        self._kv_bytes_per_token = kv_bytes_per_token(program, options.kv_dtype)
        self._logits = np.empty((0, program.vocab_size), dtype=np.float32)
        self._operations = decoder.program.operations()
        self._experts = expert_costs(decoder.program)
        self.forward_seconds = self.sample_seconds = 0.0
        if options.pause is not None:
            self._runtime.set_pause(options.pause)
        encoder = program.encoder
        self._given = encoder if encoder is not None and encoder.given_width else None
        self._attention_shape = (0, 0)
        if program.encoder is not None and program.aligner is not None:
            rows = program.encoder.max_rows
            self._attention_shape = (program.aligner.aligned_heads, rows)

    @staticmethod
    def memory(program: Program, weights: Weights, options: ExecutorOptions) -> ExecutorMemory:
        """See :meth:`galley.ops.executor.ExecutorFactory.memory`."""
        plan = CpuPlan.of(program, weights, options)
        experts = NO_EXPERTS
        if options.experts == "disk":
            experts = expert_memory(plan.decoder.program)
        encoder = 0
        if plan.encoder is not None:
            encoder = plan.encoder.cost().arena_bytes * plan.encoder.program.max_positions
        return ExecutorMemory(
            isa=plan.isa,
            activations=plan.activations,
            kinds=plan.kinds,
            weights=held_bytes(plan.programs) - experts.bytes,
            kv_block=kv_bytes_per_block(plan.program, options.kv_dtype),
            row=plan.decoder.cost().arena_bytes,
            logits=4 * program.vocab_size,
            encoder=encoder,
            scratch=SCRATCH_BYTES * options.threads,
            adapters=options.adapters * adapter_bytes(plan.program, options),
            state=state_bytes(program),
            experts=experts,
            static_inputs=plan.static_inputs,
        )

    @property
    def isa(self) -> str:
        """The instruction set of the kernels that run."""
        return self._runtime.isa

    def step_costs(self) -> StepCosts:
        """See :meth:`galley.ops.executor.Executor.step_costs`."""
        return StepCosts(
            weight_bytes=self.cost.weight_bytes,
            kv_bytes_per_token=self._kv_bytes_per_token,
            row_operations=self._operations[0],
            logit_operations=self._operations[1],
            experts=self._experts,
        )

    def expert_counts(self) -> ExpertCounts:
        """See :meth:`galley.ops.executor.Executor.expert_counts`."""
        cache = self._expert_cache
        return ExpertCounts() if cache is None else ExpertCounts(cache.bytes, *cache.counts())

    def kv_bytes_per_block(self) -> int:
        """Return the bytes of a page for each layer of a KV group, including padding."""
        return self._runtime.kv_bytes_per_block()

    def bytes_per_state(self) -> int:
        """Return the bytes of state over all recurrent layers, including padding."""
        return self._runtime.bytes_per_state()

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Allocate zeroed memory, whose pages are only touched when they are used."""
        self._runtime.allocate_kv(blocks, states)

    def block_bytes(self, group: int) -> int:
        """See :class:`galley.ops.executor.BlockAccess`."""
        return self._runtime.kv_bytes_per_block(group)

    def read_block(self, block: int, group: int) -> Bytes:
        """See :class:`galley.ops.executor.BlockAccess`."""
        data = np.empty(self.block_bytes(group), dtype=np.uint8)
        self._runtime.read_block(block, group, data)
        return data

    def write_block(self, block: int, group: int, data: Bytes) -> None:
        """See :class:`galley.ops.executor.BlockAccess`."""
        self._runtime.write_block(block, group, data)

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """See :meth:`galley.ops.executor.Executor.pack_adapter`."""
        kind = self._adapter_kind
        order = sorted(adapter, key=self._modules.__getitem__)
        factors = [pack([part], kind) for name in order for part in adapter[name][:2]]
        joined = iter(_native.joined(factors))
        return [
            (self._modules[name], next(joined), next(joined), adapter[name].scale) for name in order
        ]

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """See :meth:`galley.ops.executor.Executor.set_adapter`."""
        self._runtime.clear_adapter(slot)
        for module, a, b, scale in cast(list[_PackedFactors], packed or []):
            self._runtime.set_adapter(slot, module, a, b, scale)

    def execute(self, batch: Batch, sampling: SamplingBatch) -> StepResult:
        """See :meth:`galley.ops.executor.Executor.submit`.

        Raises:
            ValueError: the batch contradicts itself or names blocks that do not exist.
            DamagedWeights: the packed weights differ from those written to disk.
        """
        if self._check is not None:
            self._check.raise_if_damaged()
        began = time.perf_counter()
        for source, target in batch.copies:
            self._runtime.copy_block(source, target)
        encoded = None if batch.encode is None else self._encode(batch.encode)
        attention = None if batch.align is None else self._align(batch.align)
        result = StepResult()
        if len(batch.tokens):
            logits = self._forward(batch)
            sampled = time.perf_counter()
            result = sample(logits, sampling, self._draw)
            self.sample_seconds += time.perf_counter() - sampled
            if NO_TOKEN in result.tokens and np.isnan(logits).any():
                result.nan_logits = True
                self.check_weights()
        result.attention, result.encoded = attention, encoded
        self.forward_seconds += time.perf_counter() - began
        return result

    def check_weights(self) -> None:
        """See :class:`galley.ops.executor.WeightChecking`."""
        if self._check is not None:
            self._check.check_again()

    def _encode(self, inputs: EncoderBatch) -> EncoderRows | None:
        assert self._encoder is not None, "only speech models have an encoder"
        given: EncoderRows | None = None
        if self._given is not None:
            rows = sum(map(self._given.rows_of, np.diff(inputs.starts).tolist()))
            given = np.empty((rows, self._given.given_width), dtype=np.float32)
        self._encoder.encode(inputs.features, inputs.starts, *join_tables(inputs.tables), given)
        return given

    def _align(self, batch: Batch) -> Attention:
        assert self._aligner is not None, "the model has no alignment heads"
        assert batch.cross is not None
        attention = np.zeros((len(batch.tokens), *self._attention_shape), dtype=np.float32)
        cross = (*join_tables(batch.cross.tables), batch.cross.rows)
        self._aligner.align(
            batch.tokens,
            batch.positions,
            batch.starts,
            *join_tables(batch.tables),
            attention,
            cross,
        )
        return attention

    def _forward(self, batch: Batch) -> Logits:
        if len(self._logits) < len(batch.wanted):
            self._logits = np.empty((len(batch.wanted), self._vocab_size), dtype=np.float32)
        logits = self._logits[: len(batch.wanted)]
        cross = (
            None if batch.cross is None else (*join_tables(batch.cross.tables), batch.cross.rows)
        )
        self._decoder.forward(
            batch.tokens,
            batch.positions,
            batch.starts,
            *join_tables(batch.tables),
            batch.wanted,
            logits,
            cross,
            batch.adapters,
            batch.types,
            join_tables(batch.state_slots()) if self._recurs else None,
        )
        return logits

    def _draw(self, logits: Logits, draws: Draws) -> list[int]:
        return self._runtime.draw(logits, draws.rows, draws.positions, draws.records)


def _matrices(
    plan: CpuPlan, weights: Weights, options: ExecutorOptions
) -> tuple[Matrices, WeightCache | None]:
    """Return the model's packed matrices, and the cache in which they are kept on disk, or None."""
    experts, kinds = expert_matrices(plan.decoder.program), plan.program.kinds
    on_disk = experts if options.experts == "disk" else frozenset[Names]()
    cache = None
    if options.weight_cache is not None:
        apart = frozenset(Key(names, str(kinds[names[0]])) for names in on_disk)
        kept_as = options.weight_dtype
        if options.communicator is not None:
            kept_as = f"{kept_as}-{options.rank + 1}of{options.ranks}"
        cache = WeightCache(options.weight_cache, kept_as, apart)
    matrices = Matrices(weights, kinds, threads=options.threads, cache=cache, experts=experts)
    if on_disk:
        memory = expert_memory(plan.decoder.program)
        slots = max(memory.least, options.expert_cache_bytes // memory.slot)
        sizes = matrix_bytes(plan.programs)
        matrices.keep_experts_on_disk(sizes, slots=slots, slot_bytes=memory.slot)
    return matrices, cache

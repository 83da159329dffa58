"""The reference executor: torch, op by op, on any device. All other executors are tested against it.

Every op gets rows in tiles of one fixed shape, which makes their bits independent of the batch; see
``ops/tiles.py``.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np
import torch

from galley.errors import SettingsError, UnsupportedModel
from galley.formats.adapter import AdapterWeights
from galley.formats.values import dequantize
from galley.formats.weights import (
    BlockWeight,
    DenseWeight,
    IntWeight,
    SmallFloats,
    Weight,
    WeightKind,
    Weights,
)
from galley.graph.program import Program
from galley.ops.batch import Batch, EncoderBatch, EncoderRows
from galley.ops.draws import draw_all
from galley.ops.executor import (
    Attention,
    Bytes,
    ExecutorMemory,
    ExecutorOptions,
    ExpertCounts,
    SynchronousExecutor,
)
from galley.ops.kinds import kinds_text, own_kinds, plan_kinds
from galley.ops.reference_kv import ROUNDINGS, KVRounding
from galley.ops.reference_ops import Factors, ReferenceOps
from galley.ops.reference_ranks import Communicator
from galley.ops.reference_step import Step, places_in
from galley.ops.sampling import Logits, SamplingBatch, StepResult, sample
from galley.ops.tiles import Tiles
from galley.quant.rtn import QUANTIZERS, not_finite
from galley.types import BLOCK_TOKENS
from galley.types.model_info import ExpertCosts, StepCosts

_TORCH_TYPES: Final[Mapping[str, torch.dtype]] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
}
_HALVES: Final[Mapping[str, torch.dtype]] = {"bf16": torch.bfloat16, "f16": torch.float16}


class ReferenceExecutor(ReferenceOps, SynchronousExecutor):
    """See :class:`galley.ops.executor.Executor`.

    Norms, softmax and rotation are computed in float32 for every ``dtype``; products in ``dtype``. Matrices
    are rounded to ``weight_dtype`` and kept in ``dtype``, as are keys and values if ``kv_dtype`` is int8 or
    int4; activations are not rounded.
    """

    def __init__(self, program: Program, weights: Weights, options: ExecutorOptions) -> None:
        if options.weight_dtype == "float32" != options.dtype:
            raise SettingsError(
                f"weight_dtype is 'float32', but the reference executor keeps weights in dtype, "
                f"which is {options.dtype!r}; leave weight_dtype out, or use executor 'cpu'"
            )
        if options.activations not in ("auto", options.dtype):
            raise SettingsError(
                f"activations is {options.activations!r}, but the reference executor computes in "
                f"dtype, which is {options.dtype!r}; leave it out, or use executor 'cpu'"
            )
        if options.experts != "memory":
            raise SettingsError(
                f"experts is {options.experts!r}, but the reference executor keeps them in memory; leave "
                "it out, or use executor 'cpu'"
            )
        if options.disable_pass:
            raise SettingsError(
                f"disable_pass is {', '.join(options.disable_pass)}, but the reference executor "
                "runs no passes; leave it out, or use executor 'cpu'"
            )
        if options.kv_dtype not in (options.dtype, *ROUNDINGS):
            raise SettingsError(
                f"kv_dtype is {options.kv_dtype!r}, but the reference executor keeps keys and values "
                f"in dtype, which is {options.dtype!r}, or rounds them to {' or '.join(ROUNDINGS)}; "
                "leave it out, or use executor 'cpu'"
            )
        self.activations = options.dtype
        self._program = program
        self.kv_groups = len(program.kv_groups)
        self._pause = options.pause
        self._communicator = cast(Communicator | None, options.communicator)
        torch.set_num_threads(options.threads)
        super().__init__(_TORCH_TYPES[options.dtype], _device(options.device), program.kv)
        kinds = plan_kinds(
            program, options.weight_dtype, own=own_kinds(program, weights), chosen=options.kinds
        )
        self._weights = {
            name: self._load(weights[name], kinds.get(name))
            for name in program.all_shapes
            if name in weights  # of one of several ranks, some shapes are those of adapters alone
        }
        self._kv_rounding = KVRounding.of(options.kv_dtype, program, weights, self._device)
        self._adapters = [{} for _ in range(options.adapters)]
        self.forward_seconds = self.sample_seconds = 0.0

    @staticmethod
    def memory(program: Program, weights: Weights, options: ExecutorOptions) -> ExecutorMemory:
        """See :meth:`galley.ops.executor.ExecutorFactory.memory`."""
        size = _TORCH_TYPES[options.dtype].itemsize
        programs = [p for p in (program, program.encoder, program.aligner) if p is not None]
        # The inputs and outputs of an op, and float32 copies of the values that it computes with.
        rows = [
            max(8 * (sum(widths[b] for b in op.inputs) + sum(op.widths)) for op in traced.ops)
            for traced, widths in ((p, p.widths()) for p in programs)
        ]
        return ExecutorMemory(
            isa="",
            activations=options.dtype,
            kinds=kinds_text(
                program, plan_kinds(program, options.weight_dtype, own=own_kinds(program, weights))
            ),
            weights=size * sum(map(math.prod, program.all_shapes.values())),
            kv_block=BLOCK_TOKENS * program.kv_bytes_per_token(size),
            row=rows[0],
            logits=4 * program.vocab_size,
            encoder=0 if program.encoder is None else rows[1] * program.encoder.max_positions,
            scratch=0,
            adapters=size
            * options.adapters
            * options.adapter_rank
            * sum(sum(program.shapes[name]) for name in program.adapted),
            state=state_bytes(program),
            free=_free_memory(_device(options.device)),
        )

    def _load(self, weight: Weight, kind: WeightKind | None) -> torch.Tensor:
        """Return the tensor's values; those of a matrix are rounded to its ``kind``."""
        if isinstance(weight, BlockWeight | SmallFloats):
            raise UnsupportedModel(
                f"tensor {weight.name} is kept as {weight.kind}, which executor 'reference' cannot read"
            )
        if isinstance(weight, DenseWeight) and kind is not None and kind.name in QUANTIZERS:
            weight = QUANTIZERS[kind.name](weight)
        if isinstance(weight, IntWeight):
            values = torch.from_numpy(dequantize(weight))
        else:
            raw = torch.from_numpy(np.array(weight.data)).view(_TORCH_TYPES[weight.dtype])
            values = raw.reshape(weight.shape)
        if kind is not None and kind.name in _HALVES:
            halves = values.to(_HALVES[kind.name])
            if kind.name == "f16" and not torch.equal(halves.isinf(), values.isinf()):
                raise not_finite(weight)
            values = halves
        return values.to(self._device, self._dtype).contiguous()

    def expert_counts(self) -> ExpertCounts:
        """See :meth:`galley.ops.executor.Executor.expert_counts`."""
        return ExpertCounts()

    def step_costs(self) -> StepCosts:
        """See :meth:`galley.ops.executor.Executor.step_costs`."""
        read: dict[tuple[str, ...], int] = {}
        experts = [0, 0]
        for op in self._program.ops:
            for role in op.signature.matrices if op.signature.multiplies else ():
                names = op.weights[role]
                whole = sum(self._weights[name].nbytes for name in names)
                read[names] = op.for_a_row(whole)
                if op.signature.routed:
                    experts = [experts[0] + whole, experts[1] + read[names]]
        row_operations, logit_operations = self._program.operations()
        return StepCosts(
            weight_bytes=sum(read.values()),
            kv_bytes_per_token=self.kv_bytes_per_block() // BLOCK_TOKENS,
            row_operations=row_operations,
            logit_operations=logit_operations,
            experts=ExpertCosts(experts[0], experts[1] / max(1, experts[0])),
        )

    def kv_bytes_per_block(self) -> int:
        """Return the bytes of a block over all layers."""
        return BLOCK_TOKENS * self._program.kv_bytes_per_token(self._dtype.itemsize)

    def bytes_per_state(self) -> int:
        """Return the bytes of state over all recurrent layers."""
        return state_bytes(self._program)

    def allocate_kv(self, blocks: int, states: int = 0) -> None:
        """Allocate zeroed memory, whose pages are only touched when they are used."""
        self._states = [
            torch.zeros((states, state.rows, state.width), device=self._device)
            for state in self._program.states
        ]
        self._group_of = {
            layer: g for g, group in enumerate(self._program.kv_groups) for layer in group.layers
        }

        def room(heads: int, dim: int) -> torch.Tensor:
            shape = (blocks, BLOCK_TOKENS, heads, dim)
            return torch.zeros(shape, dtype=self._dtype, device=self._device)

        for kv in self._program.kv:
            keys = room(kv.kv_heads, kv.key_dim)
            shown = keys[..., : kv.value_dim]
            self._keys.append(keys)
            self._values.append(shown if kv.shared else room(kv.kv_heads, kv.value_dim))

    def block_bytes(self, group: int) -> int:
        """See :class:`galley.ops.executor.BlockAccess`."""
        layers = self._program.kv_groups[group].layers
        elements = sum(self._program.kv[layer].elements for layer in layers)
        return BLOCK_TOKENS * elements * self._dtype.itemsize

    def read_block(self, block: int, group: int) -> Bytes:
        """See :class:`galley.ops.executor.BlockAccess`."""
        parts = [part[block].cpu().contiguous() for part in self._parts(group)]
        return np.concatenate([part.view(torch.uint8).numpy().reshape(-1) for part in parts])

    def write_block(self, block: int, group: int, data: Bytes) -> None:
        """See :class:`galley.ops.executor.BlockAccess`."""
        for part in self._parts(group):
            size = part[block].nbytes
            own = torch.from_numpy(data[:size].copy()).view(part.dtype)
            part[block] = own.reshape(part[block].shape).to(self._device)
            data = data[size:]

    def _parts(self, group: int) -> list[torch.Tensor]:
        """Return keys and values [blocks, tokens, heads, columns] of the group's layers."""
        return [
            part
            for layer in self._program.kv_groups[group].layers
            for part in (
                (self._keys[layer],)
                if self._program.kv[layer].shared
                else (self._keys[layer], self._values[layer])
            )
        ]

    def pack_adapter(self, adapter: AdapterWeights) -> object:
        """See :meth:`galley.ops.executor.Executor.pack_adapter`."""
        return {
            self._program.adapted.index(name): (
                self._load(own.a, None),
                self._load(own.b, None),
                own.scale,
            )
            for name, own in adapter.items()
        }

    def set_adapter(self, slot: int, packed: object | None) -> None:
        """See :meth:`galley.ops.executor.Executor.set_adapter`."""
        self._adapters[slot] = cast(dict[int, Factors], packed or {})

    @torch.inference_mode()
    def execute(self, batch: Batch, sampling: SamplingBatch) -> StepResult:
        """See :meth:`galley.ops.executor.Executor.submit`."""
        began = time.perf_counter()
        if batch.copies:
            self._copy_blocks(batch.copies)
        encoded = None if batch.encode is None else self._encode(batch.encode)
        attention = None if batch.align is None else self._align(batch.align)
        result = StepResult()
        if len(batch.tokens):
            logits = self._forward(batch)
            sampled = time.perf_counter()
            result = sample(logits, sampling, draw_all)
            self.sample_seconds += time.perf_counter() - sampled
        result.attention, result.encoded = attention, encoded
        self.forward_seconds += time.perf_counter() - began
        return result

    def _copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        sources, targets = (list(blocks) for blocks in zip(*copies, strict=True))
        for cache in (*self._keys, *self._values):
            cache[targets] = cache[sources]

    def _encode(self, inputs: EncoderBatch) -> EncoderRows | None:
        assert self._program.encoder is not None
        step = self._begin(inputs, inputs.starts, places_in(np.diff(inputs.starts)))
        self._run(self._program.encoder, step)
        return None if step.given is None else step.given.to("cpu", torch.float32).numpy()

    def _forward(self, batch: Batch) -> Logits:
        step = self._begin(batch, batch.starts, batch.positions)
        tiles = self._run(self._program, step)
        logits = step.layout.gather(tiles) if tiles else torch.empty(0, self._program.vocab_size)
        result: Logits = logits.to("cpu", torch.float32).numpy()
        return result

    def _align(self, batch: Batch) -> Attention:
        assert self._program.aligner is not None
        assert self._program.encoder is not None
        encoder, heads = self._program.encoder, self._program.aligner.aligned_heads
        step = self._begin(batch, batch.starts, batch.positions)
        step.attention = torch.zeros(
            (len(batch.tokens), heads, encoder.max_rows), device=self._device
        )
        self._run(self._program.aligner, step)
        result: Attention = step.attention.cpu().numpy()
        return result

    def _run(self, program: Program, step: Step) -> Tiles:
        """Return the output of the last op; no tiles if it has none, or no row of it is requested."""
        last_use = {b: i for i, op in enumerate(program.ops) for b in op.inputs}
        buffers: dict[int, Tiles] = {}
        for i, op in enumerate(program.ops):
            if self._pause is not None:
                self._pause()
            result = self._run_op(op, step, [buffers[b] for b in op.inputs])
            buffers.update(dict.fromkeys(op.outputs, result))
            if op.name == "select_rows" and not result:
                return []
            for b in op.inputs:
                if last_use[b] == i:
                    buffers.pop(b, None)
        return result


def state_bytes(program: Program) -> int:
    """Return the bytes of the float32 states of all recurrent layers for one sequence."""
    return 4 * sum(state.rows * state.width for state in program.states)


def _free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a CUDA device; None for other devices."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"cannot use device {name!r}: {error}") from error
    return device

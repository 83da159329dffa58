"""The native kernels and executor piece by piece, and a torch reference with the same rounding."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import linear

from galley import _native
from galley.engine.loaders import load_engine
from galley.formats.checkpoint import Checkpoint
from galley.formats.values import bf16_bits, dequantize, to_float32
from galley.formats.weights import DenseWeight, LoadedWeights, Weight
from galley.graph.adapters import with_adapters
from galley.graph.program import Op, Program
from galley.graph.quantize_inputs import quantize_inputs
from galley.models.registry import build_program
from galley.models.speech import read_speech, with_aligner
from galley.ops.batch import Batch
from galley.ops.executor import Executor, ExecutorOptions
from galley.ops.isa import choose_isa
from galley.ops.kinds import plan_activations, plan_kinds
from galley.ops.packing import pack
from galley.ops.reference import ReferenceExecutor
from galley.ops.reference_kv import round_int4
from galley.ops.reference_step import Step
from galley.ops.tiles import Tiles
from galley.quant.int8_inputs import dynamic_int8, input_group
from galley.quant.rtn import QUANTIZERS, rounded_kind
from galley.settings.engine import Activations, DType, EngineSettings, KVType, WeightDType
from galley.types import BLOCK_TOKENS

Floats = npt.NDArray[np.float32]
ISAS: Final = _native.supported_isas()
KINDS: Final[tuple[WeightDType, ...]] = ("float32", "bf16", "f16", "int8", "int4")
LAYERS: Final[tuple[tuple[WeightDType, Activations], ...]] = (
    ("float32", "float32"),
    ("bf16", "bfloat16"),
    ("f16", "float32"),
    ("int8", "int8"),
    ("int4", "int8"),
    ("bf16", "float32"),
    ("int8", "bfloat16"),
    ("int8", "float32"),
    ("int4", "bfloat16"),
    ("int4", "float32"),
)
"""Weights and the types of their inputs: every kind of linear layer."""
EVERY_ISA: Final = ("llama-mqa-odd", "mistral-window", "gemma2", "qwen3")
"""Variants with everything that differs between instruction sets; others compare these by kernel."""
KV_TYPES: Final[tuple[KVType, ...]] = ("float32", "bfloat16", "int8", "int4")


def aligned(size: int) -> npt.NDArray[np.uint8]:
    """Return zeroed memory that begins at a cache line."""
    memory = np.zeros(size + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + size]


def as_weight(values: Floats) -> DenseWeight:
    data = np.ascontiguousarray(values, dtype=np.float32)
    return DenseWeight("w", "F32", values.shape, data.reshape(-1).view(np.uint8))


def round_bf16(values: Floats) -> Floats:
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32).reshape(values.shape)


def round_f16(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def rounded_queries(queries: Floats, scale: float, isa: str) -> Floats:
    """Round queries as attention with bfloat16 products does: AMX's are scaled first."""
    if isa != "amx":
        return round_bf16(queries)
    rounded: Floats = round_bf16(queries * np.float32(scale)) / np.float32(scale)
    return rounded


def input_layout(
    weight: _native.Packed, activations: str, step: float = 0.0
) -> _native.InputLayout:
    return _native.InputLayout(weight.kind, weight.depth, weight.group, activations, step)


def pack_as(kind: str, *parts: DenseWeight, threads: int = 1) -> _native.Packed:
    """Round dense tensors as the setting ``weight_dtype`` does."""
    return pack(parts, rounded_kind(kind, parts[0].shape[1]), threads=threads)


def quantized(program: Program, weight_dtype: str, activations: str) -> Program:
    """Return the program with kinds and quantized inputs, as the native executor's passes receive it."""
    kinds = plan_kinds(program, weight_dtype)
    inputs = plan_activations(kinds, weight_dtype, activations, isa="portable")
    return quantize_inputs(program.with_kinds(kinds), inputs)


def run_linear(
    x: Floats,
    weight: _native.Packed,
    outputs: int,
    *,
    isa: str,
    activations: str,
    bias: Floats | None = None,
    threads: int = 1,
    step: float = 0.0,
) -> Floats:
    """Run one linear layer; its input rows come from an exact float32 embedding.

    ``x`` may be wider than the layer is deep. The space for prepared rows is filled with NaNs.
    """
    rows, columns = x.shape
    table = _native.Packed("float32", rows, columns)
    table.fill([(as_weight(x).data, "F32")], threads=1)
    width = -(-4 * columns // 64) * 64
    runtime = _native.Runtime(isa, threads, [])
    layout = None if activations == "float32" else input_layout(weight, activations, step)
    prepared = layout.row_bytes if layout else 0
    program = _native.Program(runtime, width + prepared, outputs)
    program.embed(table, (0, width, 0))
    source = (0, width, 0)
    if layout:
        source = (width, prepared, 0)
        stale = _native.Packed("float32", rows, prepared // 4)
        stale.fill([(as_weight(np.full((rows, prepared // 4), np.nan)).data, "F32")], threads=1)
        program.embed(stale, source)
        program.quantize_input(layout, (0, width, 0), source)
    program.linear(weight, bias, layout, source, (_native.LOGITS, 4 * outputs, 0))
    return run_rows(runtime, program, rows, outputs)


def run_rows(runtime: _native.Runtime, program: _native.Program, rows: int, width: int) -> Floats:
    """Run the program, where token r of one sequence is row r; all rows are wanted. There is no cache."""
    out = np.full((rows, width), np.nan, dtype=np.float32)
    at = np.arange(rows)
    program.forward(at, at, np.array([0, rows]), at[:0], np.zeros(1, np.int64), at, out)
    return out


def run_embed(weight: _native.Packed, rows: int, depth: int, *, isa: str) -> Floats:
    """Return the first ``rows`` rows of an embedding, selected into the result."""
    width = -(-4 * depth // 64) * 64
    runtime = _native.Runtime(isa, 1, [])
    program = _native.Program(runtime, width, depth)
    program.embed(weight, (0, width, 0))
    program.select_rows(depth, (0, width, 0), (_native.LOGITS, 4 * depth, 0))
    return run_rows(runtime, program, rows, depth)


def program_of(folder: Path) -> Program:
    """Return the program as an engine runs it, with its encoder and its aligner."""
    checkpoint = Checkpoint.open(folder)
    program = build_program(checkpoint.config)
    speech = read_speech(checkpoint.config, checkpoint.generation, program)
    return program if speech is None else with_aligner(program, checkpoint.config, speech)


def cpu_executor(
    folder: Path,
    weight_dtype: WeightDType,
    *,
    dtype: DType = "float32",
    activations: Activations = "auto",
    kv_dtype: KVType = "auto",
    threads: int = 1,
) -> Executor:
    """Return an executor, whose kernels GALLEY_CPU_ISA selects."""
    settings = EngineSettings(
        model=str(folder),
        dtype=dtype,
        activations=activations,
        kv_dtype=kv_dtype,
        executor="cpu",
        weight_dtype=weight_dtype,
        kv_cache_tokens=4096,
        threads=threads,
        speculation="off",  # step times are only measured for speculation
    )
    return load_engine(settings, folder)._executor


class RoundingExecutor(ReferenceExecutor):
    """The reference executor with rounded inputs of linear layers.

    Keys and values are rounded too, head by head, as ``kv_dtype`` does, and queries as attention on ``isa``
    rounds them for bfloat16; so are the inputs of windows' attention, unless activations are float32.
    """

    rounding: Callable[[torch.Tensor], torch.Tensor]
    routing: Callable[[torch.Tensor], torch.Tensor]
    """Rounding of the inputs of routers, whose matrices have a separate kind."""
    kv_rounding: Callable[[torch.Tensor], torch.Tensor]
    window_rounding: Callable[[torch.Tensor], torch.Tensor]
    isa: str = ""

    def _attention(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        q, *kv = inputs
        stretches = self._layouts[op.attrs["layer"]].stretches, (op.attrs["value_dim"],)
        rounded = [
            [round_stretches(self.kv_rounding, tile, columns) for tile in tiles]
            for tiles, columns in zip(kv, stretches, strict=True)
        ]
        if self.isa == "amx" and self.kv_rounding is ROUNDING["bfloat16"]:
            scale = op.attrs["scale"]
            q = [torch.from_numpy(rounded_queries(tile.numpy(), scale, self.isa)) for tile in q]
        return super()._attention(op, step, [q, *rounded])

    def _encoder_attention(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        rounded = [[self.window_rounding(tile) for tile in tiles] for tiles in inputs]
        return super()._encoder_attention(op, step, rounded)

    def _multiply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        routers = (self._weights[name] for name in self._program.routers)
        routes = any(weight is router for router in routers)
        return linear((self.routing if routes else self.rounding)(x), weight, bias)


def round_stretches(
    rounding: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor, columns: Sequence[int]
) -> torch.Tensor:
    """Round rows of heads in groups of columns within a head."""
    parts = torch.split(rows.view(-1, sum(columns)), list(columns), dim=-1)
    return torch.cat([rounding(part) for part in parts], dim=-1).view(rows.shape)


def round_int8(x: torch.Tensor) -> torch.Tensor:
    most = x.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)
    return torch.round(x * (127 / most)) * (most / 127)


ROUNDING: Final[Mapping[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "float32": lambda x: x,
    "bfloat16": lambda x: x.bfloat16().float(),
    "int8": round_int8,
    "int4": round_int4,
}


def input_rounding(activations: str, weight_dtype: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the rounding of linear layers' inputs to int8, in groups that fit ``weight_dtype``."""

    def grouped(x: torch.Tensor) -> torch.Tensor:
        depth = x.shape[1]
        columns = input_group(rounded_kind(weight_dtype, depth), depth)
        return torch.from_numpy(dynamic_int8(x.numpy(), columns))

    return grouped if activations == "int8" else ROUNDING[activations]


_DEQUANTIZED: Final[Mapping[str, Callable[[DenseWeight], Floats]]] = {
    "float32": to_float32,
    "bf16": lambda w: round_bf16(to_float32(w)),
    "f16": lambda w: round_f16(to_float32(w)),
}


def dequantized(weight: Weight, weight_dtype: str) -> DenseWeight:
    """Return a dense tensor rounded by ``weight_dtype``, as float32."""
    assert isinstance(weight, DenseWeight)
    if weight_dtype in QUANTIZERS:
        values = dequantize(QUANTIZERS[weight_dtype](weight))
    else:
        values = _DEQUANTIZED[weight_dtype](weight)
    return dataclasses.replace(as_weight(values), name=weight.name)


def rounding_executor(
    folder: Path,
    weight_dtype: WeightDType,
    *,
    activations: str = "float32",
    kv_dtype: KVType = "float32",
    isa: str = "",
    adapters: int = 0,
) -> RoundingExecutor:
    """Return torch's executor on the dequantized weights, with 256 KV blocks, 8 states and adapters.

    ``activations``: type of the rounded inputs of linear layers; unless it is float32, windows'
    queries, keys and values are rounded to bfloat16.
    """
    checkpoint = Checkpoint.open(folder)
    program = program_of(folder)
    kinds = plan_kinds(program, weight_dtype)
    program = with_adapters(program) if adapters else program
    weights = LoadedWeights(
        {
            name: dequantized(weight, kinds[name].name) if name in kinds else weight
            for name, weight in program.take_weights(checkpoint.weights(), folder="").items()
        }
    )
    executor = RoundingExecutor(
        program,
        weights,
        ExecutorOptions(
            dtype="float32",
            weight_dtype="float32",
            kv_dtype="float32",
            device="cpu",
            threads=1,
            adapters=adapters,
        ),
    )
    executor.rounding = input_rounding(activations, weight_dtype)
    routers = {name: kinds[name] for name in program.routers}
    planned = plan_activations(kinds, weight_dtype, activations, choose_isa(os.environ))
    executor.routing = ROUNDING[
        next((planned[kind.name] for kind in routers.values()), activations)
    ]
    executor.kv_rounding = ROUNDING[kv_dtype]
    executor.isa = isa
    executor.window_rounding = ROUNDING["float32" if activations == "float32" else "bfloat16"]
    executor.allocate_kv(256, states=8)
    return executor


def ragged(sequences: list[tuple[list[int], int]], *, first_block: int, groups: int = 1) -> Batch:
    """Return a batch that computes the last ``count`` tokens of each sequence, all rows wanted.

    Args:
        sequences: (all token ids, count).
        first_block: sequences use whole blocks from here on, first all those of one KV group.
        groups: KV groups of the model.
    """
    tokens: list[int] = []
    positions: list[int] = []
    starts, tables = [0], []
    for ids, count in sequences:
        tokens += ids[len(ids) - count :]
        positions += range(len(ids) - count, len(ids))
        starts.append(len(tokens))
        blocks = -(-len(ids) // BLOCK_TOKENS)
        tables.append(np.arange(first_block, first_block + blocks))
        first_block += blocks
    own = sum(map(len, tables))
    return Batch(
        tokens=np.array(tokens),
        positions=np.array(positions),
        starts=np.array(starts),
        tables=tuple(table + own * g for g in range(groups) for table in tables),
        wanted=np.arange(len(tokens)),
    )


def softmax(logits: Floats) -> Any:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)

"""A model's bytes and operations at one precision, from its program alone."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Self

from galley.engine.memory import LEAST_STATES, LEAST_TOKENS
from galley.errors import SettingsError
from galley.formats.weights import Kinds, WeightKind, flat
from galley.graph.passes import run_passes
from galley.graph.program import Program
from galley.graph.quantize_inputs import quantize_inputs
from galley.ops.cpu_plan import kv_bytes_of_layer, state_bytes
from galley.ops.executor import NO_EXPERTS, ExpertMemory
from galley.ops.kinds import plan_activations, plan_kinds
from galley.ops.lowering import expert_costs, expert_memory, held_bytes, lower, weight_bytes
from galley.ops.triton.supported import has_kernels
from galley.settings.engine import Experts
from galley.types import BLOCK_TOKENS, blocks_for
from galley.types.model_info import ExpertCosts
from galley.types.weight_dtypes import WEIGHT_DTYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The sizes of one model, with its weights and its KV cache in given types.

    Attributes:
        precision: of the weights, one of :data:`WEIGHT_DTYPES`.
        parameters: numbers in the checkpoint.
        weights: bytes held in memory, without experts that are on disk.
        step_weights: bytes of them that a step of one row reads; for an embedding that is a row.
        experts: experts, of which further rows read more.
        on_disk: the experts that are on disk; none where they are in memory.
        kv: window (0: none) -> bytes of keys and values of a token, over the layers with that window. A
            chunk counts as a window of its size here and below, which is the most that it can be.
        kv_layers: layers with keys and values.
        state: bytes of the recurrent layers' state of a sequence, whatever its length.
        row_operations, logit_operations: of linear layers, for each token, and in addition for each one
            whose logits are wanted.
        attention: window -> operations of attention for each token and each token of its context.
        spans: where texts are computed whole, (tokens seen before a token, after it, operations for each
            that it sees) of each kind of layer; -1: all tokens.
        row_bytes: memory for the buffers between the ops, for each token of a step.
        logit_bytes: memory for the logits of a token.
        exchanged: bytes of a token that processors which share matrices exchange: partial sums, or with
            ``ranks`` whole rows.
        exchanges: how many times in a step they do.
        max_positions: the longest context, in tokens.
        ranks: processes of a machine that compute the model together; weights, KV, operations and buffers
            are those of all.
        gpu_kernels: whether executor "gpu" has kernels for all ops of the model.
    """

    precision: str
    parameters: int
    weights: int
    step_weights: int
    experts: ExpertCosts
    on_disk: ExpertMemory
    kv: dict[int, int]
    kv_layers: int
    state: int
    row_operations: int
    logit_operations: int
    attention: dict[int, int]
    spans: tuple[tuple[int, int, int], ...]
    row_bytes: int
    logit_bytes: int
    exchanged: int
    exchanges: int
    max_positions: int
    ranks: int = 1
    gpu_kernels: bool = False

    @classmethod
    def of(
        cls,
        program: Program,
        precision: str,
        kv_dtype: str,
        isa: str | None = None,
        experts: Experts = "memory",
    ) -> Self:
        """Compute the sizes of a traced model.

        Args:
            program: the model.
            precision: of its weights, one of :data:`WEIGHT_DTYPES`.
            kv_dtype: "float32", "bfloat16", "int8" or "int4".
            isa: instruction set that it will run with, where that is known: buffers then also hold the
                rounded inputs.
            experts: where the experts of a mixture are.

        Raises:
            SettingsError: experts are to be on disk, and there are none.
        """
        kinds = _planned_kinds(program, precision)
        shapes = {name: flat(shape) for name, shape in program.all_shapes.items()}
        runs = run_passes(program.with_kinds(kinds), ())
        buffered = runs
        if isa is not None:
            inputs = plan_activations(kinds, precision, "auto", isa)
            buffered = run_passes(quantize_inputs(program.with_kinds(kinds), inputs), ())
        on_disk = NO_EXPERTS
        if experts == "disk":
            on_disk = expert_memory(runs)
            if not on_disk.experts:
                raise SettingsError("experts is 'disk', but the model has no experts; leave it out")
        rows, logits = runs.operations()
        kv: Counter[int] = Counter()
        for layer in program.kv:
            kv[layer.window] += kv_bytes_of_layer(layer, kv_dtype)
        attention: Counter[int] = Counter()
        spans: Counter[tuple[int, int]] = Counter()
        for op in program.ops:
            if op.name not in ("attention", "encoder_attention"):
                continue
            operations = 2 * op.attrs["heads"] * (op.attrs["key_dim"] + op.attrs["value_dim"])
            if op.name == "attention":
                attention[op.attrs["window"]] += operations
            else:
                spans[op.attrs["before"], op.attrs["after"]] += operations
        # After attention and after the MLP of each layer, as in Megatron-LM (arXiv:1909.08053).
        exchanges = 2 * sum(op.name in ("attention", "encoder_attention") for op in program.ops)
        hidden = program.ops[0].widths[0]
        return cls(
            precision=precision,
            parameters=sum(map(math.prod, shapes.values())),
            weights=held_bytes([runs]) - on_disk.bytes,
            step_weights=weight_bytes(runs),
            experts=expert_costs(runs),
            on_disk=on_disk,
            kv=dict(kv),
            kv_layers=len(program.kv),
            state=state_bytes(program),
            row_operations=rows,
            logit_operations=logits,
            attention=dict(attention),
            spans=tuple((*span, operations) for span, operations in spans.items()),
            row_bytes=lower(buffered).cost().arena_bytes,
            logit_bytes=4 * program.vocab_size,
            exchanged=2 * hidden * exchanges,
            exchanges=exchanges,
            max_positions=program.max_positions,
            gpu_kernels=has_kernels(program),
        )

    def text_operations(self, tokens: int) -> int:
        """Return the operations of attention over a whole text."""

        def pairs(span: int) -> int:
            if span < 0 or span >= tokens:
                span = tokens - 1
            return span * tokens - span * (span + 1) // 2

        return sum(
            operations * (tokens + pairs(before) + pairs(after))
            for before, after, operations in self.spans
        )

    def weights_read(self, rows: int) -> int:
        """Return the bytes of weights that a step of this many rows reads."""
        return self.step_weights + self.experts.further(rows)

    @property
    def kv_per_token(self) -> int:
        """Bytes that a further token takes while no window is full."""
        return sum(self.kv.values())

    def kv_bytes(self, tokens: int) -> int:
        """Return the bytes of keys and values of one sequence, in whole blocks, and of its state."""
        return self.state + sum(
            BLOCK_TOKENS * blocks_for(min(tokens, window or tokens)) * size
            for window, size in self.kv.items()
        )

    @property
    def least_cache(self) -> int:
        """Bytes of keys, values and states without which an engine does not start."""
        blocks = blocks_for(min(LEAST_TOKENS, self.max_positions))
        return BLOCK_TOKENS * blocks * self.kv_per_token + LEAST_STATES * self.state

    def attention_operations(self, first: int, rows: int) -> float:
        """Return attention's operations for ``rows`` consecutive tokens after ``first`` others."""
        total = 0.0
        for window, size in self.attention.items():
            last = first + rows
            if window and first >= window:
                seen: float = rows * window
            elif window and last > window:
                growing = window - first
                seen = growing * (first + window) / 2 + (last - window) * window
            else:
                seen = rows * (first + last) / 2
            total += size * seen
        return total


def _planned_kinds(program: Program, precision: str) -> Kinds:
    """Return the kind of each matrix; a precision with the layout of another keeps its own scales."""
    known = WEIGHT_DTYPES[precision]
    kinds = plan_kinds(program, known.layout or precision)
    if not known.layout:
        return kinds

    def laid_out(kind: WeightKind) -> WeightKind:
        return WeightKind(known.layout, kind.group if known.grouped else 0, known.scales)

    return {name: laid_out(kind) if kind.is_integer else kind for name, kind in kinds.items()}

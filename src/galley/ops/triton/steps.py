"""Turn a program's ops into launches: each op becomes a function that the executor calls in every step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
import triton

from galley.formats.weights import Weights
from galley.graph.program import KVLayout, Op, Program
from galley.ops.triton.attention import Attention, Cache, power
from galley.ops.triton.kernels.elementwise import elementwise_kernel, head_columns_kernel
from galley.ops.triton.kernels.norm import norm_kernel
from galley.ops.triton.kernels.rope import rope_kernel
from galley.ops.triton.kernels.rows import gather_kernel
from galley.ops.triton.matrices import FUSION, GATHERED, Matrix, pack, vector
from galley.ops.triton.step_batch import StepBatch
from galley.ops.triton.supported import ELEMENTWISE, check_program, gated_linears, logits_chain
from galley.ops.triton.tiles import ROWS_TOGETHER, Device
from galley.types import BLOCK_TOKENS


@dataclass(slots=True)
class Run:
    """A running step: the batch, and the buffers that are still needed."""

    batch: StepBatch
    buffers: dict[int, torch.Tensor] = field(default_factory=dict)


Step: TypeAlias = Callable[[Run], None]


class Steps:
    """The launches of a program, with the packed weights that they need."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        dtype: torch.dtype,
        device: Device,
        *,
        int8_kv: bool,
    ) -> None:
        """Build the launches of ``program``, which has been through all passes.

        Raises:
            UnsupportedModel: an op has no kernel, or a tensor has a type that no kernel reads.
        """
        self._program, self._weights = program, weights
        self.dtype = self._dtype = dtype
        self.vocab_size = program.vocab_size
        self._device, self._int8_kv = device, int8_kv
        self._widths = program.widths()
        self._logits = logits_chain(program)
        self._matrices: dict[tuple[object, ...], Matrix] = {}
        self._group_of = {
            layer: g for g, group in enumerate(program.kv_groups) for layer in group.layers
        }
        self.caches: list[Cache] = []
        self.blocks = 0
        check_program(program)
        made = {
            "embed": self._embed,
            "linear": self._linear,
            "rms_norm": self._norm,
            "add_rms_norm": self._norm,
            "layer_norm": self._norm,
            "add_layer_norm": self._norm,
            "rope": self._rope,
            "attention": self._attention,
            "rope_attention": self._attention,
            "select_rows": self._select_rows,
            "columns": self._columns,
            "head_columns": self._head_columns,
            **dict.fromkeys(ELEMENTWISE, self._elementwise),
        }
        fused, unmade = gated_linears(program)
        planned: list[tuple[Step, tuple[int, ...]]] = []
        for op in program.ops:
            if linear := fused.get(op.outputs[0]):
                planned.append((self._linear(linear, gated=op.output), linear.inputs))
            elif unmade.isdisjoint(op.outputs):
                planned.append((made[op.name](op), op.inputs))
        last_use = {b: i for i, (_, inputs) in enumerate(planned) for b in inputs}
        self.steps = [
            (step, tuple(b for b in dict.fromkeys(inputs) if last_use[b] == i))
            for i, (step, inputs) in enumerate(planned)
        ]
        self.output = program.ops[-1].output
        self.weight_bytes = sum(matrix.nbytes for matrix in self._matrices.values())

    def run(self, batch: StepBatch) -> torch.Tensor:
        """Run all ops on the batch and return the last op's result."""
        run = Run(batch)
        for step, done in self.steps:
            step(run)
            for b in done:
                del run.buffers[b]
        return run.buffers[self.output]

    def _new(self, b: int, rows: int) -> torch.Tensor:
        dtype = torch.float32 if b in self._logits else self._dtype
        return torch.empty((rows, self._widths[b]), dtype=dtype, device=self._device.torch)

    def _matrix(self, op: Op, *, gated: bool = False) -> Matrix:
        names, biases = op.weights["weight"], op.weights.get("bias", ())
        key = (names, biases, gated)
        if key not in self._matrices:
            self._matrices[key] = pack(
                [self._weights[name] for name in names],
                self._program.kind_of(op),
                self._dtype,
                self._device.torch,
                bias=[self._weights[name] for name in biases],
                gated=gated,
            )
        return self._matrices[key]

    def _vector(self, op: Op, role: str, offset: float = 0.0) -> torch.Tensor | None:
        if role not in op.weights:
            return None
        parts = [vector(self._weights[name], self._device.torch) for name in op.weights[role]]
        return torch.cat(parts) + offset

    def _embed(self, op: Op) -> Step:
        table = self._matrix(op)

        def step(run: Run) -> None:
            out = self._new(op.output, run.batch.shape.rows)
            table.gather(self._device, run.batch.tokens, out)
            run.buffers[op.output] = out

        return step

    def _linear(self, op: Op, *, gated: int | None = None) -> Step:
        """Multiply by a matrix; buffer ``gated``, if any, gets silu of one half times the other."""
        matrix = self._matrix(op, gated=gated is not None)
        output = op.output if gated is None else gated

        def step(run: Run) -> None:
            x = run.buffers[op.inputs[0]]
            out = self._new(output, len(x))
            if len(x):
                matrix.multiply(self._device, x, out, gated=gated is not None)
            run.buffers[output] = out

        return step

    def _norm(self, op: Op) -> Step:
        mean, adds = op.name.endswith("layer_norm"), len(op.inputs) == 2
        weight = self._vector(op, "weight", op.attrs.get("offset", 0.0))
        bias = self._vector(op, "bias")
        dim, width = op.attrs["head_dim"], op.widths[-1]
        block = power(dim)
        together = min(power(width // dim), max(1, 1024 // block))
        grid_y = triton.cdiv(width // dim, together)

        def step(run: Run) -> None:
            x = run.buffers[op.inputs[0]]
            y = run.buffers[op.inputs[-1]]
            out = self._new(op.outputs[-1], len(x))
            total = self._new(op.outputs[0], len(x)) if adds else out
            if len(x):
                norm_kernel[(triton.cdiv(len(x), ROWS_TOGETHER), grid_y)](
                    x,
                    y,
                    total,
                    x if weight is None else weight,
                    x if bias is None else bias,
                    out,
                    len(x),
                    x.stride(0),
                    y.stride(0),
                    total.stride(0),
                    out.stride(0),
                    width // dim,
                    op.attrs["eps"],
                    WIDTH=dim,
                    BLOCK=block,
                    ROWS=ROWS_TOGETHER,
                    GROUPS=together,
                    ADD=adds,
                    MEAN=mean,
                    WEIGHT=weight is not None,
                    BIAS=bias is not None,
                    APART=mean,
                    num_warps=8 if block >= 2048 else 4,
                    **FUSION,
                )
            if adds:
                run.buffers[op.outputs[0]] = total
            run.buffers[op.outputs[-1]] = out

        return step

    def _columns(self, op: Op) -> Step:
        start, width = op.attrs["start"], op.width

        def step(run: Run) -> None:
            run.buffers[op.output] = run.buffers[op.inputs[0]][:, start : start + width]

        return step

    def _head_columns(self, op: Op) -> Step:
        a = op.attrs
        block = min(1024, power(op.width))

        def step(run: Run) -> None:
            x = run.buffers[op.inputs[0]]
            out = self._new(op.output, len(x))
            head_columns_kernel[(triton.cdiv(len(x), ROWS_TOGETHER), triton.cdiv(op.width, block))](
                x,
                out,
                len(x),
                x.stride(0),
                out.stride(0),
                op.width,
                a["start"],
                a["size"],
                a["stride"],
                ROWS=ROWS_TOGETHER,
                BLOCK=block,
                **FUSION,
            )
            run.buffers[op.output] = out

        return step

    def _elementwise(self, op: Op) -> Step:
        attrs = [float(op.attrs[name]) for name in ELEMENTWISE[op.name]]
        first, second = [*attrs, 1.0, 1.0][:2]
        block = min(1024, power(op.width))

        def step(run: Run) -> None:
            a, b = run.buffers[op.inputs[0]], run.buffers[op.inputs[-1]]
            out = self._new(op.output, len(a))
            if len(a):
                elementwise_kernel[
                    (triton.cdiv(len(a), ROWS_TOGETHER), triton.cdiv(op.width, block))
                ](
                    a,
                    b,
                    run.batch.positions,
                    out,
                    len(a),
                    a.stride(0),
                    b.stride(0),
                    out.stride(0),
                    op.width,
                    first,
                    second,
                    OP=op.name,
                    ROWS=ROWS_TOGETHER,
                    BLOCK=block,
                    **FUSION,
                )
            run.buffers[op.output] = out

        return step

    def _select_rows(self, op: Op) -> Step:
        block = min(GATHERED, power(op.width))

        def step(run: Run) -> None:
            x, wanted = run.buffers[op.inputs[0]], run.batch.wanted
            out = self._new(op.output, len(wanted))
            if len(wanted):
                gather_kernel[
                    (triton.cdiv(len(wanted), ROWS_TOGETHER), triton.cdiv(op.width, block))
                ](
                    wanted,
                    x,
                    x,
                    x,
                    x,
                    out,
                    len(wanted),
                    x.stride(0),
                    out.stride(0),
                    op.width,
                    len(x),
                    op.width,
                    KIND="dense",
                    ZEROS=False,
                    MINIMA=False,
                    WORDS=1,
                    ROWS=ROWS_TOGETHER,
                    BLOCK=block,
                    **FUSION,
                )
            run.buffers[op.output] = out

        return step

    def _rope(self, op: Op) -> Step:
        a = op.attrs
        dim = a["head_dim"]
        shape = KVLayout(1, dim, dim)
        turn = partial(self._turn, shape, a["inv_freq"], a["scale"], adjacent=a["adjacent"])

        def step(run: Run) -> None:
            x = run.buffers[op.inputs[0]]
            out = self._new(op.output, len(x))
            turn(run, x, x, x, out, heads=op.width // dim, layer=None)
            run.buffers[op.output] = out

        return step

    def _turn(
        self,
        kv: KVLayout,
        inv_freq: tuple[float, ...],
        scale: float,
        run: Run,
        *rows: torch.Tensor,
        adjacent: bool,
        heads: int,
        layer: int | None,
        queries: bool = True,
    ) -> None:
        """Rotate queries, and rotate keys while they are written to the cache of ``layer``."""
        q, k, v, out = rows
        batch = run.batch
        cos, sin = batch.turns(inv_freq, scale) if inv_freq else (q, q)
        keep = layer is not None
        cache = self.caches[layer] if layer is not None else Cache(q, q, q, q)
        table = batch.tables[0 if layer is None else self._group_of[layer]]
        block = power(max(kv.key_dim, kv.value_dim), 16)
        together = min(power(heads), max(1, 1024 // block))
        blocks = triton.cdiv(heads, together) if queries else 0
        blocks += 2 * triton.cdiv(kv.kv_heads, together) if keep else 0
        rope_kernel[(triton.cdiv(len(q), ROWS_TOGETHER), blocks)](
            q,
            k,
            v,
            out,
            cos,
            sin,
            cache.keys,
            cache.values,
            cache.key_scales,
            cache.value_scales,
            batch.sequences,
            batch.positions,
            table,
            len(q),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            out.stride(0),
            batch.shape.width,
            heads,
            kv.kv_heads,
            KEY=kv.key_dim,
            VALUE=kv.value_dim,
            BLOCK_D=power(kv.key_dim, 16),
            BLOCK_V=power(kv.value_dim, 16),
            PAIRS=len(inv_freq),
            ADJACENT=adjacent,
            QUERIES=queries,
            KEEP=keep,
            HEADS=together,
            ROWS=ROWS_TOGETHER,
            BLOCK_TOKENS=BLOCK_TOKENS,
            INT8=self._int8_kv and keep,
            **FUSION,
        )

    def _attention(self, op: Op) -> Step:
        a = op.attrs
        layer, heads = a["layer"], a["heads"]
        kv = self._program.kv[layer]
        turns = op.name == "rope_attention"
        inv_freq, turn_scale = (a["inv_freq"], a["rope_scale"]) if turns else ((), 1.0)
        adjacent = bool(turns and a["adjacent"])
        turn = partial(self._turn, kv, inv_freq, turn_scale, adjacent=adjacent, heads=heads)
        attend = Attention(op, kv, self._device, self._vector(op, "sinks"), int8=self._int8_kv)
        group = self._group_of[layer]

        def step(run: Run) -> None:
            q, k, v = (run.buffers[b] for b in op.inputs)
            turned = self._new(op.outputs[0], len(q)) if turns else q
            turn(run, q, k, v, turned, layer=layer, queries=turns)
            out = self._new(op.outputs[-1], len(q))
            attend(run.batch, self.caches[layer], group, turned, out)
            if turns:
                run.buffers[op.outputs[0]] = turned
            run.buffers[op.outputs[-1]] = out

        return step

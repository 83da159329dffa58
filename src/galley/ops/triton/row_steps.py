"""The steps of ops whose rows do not see each other: products, norms, elementwise ops, copies of rows."""

from collections.abc import Callable

import torch
import triton

from galley.graph.program import Op
from galley.ops.triton.attention import power
from galley.ops.triton.kernels.elementwise import elementwise_kernel, head_columns_kernel
from galley.ops.triton.kernels.norm import norm_kernel
from galley.ops.triton.kernels.rows import gather_kernel
from galley.ops.triton.matrices import FUSION, GATHERED
from galley.ops.triton.packing import dense_matrix
from galley.ops.triton.parts import Parts, Run, Step
from galley.ops.triton.supported import ELEMENTWISE
from galley.ops.triton.tiles import ROWS_TOGETHER


def embed(parts: Parts, op: Op) -> Step:
    """Copy the rows of the tokens."""
    table = parts.matrix(op)

    def step(run: Run) -> None:
        out = parts.new(op.output, run.batch.shape.rows)
        table.gather(parts.device, run.batch.tokens, out)
        run.buffers[op.output] = out

    return step


def embed_positions(parts: Parts, op: Op) -> Step:
    """Copy the rows of the positions."""
    first = op.attrs["first"]
    return _rows_of_table(parts, op, lambda run: run.batch.positions + first)


def embed_types(parts: Parts, op: Op) -> Step:
    """Copy the rows of the types of tokens."""
    return _rows_of_table(parts, op, lambda run: run.batch.types)


def _rows_of_table(parts: Parts, op: Op, numbers: Callable[[Run], torch.Tensor]) -> Step:
    """Copy the rows of a table that is not a matrix of the program."""
    values = parts.vector(op, "weight")
    assert values is not None
    table = dense_matrix(values.view(-1, op.width).to(parts.dtype))

    def step(run: Run) -> None:
        out = parts.new(op.output, run.batch.shape.rows)
        table.gather(parts.device, numbers(run), out)
        run.buffers[op.output] = out

    return step


def linear(parts: Parts, op: Op, *, gated: int | None = None) -> Step:
    """Multiply by a matrix; buffer ``gated``, if any, gets silu of one half times the other."""
    matrix = parts.matrix(op, gated=gated is not None)
    output = op.output if gated is None else gated

    def step(run: Run) -> None:
        x = run.buffers[op.inputs[0]]
        out = parts.new(output, len(x))
        if len(x):
            matrix.multiply(parts.device, x, out, gated=gated is not None)
        run.buffers[output] = out

    return step


def norm(parts: Parts, op: Op) -> Step:
    """Norm rows, or sums of rows."""
    mean, adds = op.name.endswith("layer_norm"), len(op.inputs) == 2
    weight = parts.vector(op, "weight", op.attrs.get("offset", 0.0))
    bias = parts.vector(op, "bias")
    dim, width = op.attrs["head_dim"], op.widths[-1]
    block = power(dim)
    together = min(power(width // dim), max(1, 1024 // block))
    grid_y = triton.cdiv(width // dim, together)

    def step(run: Run) -> None:
        x = run.buffers[op.inputs[0]]
        y = run.buffers[op.inputs[-1]]
        out = parts.new(op.outputs[-1], len(x))
        total = parts.new(op.outputs[0], len(x)) if adds else out
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


def columns(parts: Parts, op: Op) -> Step:
    """View some columns of a buffer."""
    start, width = op.attrs["start"], op.width

    def step(run: Run) -> None:
        run.buffers[op.output] = run.buffers[op.inputs[0]][:, start : start + width]

    return step


def head_columns(parts: Parts, op: Op) -> Step:
    """Copy some columns of each head."""
    a = op.attrs
    block = min(1024, power(op.width))

    def step(run: Run) -> None:
        x = run.buffers[op.inputs[0]]
        out = parts.new(op.output, len(x))
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


def elementwise(parts: Parts, op: Op) -> Step:
    """Compute an elementwise op."""
    attrs = [float(op.attrs[name]) for name in ELEMENTWISE[op.name]]
    first, second = [*attrs, 1.0, 1.0][:2]
    block = min(1024, power(op.width))

    def step(run: Run) -> None:
        a, b = run.buffers[op.inputs[0]], run.buffers[op.inputs[-1]]
        out = parts.new(op.output, len(a))
        if len(a):
            elementwise_kernel[(triton.cdiv(len(a), ROWS_TOGETHER), triton.cdiv(op.width, block))](
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


def select_rows(parts: Parts, op: Op) -> Step:
    """Copy the rows whose logits are requested."""
    block = min(GATHERED, power(op.width))

    def step(run: Run) -> None:
        x, wanted = run.buffers[op.inputs[0]], run.batch.wanted
        out = parts.new(op.output, len(wanted))
        if len(wanted):
            gather_kernel[(triton.cdiv(len(wanted), ROWS_TOGETHER), triton.cdiv(op.width, block))](
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
        run.groups.clear()
        if run.slots is not None:
            run.slots = run.slots.index_select(0, wanted)

    return step

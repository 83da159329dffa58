"""The steps of a speech model's encoder, of attention to its output, and of alignment."""

from typing import Final

import torch
import triton

from galley.graph.program import Op
from galley.ops.triton.attention import Attention, power
from galley.ops.triton.attention_steps import rope_rows
from galley.ops.triton.kernels.speech import cross_weights_kernel, im2col_kernel
from galley.ops.triton.matrices import FUSION
from galley.ops.triton.parts import Parts, Run, Step
from galley.ops.triton.tiles import ROWS_TOGETHER
from galley.types import BLOCK_TOKENS

_KEYS: Final = 64
"""Encoder rows that a program of ``cross_weights`` scores at a time."""


def features(parts: Parts, op: Op) -> Step:
    """Read the frames of the encoder inputs."""

    def step(run: Run) -> None:
        assert run.features is not None
        run.buffers[op.output] = run.features

    return step


def im2col(parts: Parts, op: Op) -> Step:
    """Put the rows around a row side by side; the step's rows become those of the convolution's result."""
    a = op.attrs
    block = min(1024, power(op.width))

    def step(run: Run) -> None:
        x, before = run.buffers[op.inputs[0]], run.batch
        run.batch = run.later.pop(0)
        rows = run.batch.shape.rows
        out = parts.new(op.output, rows)
        im2col_kernel[(triton.cdiv(rows, ROWS_TOGETHER), triton.cdiv(op.width, block))](
            x,
            out,
            run.batch.sequences,
            run.batch.positions,
            before.starts,
            rows,
            a["channels"],
            x.stride(0),
            out.stride(0),
            SIZE=a["size"],
            STRIDE=a["stride"],
            ROWS=ROWS_TOGETHER,
            BLOCK=block,
            **FUSION,
        )
        run.buffers[op.output] = out

    return step


def encoder_rows(parts: Parts, op: Op) -> Step:
    """Return the rows to the executor's caller."""

    def step(run: Run) -> None:
        run.given = run.buffers[op.inputs[0]]

    return step


def cross_kv(parts: Parts, op: Op) -> Step:
    """Write keys and values of the encoder's rows to their blocks."""
    layer = op.attrs["layer"]
    kv = parts.program.kv[layer]

    def step(run: Run) -> None:
        k, v = (run.buffers[b] for b in op.inputs)
        rope_rows(parts, kv, (), 1.0, run, k, k, v, k, adjacent=False, layer=layer, queries=False)

    return step


def cross_attention(parts: Parts, op: Op) -> Step:
    """Attend to the encoder's output."""
    layer = op.attrs["layer"]
    kv = parts.program.kv[layer]
    attend = Attention(op, kv, parts.device, None, bits=parts.kv_bits)

    def step(run: Run) -> None:
        q = run.buffers[op.inputs[0]]
        out = parts.new(op.output, len(q))
        attend(run.batch, parts.caches[layer], 0, q, out)
        run.buffers[op.output] = out

    return step


def cross_weights(parts: Parts, op: Op) -> Step:
    """Write the weights of some heads of attention to the encoder's output."""
    a = op.attrs
    heads = torch.tensor(a["chosen"], dtype=torch.int32, device=parts.device.torch)

    def step(run: Run) -> None:
        q, cache, weights = run.buffers[op.inputs[0]], parts.caches[a["layer"]], run.attention
        cross = run.batch.cross
        assert weights is not None
        assert cross is not None
        cross_weights_kernel[(len(q), len(heads))](
            q,
            weights[:, a["first"] :],
            cache.keys,
            cache.key_scales,
            cache.factors,
            heads,
            run.batch.sequences,
            cross.last,
            cross.table,
            run.batch.shape.cross_width,
            q.stride(0),
            weights.stride(0),
            weights.stride(1),
            a["kv_heads"],
            a["heads"] // a["kv_heads"],
            float(a["scale"]),
            KEY=a["key_dim"],
            BLOCK_D=power(a["key_dim"], 16),
            BLOCK_KV=_KEYS,
            BLOCK_TOKENS=BLOCK_TOKENS,
            BITS=parts.kv_bits,
            **FUSION,
        )

    return step

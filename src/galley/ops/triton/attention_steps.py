"""The steps of rotation and attention."""

from functools import partial

import torch
import triton

from galley.graph.program import KVLayout, Op
from galley.ops.triton.attention import (
    Attention,
    Cache,
    EncoderAttention,
    key_cut,
    key_stride,
    power,
)
from galley.ops.triton.kernels.rope import rope_kernel
from galley.ops.triton.matrices import FUSION
from galley.ops.triton.parts import Parts, Run, Step
from galley.ops.triton.tiles import ROWS_TOGETHER
from galley.types import BLOCK_TOKENS


def rope(parts: Parts, op: Op) -> Step:
    """Rotate the heads of a buffer."""
    a = op.attrs
    dim = a["head_dim"]
    shape = KVLayout(1, dim, dim)
    turn = partial(rope_rows, parts, shape, a["inv_freq"], a["scale"], adjacent=a["adjacent"])

    def step(run: Run) -> None:
        x = run.buffers[op.inputs[0]]
        out = parts.new(op.output, len(x))
        turn(run, x, x, x, out, layer=None)
        run.buffers[op.output] = out

    return step


def rope_rows(
    parts: Parts,
    kv: KVLayout,
    inv_freq: tuple[float, ...],
    scale: float,
    run: Run,
    *rows: torch.Tensor,
    adjacent: bool,
    layer: int | None,
    queries: bool = True,
) -> None:
    """Rotate queries, and rotate keys while they are written to the cache of ``layer``."""
    q, k, v, out = rows
    heads = q.shape[1] // kv.key_dim
    batch = run.batch
    cos, sin = batch.turns(inv_freq, scale) if inv_freq else (q, q)
    keep = layer is not None
    cache = parts.caches[layer] if layer is not None else Cache(q, q, q, q, q)
    # Without a layer there is no cache, and the table is not read.
    table = batch.positions if layer is None else batch.tables[parts.group_of[layer]]
    block = power(max(kv.key_dim, kv.value_dim), 16)
    together = min(power(heads), max(1, 1024 // block))
    blocks = triton.cdiv(heads, together) if queries else 0
    blocks += (1 if kv.shared else 2) * triton.cdiv(kv.kv_heads, together) if keep else 0
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
        cache.factors,
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
        BITS=parts.kv_bits if keep else 0,
        CUT=key_cut(kv),
        KEY_STRIDE=key_stride(kv, parts.kv_bits),
        **FUSION,
    )


def attention(parts: Parts, op: Op) -> Step:
    """Attend to the paged cache, after keys and values are rotated and written."""
    a = op.attrs
    layer = a["layer"]
    kv = parts.program.kv[layer]
    turns = op.name == "rope_attention"
    inv_freq, turn_scale = (a["inv_freq"], a["rope_scale"]) if turns else ((), 1.0)
    adjacent = bool(turns and a["adjacent"])
    turn = partial(rope_rows, parts, kv, inv_freq, turn_scale, adjacent=adjacent)
    attend = Attention(op, kv, parts.device, parts.vector(op, "sinks"), bits=parts.kv_bits)
    group = parts.group_of[layer]

    def step(run: Run) -> None:
        q, k, v = (run.buffers[b] for b in op.inputs)
        rotated = parts.new(op.outputs[0], len(q)) if turns else q
        turn(run, q, k, v, rotated, layer=layer, queries=turns)
        out = parts.new(op.outputs[-1], len(q))
        attend(run.batch, parts.caches[layer], group, rotated, out)
        if turns:
            run.buffers[op.outputs[0]] = rotated
        run.buffers[op.outputs[-1]] = out

    return step


def encoder_attention(parts: Parts, op: Op) -> Step:
    """Attend to the rows of the same text."""
    attend = EncoderAttention(op, parts.device)

    def step(run: Run) -> None:
        q, k, v = (run.buffers[b] for b in op.inputs)
        out = parts.new(op.output, len(q))
        attend(run.batch, q, k, v, out)
        run.buffers[op.output] = out

    return step

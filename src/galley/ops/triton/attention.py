"""The launches of a layer's attention."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import triton

from galley.graph.program import KVLayout, Op, Program
from galley.ops.triton.kernels.attention import attention_kernel
from galley.ops.triton.kernels.encoder_attention import encoder_attention_kernel
from galley.ops.triton.matrices import FUSION, counts
from galley.ops.triton.step_batch import StepBatch
from galley.ops.triton.tiles import SPLIT, Device, block_keys, query_tile
from galley.types import BLOCK_TOKENS


@dataclass(slots=True)
class Cache:
    """Keys and values of a layer; see ``kernels/attention.py``. Scales are those of a cache of integers.

    Factors are those of a cache of 4 bits: [kv_heads, key_dim] float32.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor
    factors: torch.Tensor


_LATENT_HEADS: Final = 16
"""Heads of a program of latent attention, whose values are wide."""


def power(size: int, least: int = 1) -> int:
    """Return the next power of two, at least ``least``."""
    return max(least, int(triton.next_power_of_2(size)))


def key_stride(kv: KVLayout, bits: int = 0) -> int:
    """Return the elements from one key to the next: of a latent, a multiple of 16.

    Triton may assume that the rows of a block of tokens are aligned as its first one is.
    """
    return -(-kv.key_dim // 16) * 16 if kv.shared else stored_columns(kv.key_dim, bits)


def stored_columns(columns: int, bits: int) -> int:
    """Return the elements that keys or values of this many columns take: with 4 bits, two share a byte."""
    return -(-columns // 2) if bits == 4 else columns


def key_cut(kv: KVLayout) -> int:
    """Return how many columns of a latent key have the first scale of an int8 cache; 0 for other keys.

    These are the columns of the value, and one more if their number is odd.
    """
    return kv.value_dim + kv.value_dim % 2 if kv.shared else 0


def new_cache(
    kv: KVLayout,
    blocks: int,
    dtype: torch.dtype,
    factors: npt.NDArray[np.float32] | None,
    device: Device,
) -> Cache:
    """Return zeroed memory: unwritten values have weight 0, but must not be NaN.

    Args:
        kv: the layer's layout.
        blocks: number of blocks.
        dtype: type of an element: floats, int8, or uint8 for two elements of 4 bits.
        factors: factors of the columns of keys of 4 bits.
        device: where the memory is.
    """
    bits = {torch.int8: 8, torch.uint8: 4}.get(dtype, 0)

    def zeros(*columns: int, of: torch.dtype = dtype) -> torch.Tensor:
        shape = (blocks, kv.kv_heads, BLOCK_TOKENS, *columns)
        return torch.zeros(shape, dtype=of, device=device.torch)

    keys = values = zeros(key_stride(kv, bits))
    if not kv.shared:
        values = zeros(stored_columns(kv.value_dim, bits))
    scales = [keys, values]
    if bits:
        scales = [zeros(of=torch.int32 if bits == 4 else torch.float32) for _ in range(2)]
    found = keys if factors is None else torch.from_numpy(factors).to(device.torch)
    return Cache(keys, values, scales[0], scales[1], found)


def heads_together(heads: int, kv: KVLayout) -> int:
    """Return the number of heads of a KV head that a program computes: all, or few of those of a latent."""
    shared = power(heads // kv.kv_heads)
    return min(shared, _LATENT_HEADS) if kv.shared else shared


def rows_of_tiles(program: Program, device: Device) -> int:
    """Return the most rows of a tile of attention with which every layer can do."""
    tiles = []
    for op in program.ops:
        if op.name in ("attention", "rope_attention", "cross_attention"):
            kv = program.kv[op.attrs["layer"]]
            together = heads_together(op.attrs["heads"], kv)
            tiles.append(query_tile(device, together, many=True, latent=kv.shared).rows)
        elif op.name == "encoder_attention":
            shared = power(op.attrs["heads"] // op.attrs["kv_heads"])
            tiles.append(query_tile(device, shared, many=True).rows)
    return min(tiles, default=1)


class Attention:
    """The launches of one layer's attention."""

    def __init__(
        self, op: Op, kv: KVLayout, device: Device, sinks: torch.Tensor | None, *, bits: int
    ) -> None:
        a = op.attrs
        self._heads, self._kv, self._device, self._sinks = a["heads"], kv, device, sinks
        self._scale, self._cap = float(a["scale"]), float(a.get("cap", 0.0))
        self._window, self._cross = int(a.get("window", 0)), op.name == "cross_attention"
        shared = self._heads // kv.kv_heads
        self._block_s = heads_together(self._heads, kv)
        head_blocks = triton.cdiv(shared, self._block_s)
        self._programs = kv.kv_heads * head_blocks
        cut = key_cut(kv)
        self._latent, self._block_v = kv.shared, power(cut or kv.value_dim, 16)
        self._constants: dict[str, Any] = {
            "KEY": kv.key_dim,
            "VALUE": kv.value_dim,
            "BLOCK_D": power(cut or kv.key_dim, 16),
            "BLOCK_V": self._block_v,
            "BLOCK_R": power(kv.key_dim - cut, 16),
            "CUT": cut,
            "KEY_STRIDE": key_stride(kv, bits),
            "SHARED": shared,
            "BLOCK_S": self._block_s,
            "HEAD_BLOCKS": head_blocks,
            "BLOCK_KV": block_keys(device, bits),
            "SPLIT": SPLIT,
            "BLOCK_TOKENS": BLOCK_TOKENS,
            "CHUNKED": bool(a.get("chunked", False)),
            "CAP": self._cap > 0,
            "SINKS": sinks is not None,
            "BITS": bits,
            "CROSS": self._cross,
            **FUSION,
        }

    def __call__(
        self, batch: StepBatch, cache: Cache, group: int, q: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Launch all tiles; those of one row are split into stretches if there are several."""
        shape = batch.shape
        if not shape.single and not shape.tiles:
            return
        long, short = (
            query_tile(self._device, self._block_s, many=many, latent=self._latent)
            for many in (True, False)
        )
        launched = long if shape.tiles else short
        positions, table, width, stretches = self._seen(batch, group)
        stretches = stretches if shape.single else 1
        parts = self._room(shape.single, stretches, short.rows, q.device)
        attention_kernel[(shape.tiles + shape.single * stretches, self._programs)](
            q,
            out,
            cache.keys,
            cache.values,
            cache.key_scales,
            cache.value_scales,
            cache.factors,
            out if self._sinks is None else self._sinks,
            batch.tiles if shape.tiles else batch.single,
            batch.single if shape.single else batch.tiles,
            positions,
            table,
            *(parts or (out, out, out)),
            counts(self._device.name),
            width,
            q.stride(0),
            out.stride(0),
            self._kv.kv_heads,
            self._scale,
            self._cap or 1.0,
            self._window,
            shape.tiles,
            stretches,
            BLOCK_Q=long.rows,
            BLOCK_A=short.rows,
            LONG=shape.tiles > 0,
            SHORT=shape.single > 0,
            APART=stretches > 1,
            num_warps=launched.warps,
            num_stages=launched.stages,
            **self._constants,
        )

    def _seen(self, batch: StepBatch, group: int) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        """Return each row's last key, the blocks of keys, their number for a sequence, and stretches."""
        shape = batch.shape
        if not self._cross:
            return batch.positions, batch.tables[group], shape.width, shape.stretches
        assert batch.cross is not None
        return batch.cross.last, batch.cross.table, shape.cross_width, shape.cross_stretches

    def _room(
        self, tiles: int, stretches: int, rows: int, device: torch.device
    ) -> tuple[torch.Tensor, ...]:
        """Return room for what the stretches of ``tiles`` give; nothing if each has only one."""
        if stretches == 1:
            return ()
        size = tiles * self._programs * stretches * rows * self._block_s
        room = torch.empty(size * (self._block_v + 2), device=device)
        return room[2 * size :], room[:size], room[size : 2 * size]


class EncoderAttention:
    """The launches of an ``encoder_attention`` op."""

    def __init__(self, op: Op, device: Device) -> None:
        a = op.attrs
        self._device, self._kv_heads = device, a["kv_heads"]
        shared = a["heads"] // a["kv_heads"]
        self._block_s = power(shared)
        self._reach = float(a["scale"]), int(a["before"]), int(a["after"])
        self._constants: dict[str, Any] = {
            "KEY": a["key_dim"],
            "VALUE": a["value_dim"],
            "BLOCK_D": power(a["key_dim"], 16),
            "BLOCK_V": power(a["value_dim"], 16),
            "SHARED": shared,
            "BLOCK_S": self._block_s,
            "BLOCK_KV": block_keys(device),
            **FUSION,
        }

    def __call__(
        self,
        batch: StepBatch,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Launch the tiles of texts of one row, and those of longer ones."""
        for tiles, many in ((batch.single, False), (batch.tiles, True)):
            if len(tiles):
                tile = query_tile(self._device, self._block_s, many=many)
                encoder_attention_kernel[(len(tiles), self._kv_heads)](
                    q,
                    k,
                    v,
                    out,
                    tiles,
                    batch.starts,
                    q.stride(0),
                    k.stride(0),
                    v.stride(0),
                    out.stride(0),
                    *self._reach,
                    BLOCK_Q=tile.rows,
                    num_warps=tile.warps,
                    num_stages=tile.stages,
                    **self._constants,
                )

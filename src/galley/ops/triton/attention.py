"""The launches of a layer's attention."""

from dataclasses import dataclass
from typing import Any

import torch
import triton

from galley.graph.program import KVLayout, Op
from galley.ops.triton.kernels.attention import attention_kernel
from galley.ops.triton.matrices import FUSION, counts
from galley.ops.triton.step_batch import StepBatch
from galley.ops.triton.tiles import SPLIT, Device, block_keys, query_tile
from galley.types import BLOCK_TOKENS


@dataclass(slots=True)
class Cache:
    """Keys and values of a layer; see ``kernels/attention.py``. Scales are those of an int8 cache."""

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor
    value_scales: torch.Tensor


def power(size: int, least: int = 1) -> int:
    """Return the next power of two, at least ``least``."""
    return max(least, int(triton.next_power_of_2(size)))


class Attention:
    """The launches of one layer's attention."""

    def __init__(
        self, op: Op, kv: KVLayout, device: Device, sinks: torch.Tensor | None, *, int8: bool
    ) -> None:
        a = op.attrs
        self._heads, self._kv, self._device, self._sinks = a["heads"], kv, device, sinks
        self._scale, self._cap = float(a["scale"]), float(a.get("cap", 0.0))
        self._window = int(a["window"])
        self._shared = self._heads // kv.kv_heads
        self._block_s = power(self._shared)
        self._constants: dict[str, Any] = {
            "KEY": kv.key_dim,
            "VALUE": kv.value_dim,
            "BLOCK_D": power(kv.key_dim, 16),
            "BLOCK_V": power(kv.value_dim, 16),
            "SHARED": self._shared,
            "BLOCK_S": self._block_s,
            "BLOCK_KV": block_keys(device),
            "SPLIT": SPLIT,
            "BLOCK_TOKENS": BLOCK_TOKENS,
            "CHUNKED": bool(a["chunked"]),
            "CAP": self._cap > 0,
            "SINKS": sinks is not None,
            "INT8": int8,
            **FUSION,
        }

    def __call__(
        self, batch: StepBatch, cache: Cache, group: int, q: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Launch the tiles of single rows, split into stretches if there are several; then the others."""
        shape = batch.shape
        if shape.single and shape.stretches > 1:
            rows = query_tile(self._device, self._block_s, many=False).rows * self._block_s
            size = shape.single * self._kv.kv_heads * shape.stretches * rows
            room = torch.empty(size * (power(self._kv.value_dim, 16) + 2), device=q.device)
            parts = room[2 * size :], room[:size], room[size : 2 * size]
            self._launch(batch.single, shape.stretches, batch, cache, group, q, out, *parts)
        elif shape.single:
            self._launch(batch.single, 1, batch, cache, group, q, out, out, out, out)
        if shape.tiles:
            self._launch(batch.tiles, 1, batch, cache, group, q, out, out, out, out, many=True)

    def _launch(
        self,
        tiles: torch.Tensor,
        stretches: int,
        batch: StepBatch,
        cache: Cache,
        group: int,
        *rows: torch.Tensor,
        many: bool = False,
    ) -> None:
        q, out, part, most, total = rows
        tile = query_tile(self._device, self._block_s, many=many)
        attention_kernel[(len(tiles), self._kv.kv_heads, stretches)](
            q,
            out,
            cache.keys,
            cache.values,
            cache.key_scales,
            cache.value_scales,
            out if self._sinks is None else self._sinks,
            tiles,
            batch.positions,
            batch.tables[group],
            part,
            most,
            total,
            counts(self._device.name),
            batch.shape.width,
            q.stride(0),
            out.stride(0),
            self._kv.kv_heads,
            self._scale,
            self._cap or 1.0,
            self._window,
            BLOCK_Q=tile.rows,
            APART=stretches > 1,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **self._constants,
        )

"""Attention in torch, for ``ops/reference_ops.py``: keys and values in the cache, and rows that attend."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch.nn.functional import pad

from galley.graph.program import KVLayout, Op
from galley.ops.batch import Batch, Table
from galley.ops.reference_kv import KVRounding
from galley.ops.reference_step import Step
from galley.ops.tiles import (
    TILE,
    Chunk,
    Pair,
    Tiles,
    all_chunks,
    attend,
    attention_weights,
    causal_chunks,
    near_chunks,
)
from galley.types import BLOCK_TOKENS


class AttentionOps:
    """The implementations of the ops that read or write keys and values, with the cache."""

    def __init__(
        self, dtype: torch.dtype, device: torch.device, layouts: Sequence[KVLayout]
    ) -> None:
        self._weights: Mapping[str, torch.Tensor] = {}
        self._layouts = layouts
        self._dtype = dtype
        self._device = device
        # For each layer, [blocks, BLOCK_TOKENS, kv_heads, key_dim] and [..., value_dim]; the latter is a
        # view of the keys if these contain the values.
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._kv_rounding: KVRounding | None = None
        self._group_of: Mapping[int, int] = {}
        """Layer -> its KV group."""

    def _on_device(self, table: Table) -> torch.Tensor:
        return torch.from_numpy(np.array(table, dtype=np.int64)).to(self._device)

    def _kv_slots(self, step: Step, group: int) -> torch.Tensor:
        """Return [rows] the cache slot of each row in the layers of a KV group."""
        if group not in step.kv_slots:
            sequences = len(step.starts) - 1
            tables = step.source.tables[group * sequences : (group + 1) * sequences]
            blocks = [
                np.asarray(table)[step.at[begin:end] // BLOCK_TOKENS]
                for table, begin, end in zip(tables, step.starts[:-1], step.starts[1:], strict=True)
            ]
            slots = np.concatenate(blocks) * BLOCK_TOKENS + step.at % BLOCK_TOKENS
            step.kv_slots[group] = torch.from_numpy(slots).to(self._device)
        return step.kv_slots[group]

    def _attention(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        keys, values = self._write_kv(op, step, inputs[1], inputs[2])
        first = self._group_of[op.attrs["layer"]] * (len(step.starts) - 1)
        return self._attend(
            op,
            step,
            inputs[0],
            lambda pair: causal_chunks(
                keys,
                values,
                step.tables[first + pair.sequence],
                step.positions[pair.tile],
                pair,
                window=op.attrs["window"],
                chunked=op.attrs["chunked"],
            ),
        )

    def _write_kv(
        self, op: Op, step: Step, k: Tiles, v: Tiles
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the rows' keys and values to the layer's caches, and return these."""
        layer = op.attrs["layer"]
        keys, values = self._keys[layer], self._values[layer]
        slots = self._kv_slots(step, self._group_of[layer])
        new_keys, new_values = (
            step.layout.gather(tiles).view(-1, *cache.shape[2:])
            for cache, tiles in ((keys, k), (values, v))
        )
        if self._kv_rounding is not None:
            new_keys = self._kv_rounding.keys(new_keys, layer)
            new_values = self._kv_rounding.values(new_values)
        keys.view(-1, *keys.shape[2:])[slots] = new_keys
        if not self._layouts[layer].shared:
            values.view(-1, *values.shape[2:])[slots] = new_values
        return keys, values

    def _attend(
        self, op: Op, step: Step, q: Tiles, chunks: Callable[[Pair], Iterable[Chunk]]
    ) -> Tiles:
        a = op.attrs
        sinks = self._weights[op.tensor("sinks")] if "sinks" in op.weights else None
        out = [tile.new_zeros(TILE, op.width) for tile in q]
        for pair in step.pairs:
            mixed = attend(
                q[pair.tile],
                chunks(pair),
                heads=a["heads"],
                kv_heads=a["kv_heads"],
                value_dim=a["value_dim"],
                scale=a["scale"],
                cap=a.get("cap", 0.0),
                sinks=sinks,
            )
            out[pair.tile][pair.slots] = mixed[pair.slots]
        return out

    def _encoder_attention(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        q, *kv = inputs
        shape = (-1, BLOCK_TOKENS, op.attrs["kv_heads"])
        lengths = np.diff(step.starts).tolist()
        keys, values = (torch.split(step.layout.gather(tiles), lengths) for tiles in kv)

        @functools.cache
        def chunks(place: int) -> list[Chunk]:
            rows = lengths[place]
            k, v = (
                pad(part[place], (0, 0, 0, -rows % BLOCK_TOKENS)).view(*shape, op.attrs[dim])
                for part, dim in ((keys, "key_dim"), (values, "value_dim"))
            )
            return list(all_chunks(k, v, torch.arange(len(k), device=self._device), rows))

        before, after = op.attrs["before"], op.attrs["after"]
        if before == after == -1:
            return self._attend(op, step, q, lambda pair: chunks(pair.sequence))
        return self._attend(
            op,
            step,
            q,
            lambda pair: near_chunks(
                chunks(pair.sequence), step.positions[pair.tile], before=before, after=after
            ),
        )

    def _cross_kv(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        self._write_kv(op, step, *inputs)
        return []

    def _cross_attention(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, Batch)
        cross = step.source.cross
        assert cross is not None
        layer = op.attrs["layer"]
        keys, values = self._keys[layer], self._values[layer]

        def chunks(pair: Pair) -> Iterable[Chunk]:
            table = self._on_device(cross.tables[pair.sequence])
            return all_chunks(keys, values, table, int(cross.rows[pair.sequence]))

        return self._attend(op, step, inputs[0], chunks)

    def _cross_weights(self, op: Op, step: Step, inputs: list[Tiles]) -> Tiles:
        assert isinstance(step.source, Batch)
        assert step.source.cross is not None
        a, cross = op.attrs, step.source.cross
        keys = self._keys[a["layer"]]
        places = slice(a["first"], a["first"] + len(a["chosen"]))
        rows_of_tiles = step.layout.rows()
        for pair in step.pairs:
            count = int(cross.rows[pair.sequence])
            table = self._on_device(cross.tables[pair.sequence])
            weights = attention_weights(
                inputs[0][pair.tile],
                all_chunks(keys, keys, table, count),
                heads=a["heads"],
                kv_heads=a["kv_heads"],
                scale=a["scale"],
            )
            rows = rows_of_tiles[pair.tile][pair.slots]
            chosen = weights[list(a["chosen"])][:, pair.slots, :count]
            step.attention[rows, places, :count] = chosen.transpose(0, 1)
        return []

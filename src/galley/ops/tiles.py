"""Rows of a ragged batch in tiles of one fixed shape, and attention over fixed-size key chunks, in torch.

Exactness comes first: a row's result must have the same bits alone, batched and chunked. Library matrix
products change their order of summation with the row count, and vectorized functions treat the tail of a
buffer differently from its body. So every op works on tiles of one fixed shape, [16, width], each in a
separate buffer, and a row at position p of its sequence is always in slot p % 16 of its tile, as in its KV
block. Whatever the library does with that shape, it does the same to that row every time; the contents of
the other slots (other sequences' rows, or zeros) do not matter. Attention processes key chunks of one fixed
size, from key 0 up; a chunk that is fully masked for a row changes none of its bits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from galley.graph.program import first_seen
from galley.ops.batch import Ints
from galley.types import BLOCK_TOKENS

TILE: Final = BLOCK_TOKENS
KEY_CHUNK: Final = 256
"""Keys per attention step."""

_LOWEST: Final = -1e30

Tiles = list[torch.Tensor]
"""A buffer: one [TILE, width] tensor for each tile of its layout."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The places of a buffer's rows: ``flat[r] = tile * TILE + slot``, ``slot = position % TILE``."""

    flat: torch.Tensor
    tiles: int

    @classmethod
    def of(cls, positions: Ints, device: torch.device) -> "Layout":
        """Lay out rows: those with the same slot go to tiles 0, 1, 2 ... in the order of the rows."""
        slots = positions % TILE
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        first = np.searchsorted(sorted_slots, sorted_slots, side="left")
        tile = np.empty_like(slots)
        tile[order] = np.arange(len(slots)) - first
        flat = torch.from_numpy(tile * TILE + slots).to(device)
        return cls(flat, int(tile.max(initial=-1)) + 1)

    def scatter(self, rows: torch.Tensor) -> Tiles:
        """Copy rows [rows, ...] into tiles, with zeros in the other slots."""
        full = rows.new_zeros((self.tiles * TILE, *rows.shape[1:]))
        full[self.flat] = rows
        # clone: each tile must start at a separate, aligned address
        return [tile.clone() for tile in torch.split(full, TILE)]

    def rows(self) -> torch.Tensor:
        """Return [tiles, TILE] the row in each slot; 0 for empty slots."""
        rows = torch.zeros(self.tiles * TILE, dtype=torch.int64, device=self.flat.device)
        rows[self.flat] = torch.arange(len(self.flat), device=self.flat.device)
        return rows.view(self.tiles, TILE)

    def gather(self, tiles: Tiles) -> torch.Tensor:
        """Copy tiles back to [rows, ...], in the order of the rows."""
        return torch.cat(tiles)[self.flat]


class Pair(NamedTuple):
    """A sequence (or encoder input) and a tile that share rows.

    ``slots`` are the slots of those rows in the tile; ``first`` and ``last`` their least and greatest
    positions.
    """

    sequence: int
    tile: int
    slots: torch.Tensor
    first: int
    last: int


def pairs_of(layout: Layout, starts: Ints, positions: Ints) -> list[Pair]:
    """Return all pairs of a layout; sequence s owns rows ``starts[s]`` to ``starts[s + 1]``."""
    flat = layout.flat.cpu().numpy()
    sequence = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    members: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(sequence.tolist(), (flat // TILE).tolist(), strict=True)):
        members.setdefault(key, []).append(row)
    return [
        Pair(
            s,
            tile,
            torch.from_numpy(flat[rows] % TILE).to(layout.flat.device),
            int(positions[rows[0]]),
            int(positions[rows[-1]]),
        )
        for (s, tile), rows in members.items()
    ]


class Chunk(NamedTuple):
    """Keys that a tile attends to in one step.

    ``keys`` is [kv_heads, KEY_CHUNK, key_dim], ``values`` [kv_heads, KEY_CHUNK, value_dim], and ``seen``
    [TILE or 1, KEY_CHUNK] whether each row sees each key.
    """

    keys: torch.Tensor
    values: torch.Tensor
    seen: torch.Tensor


def causal_chunks(
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pair: Pair,
    *,
    window: int,
    chunked: bool,
) -> Iterator[Chunk]:
    """Yield the keys of one sequence's cache, up to each row's own.

    Args:
        keys, values: [blocks, BLOCK_TOKENS, kv_heads, key_dim] and [..., value_dim].
        table: the sequence's blocks.
        positions: [TILE] positions of the rows; results of other sequences' rows must be dropped.
        pair: the sequence and tile that the rows belong to.
        window: 0, or how many keys up to its own a row may see.
        chunked: a row sees the keys from the last multiple of ``window`` on, instead.
    """
    at = positions[:, None]
    start = first_seen(pair.first, window, chunked=chunked) // KEY_CHUNK * KEY_CHUNK
    for begin in range(start, pair.last + 1, KEY_CHUNK):
        key_at = torch.arange(begin, begin + KEY_CHUNK, device=keys.device)
        seen = key_at <= at
        if window:
            seen &= key_at >= at // window * window if chunked else key_at > at - window
        blocks = table[begin // BLOCK_TOKENS : (begin + KEY_CHUNK) // BLOCK_TOKENS]
        yield Chunk(_of_blocks(keys, blocks), _of_blocks(values, blocks), seen)


def all_chunks(
    keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, rows: int
) -> Iterator[Chunk]:
    """Yield the first ``rows`` keys of a table, for every row. Shapes are as in :func:`causal_chunks`."""
    for begin in range(0, rows, KEY_CHUNK):
        seen = torch.arange(begin, begin + KEY_CHUNK, device=keys.device)[None] < rows
        blocks = table[begin // BLOCK_TOKENS : (begin + KEY_CHUNK) // BLOCK_TOKENS]
        yield Chunk(_of_blocks(keys, blocks), _of_blocks(values, blocks), seen)


def near_chunks(
    chunks: Iterable[Chunk], positions: torch.Tensor, *, before: int, after: int
) -> Iterator[Chunk]:
    """Restrict the keys that rows at ``positions`` [TILE] see to ``before`` and ``after``; -1 means all."""
    at = positions[:, None]
    for number, chunk in enumerate(chunks):
        key_at = torch.arange(KEY_CHUNK, device=at.device) + number * KEY_CHUNK
        seen = chunk.seen.expand(TILE, KEY_CHUNK)
        if before >= 0:
            seen = seen & (key_at >= at - before)
        if after >= 0:
            seen = seen & (key_at <= at + after)
        yield Chunk(chunk.keys, chunk.values, seen)


def attend(
    q: torch.Tensor,
    chunks: Iterable[Chunk],
    *,
    heads: int,
    kv_heads: int,
    value_dim: int,
    scale: float,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the attention of one tile with a running softmax (arXiv:2205.14135).

    Args:
        q: [TILE, heads * key_dim].
        chunks: chunks of keys and values, in order.
        heads, kv_heads: numbers of heads; the same number of heads share each KV head.
        scale: multiplies q k^T.
        cap: above 0, scores s become cap * tanh(s / cap).
        sinks: [heads] scores that belong to no value, or None.

    Returns:
        [TILE, heads * value_dim].
    """
    dim = q.shape[1] // heads
    group = heads // kv_heads
    # [kv_heads, TILE * group, dim]: the heads that share a KV head are rows of one product
    rows = q.view(TILE, kv_heads, group, dim).transpose(0, 1).reshape(kv_heads, TILE * group, dim)
    total = torch.zeros((kv_heads, TILE * group, 1), device=q.device)
    best = torch.full_like(total, _LOWEST)
    mixed = torch.zeros((kv_heads, TILE * group, value_dim), device=q.device)
    for keys, values, seen in chunks:
        hidden = ~seen.expand(TILE, KEY_CHUNK).repeat_interleave(group, dim=0)
        scores = torch.bmm(rows, keys.transpose(1, 2)).float() * scale
        if cap:
            scores = torch.tanh(scores / cap) * cap
        scores = scores.masked_fill(hidden, -torch.inf)
        new_best = torch.maximum(best, scores.amax(-1, keepdim=True))
        shrink = torch.exp(best - new_best)
        p = torch.exp(scores - new_best)
        total = total * shrink + p.sum(-1, keepdim=True)
        mixed = mixed * shrink + torch.bmm(p.to(values.dtype), values).float()
        best = new_best
    if sinks is not None:
        each = sinks.float().view(kv_heads, 1, group).expand(kv_heads, TILE, group)
        total = total + torch.exp(each.reshape(kv_heads, TILE * group, 1) - best)
    mixed = (mixed / total.clamp_min(1e-38)).to(q.dtype)
    return mixed.view(kv_heads, TILE, group, value_dim).transpose(0, 1).reshape(TILE, -1)


def attention_weights(
    q: torch.Tensor, chunks: Iterable[Chunk], *, heads: int, kv_heads: int, scale: float
) -> torch.Tensor:
    """Return the weights [heads, TILE, keys] that :func:`attend`, with the same arguments, applies."""
    group, dim = heads // kv_heads, q.shape[1] // heads
    rows = q.view(TILE, heads, dim).transpose(0, 1)
    scores = [
        torch.bmm(rows, keys.repeat_interleave(group, dim=0).transpose(1, 2))
        .float()
        .mul(scale)
        .masked_fill(~seen.expand(TILE, KEY_CHUNK), -torch.inf)
        for keys, _, seen in chunks
    ]
    return torch.cat(scores, dim=-1).softmax(-1)


def _of_blocks(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Return the blocks' contents [kv_heads, KEY_CHUNK, dim], zeros if there are fewer blocks."""
    chunk = cache.new_zeros((KEY_CHUNK // BLOCK_TOKENS, *cache.shape[1:]))
    torch.index_select(cache, 0, blocks, out=chunk[: len(blocks)])
    return chunk.view(KEY_CHUNK, *cache.shape[2:]).transpose(0, 1).contiguous()

"""A batch while a program runs in torch: its rows in tiles, and what all layers share."""

from dataclasses import dataclass, field

import numpy as np
import torch

from galley.ops.batch import Batch, EncoderBatch, Ints
from galley.ops.tiles import (
    Layout,
    Pair,
    Tiles,
    pairs_of,
)


@dataclass(slots=True)
class Step:
    """The state of a batch of tokens, or of encoder inputs, while a program runs.

    The rows change at ``im2col``, which calls :meth:`place` again; ``layout`` also changes at
    ``select_rows``.

    Attributes:
        source: the batch to compute.
        tables: the blocks of each sequence or encoder input.
        angles: angles of rotations, shared by all layers.
        starts: sequence or encoder input s has rows ``starts[s]`` to ``starts[s + 1]``.
        at: [rows] positions; ``positions`` has the same in tiles.
        layout: the places of the rows in tiles.
        kv_slots: KV group -> [rows] slots of keys and values in the cache, computed at the first use.
        pairs: which sequences share rows with which tiles.
        attention: [rows, heads, max rows] the weights that an aligner returns.
        given: [rows, width] the rows that an encoder returns to its caller.
        adapters: [rows] the slot of each row's adapter, -1 for none; None if no row has one.
    """

    source: Batch | EncoderBatch
    tables: list[torch.Tensor]
    angles: dict[tuple[tuple[float, ...], float], list[tuple[torch.Tensor, torch.Tensor]]]
    starts: Ints = field(init=False)
    at: Ints = field(init=False)
    layout: Layout = field(init=False)
    positions: Tiles = field(init=False)
    kv_slots: dict[int, torch.Tensor] = field(init=False)
    pairs: list[Pair] = field(init=False)
    attention: torch.Tensor = field(init=False)
    given: torch.Tensor | None = None
    adapters: Ints | None = None

    def place(self, starts: Ints, positions: Ints, device: torch.device) -> None:
        """Place rows in tiles; ``starts[s]`` to ``starts[s + 1]`` belong to sequence or input s."""
        self.starts = starts
        self.at = positions
        self.kv_slots = {}
        self.layout = Layout.of(positions, device)
        self.positions = self.layout.scatter(torch.from_numpy(positions).to(device))
        self.pairs = pairs_of(self.layout, starts, positions)


def places_in(lengths: Ints) -> Ints:
    """Return the positions 0, 1, ... of the rows of each encoder input."""
    return np.concatenate([np.arange(length) for length in lengths])

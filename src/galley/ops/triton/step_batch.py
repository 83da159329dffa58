"""Copy a batch to the device: all that kernels need of it, in one copy of one pinned buffer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from galley.ops.batch import Batch
from galley.ops.triton.tiles import SPLIT, Device
from galley.types import BLOCK_TOKENS

if TYPE_CHECKING:
    from galley.ops.triton.ranks import TensorRanks

Numbers = npt.NDArray[np.int32]

_ALIGNMENT: Final = 4
"""Alignment of sections, in int32 numbers: 16 bytes."""


class Shape(NamedTuple):
    """Sizes of a batch, which determine the launches.

    Attributes:
        rows: number of token rows.
        sequences: number of sequences, which is the number of rows of a table.
        wanted: number of rows whose logits are requested.
        width: blocks in a row of a table.
        single: number of sequences of one row, each of which is a separate tile.
        tiles: number of tiles of the sequences of several rows.
        stretches: number of stretches of attention of the sequences of one row.
        adapted: whether any sequence has an adapter.
        cross_width: blocks in a row of the table of encoder outputs; 0 for a batch without them.
        cross_stretches: number of stretches of attention to the encoder outputs of sequences of one row.
    """

    rows: int
    sequences: int
    wanted: int
    width: int
    single: int
    tiles: int
    stretches: int
    adapted: bool = False
    cross_width: int = 0
    cross_stretches: int = 1

    @classmethod
    def of_decode(cls, rows: int, stretches: int, *, adapted: bool, crossed: int = 0) -> "Shape":
        """Return the shape of a batch with one row per sequence, all with logits.

        ``crossed`` is the number of stretches of attention to encoder outputs, if there are any.
        """
        width, cross_width = (n * SPLIT // BLOCK_TOKENS for n in (stretches, crossed))
        return cls(
            rows, rows, rows, width, rows, 0, stretches, adapted, cross_width, max(1, crossed)
        )


class Cross(NamedTuple):
    """The encoder outputs that sequences attend to, int32.

    Attributes:
        last: [rows] the last row of the encoder output of the row's sequence.
        table: [sequences, cross_width] their blocks.
    """

    last: torch.Tensor
    table: torch.Tensor


@dataclass(slots=True)
class StepBatch:
    """A batch on the device, all int32.

    Attributes:
        shape: its sizes.
        tokens, positions, sequences: [rows]; a row of sequence -1 is padding.
        slots: [rows] the slots of their adapters, -1 for none; None if no row has one.
        types: [rows] types of the tokens.
        starts: [sequences + 1] the first row of each sequence.
        wanted: [wanted] rows whose logits are requested.
        single: [single, 3] tiles of attention; see ``kernels/attention.py``.
        tiles: [tiles, 3] likewise.
        tables: [sequences, width] for each KV group.
        cross: encoder outputs; None for a batch without them.
        angles: rotations, shared by all layers: (inv_freq, scale) -> cos, sin [rows, pairs].
    """

    shape: Shape
    tokens: torch.Tensor
    positions: torch.Tensor
    sequences: torch.Tensor
    slots: torch.Tensor | None
    types: torch.Tensor
    starts: torch.Tensor
    wanted: torch.Tensor
    single: torch.Tensor
    tiles: torch.Tensor
    tables: list[torch.Tensor]
    cross: Cross | None = None
    angles: dict[tuple[tuple[float, ...], float], tuple[torch.Tensor, torch.Tensor]] = field(
        default_factory=dict
    )

    def turns(self, inv_freq: tuple[float, ...], scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines of all rows' angles, times ``scale``."""
        key = (inv_freq, scale)
        if key not in self.angles:
            frequencies = _frequencies(inv_freq, self.positions.device)
            angle = self.positions.float()[:, None] * frequencies
            self.angles[key] = (angle.cos() * scale, angle.sin() * scale)
        return self.angles[key]


_known: dict[tuple[tuple[float, ...], torch.device], torch.Tensor] = {}


def _frequencies(inv_freq: tuple[float, ...], device: torch.device) -> torch.Tensor:
    """Copy frequencies to the device only once: a graph cannot capture a copy from unpinned memory."""
    key = (inv_freq, device)
    if key not in _known:
        _known[key] = torch.tensor(inv_freq, dtype=torch.float32, device=device)
    return _known[key]


class Staging:
    """Memory for batches of up to one shape, pinned on the host and on the device."""

    def __init__(
        self,
        shape: Shape,
        groups: int,
        device: Device,
        blocks: int = 1 << 31,
        ranks: "TensorRanks | None" = None,
    ) -> None:
        """Allocate the memory, for a KV cache of ``groups`` groups and ``blocks`` blocks."""
        self.shape, self._blocks, self._ranks = shape, blocks, ranks
        sizes = [shape.rows] * 3 + [shape.rows * shape.adapted, shape.rows, shape.sequences + 1]
        sizes += [shape.wanted, 3 * shape.single, 3 * shape.tiles]
        sizes += [shape.rows * (shape.cross_width > 0), shape.sequences * shape.cross_width]
        sizes += [shape.sequences * shape.width] * groups
        begins = [0, *itertools.accumulate(-(-n // _ALIGNMENT) * _ALIGNMENT for n in sizes)]
        self._host = torch.zeros(
            max(1, begins[-1]), dtype=torch.int32, pin_memory=device.torch.type == "cuda"
        )
        self._device = torch.zeros_like(self._host, device=device.torch)
        self._where = device
        self._copied: torch.cuda.Event | None = None
        places = list(zip(begins, sizes, strict=False))
        self._sections = [self._host.numpy()[at : at + n] for at, n in places]
        views = [self._device[at : at + n] for at, n in places]
        tokens, positions, sequences, slots, types, starts, wanted, single, tiles, *rest = views
        last, crossed, *tables = rest
        self.batch = StepBatch(
            shape,
            tokens,
            positions,
            sequences,
            slots if shape.adapted else None,
            types,
            starts,
            wanted,
            single.view(-1, 3),
            tiles.view(-1, 3),
            [table.view(shape.sequences, shape.width) for table in tables],
            Cross(last, crossed.view(shape.sequences, -1)) if shape.cross_width else None,
        )

    def fill(
        self, batch: Batch, single: Numbers, tiles: Numbers, drawn: torch.Tensor | None = None
    ) -> StepBatch:
        """Copy the batch to the device, padded to the shape with rows of sequence -1.

        Args:
            batch: the batch; token id -1 - d stands for ``drawn[d]``.
            single, tiles: tiles of attention, see :func:`tiles_of`.
            drawn: token ids on the device, of the step before; of several ranks, only rank 0 has them.

        Raises:
            ValueError: a table names a block that does not exist.
        """
        if self._copied is not None:  # the host's memory may still be read for the step before
            self._copied.synchronize()
        rows, count = len(batch.tokens), len(batch.starts) - 1
        tokens, positions, sequences, slots, types, starts, wanted, first, second, *rest = (
            self._sections
        )
        last, crossed, *tables = rest
        tokens[:rows], tokens[rows:] = batch.tokens, 0
        positions[:rows], positions[rows:] = batch.positions, 0
        types[:] = 0
        if batch.types is not None:
            types[:rows] = batch.types
        starts[: count + 1], starts[count + 1 :] = batch.starts, rows
        owners = np.repeat(np.arange(count, dtype=np.int32), np.diff(np.asarray(batch.starts)))
        sequences[:rows], sequences[rows:] = owners, -1
        if batch.adapters is not None:
            slots[:rows], slots[rows:] = np.asarray(batch.adapters)[owners], -1
        wanted[: len(batch.wanted)], wanted[len(batch.wanted) :] = batch.wanted, 0
        for section, found in ((first, single), (second, tiles)):
            section[: found.size], section[found.size :] = found.reshape(-1), -1
        for group, section in enumerate(tables):
            own = batch.tables[group * count : (group + 1) * count]
            self._fill_table(section, self.shape.width, own)
        if batch.cross is not None:
            last[:rows], last[rows:] = np.asarray(batch.cross.rows)[owners] - 1, 0
            self._fill_table(crossed, self.shape.cross_width, batch.cross.tables)
        self._device.copy_(self._host, non_blocking=True)
        self._copied = self._where.mark()
        if drawn is not None:
            known = self.batch.tokens
            # A draw without a choice is -1; its row's results are dropped.
            draws = drawn.index_select(0, (-1 - known).clamp_(min=0)).clamp_(min=0)
            torch.where(known < 0, draws, known, out=known)
        if self._ranks is not None and min(batch.tokens, default=0) < 0:
            self._ranks.broadcast(self.batch.tokens)
        self.batch.angles.clear()
        return self.batch

    def _fill_table(self, section: Numbers, width: int, tables: Sequence[object]) -> None:
        """Copy block tables into ``section``; entries after the end of a table are never read."""
        for s, table in enumerate(tables):
            blocks = np.asarray(table)[:width]
            section[s * width : s * width + len(blocks)] = blocks
        if len(section) and not 0 <= section.min() <= section.max() < self._blocks:
            raise ValueError(f"a block table refers to a block above {self._blocks - 1}")


def tiles_of(batch: Batch, rows_together: int) -> tuple[Numbers, Numbers]:
    """Return (tiles of single rows, tiles of up to ``rows_together`` rows), each [tiles, 3]."""
    starts = np.asarray(batch.starts)
    single = [(s, starts[s], 1) for s in np.flatnonzero(np.diff(starts) == 1)]
    many = [
        (s, row, min(rows_together, int(starts[s + 1]) - row))
        for s in np.flatnonzero(np.diff(starts) > 1)
        for row in range(int(starts[s]), int(starts[s + 1]), rows_together)
    ]
    return (
        np.array(single, dtype=np.int32).reshape(-1, 3),
        np.array(many, dtype=np.int32).reshape(-1, 3),
    )


def shape_of(batch: Batch, single: Numbers, tiles: Numbers) -> Shape:
    """Return the exact shape of the batch."""
    positions = np.asarray(batch.positions)
    last = int(positions.max(initial=0))
    longest = None if batch.cross is None else max(1, int(np.asarray(batch.cross.rows).max()))
    alone = int(positions[single[:, 1]].max(initial=0)) if len(single) else 0
    return Shape(
        rows=len(batch.tokens),
        sequences=len(batch.starts) - 1,
        wanted=len(batch.wanted),
        width=last // BLOCK_TOKENS + 1,
        single=len(single),
        tiles=len(tiles),
        stretches=alone // SPLIT + 1,
        adapted=batch.adapters is not None,
        cross_width=0 if longest is None else (longest - 1) // BLOCK_TOKENS + 1,
        cross_stretches=1 if longest is None else (longest - 1) // SPLIT + 1,
    )

"""Choose tile sizes, warps and stages by matrix, number of rows and device. None changes a row's bits."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import torch
from torch import cuda

from galley.errors import SettingsError
from galley.ops.triton.supported import LEAST_CAPABILITY

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run on the CPU, in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A linear layer's tile: outputs, rows and columns, and how many tiles of outputs share rows."""

    outputs: int
    rows: int
    columns: int
    warps: int
    stages: int
    together: int = 8


@dataclass(frozen=True, slots=True)
class Device:
    """The properties of a device that determine the best tiles.

    Attributes:
        name: torch's name of the device.
        capability: compute capability of a CUDA device, 90 for 9.0; 0 in the interpreter and elsewhere.
    """

    name: str
    capability: int

    @property
    def torch(self) -> torch.device:
        """The torch device, for allocations."""
        return torch.device(self.name)

    @property
    def graphs(self) -> bool:
        """Whether launches can be captured and replayed."""
        return not INTERPRETED and self.torch.type == "cuda"

    def current(self) -> AbstractContextManager[object]:
        """Return a context in which this is torch's current device, on which kernels are launched."""
        return cuda.device(self.torch) if self.torch.type == "cuda" else nullcontext()

    def synchronize(self) -> None:
        """Wait for all launches."""
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)

    def mark(self) -> "cuda.Event | None":
        """Return an event that is complete once all launches so far are; None where launches block."""
        if self.torch.type != "cuda":
            return None
        event = cuda.Event()  # type: ignore[no-untyped-call]
        event.record(cuda.current_stream(self.torch))
        return event


def device_of(name: str) -> Device:
    """Return the device that has this ``name`` in torch."""
    device = torch.device(name)
    if device.type != "cuda" or torch.version.hip:
        return Device(name, 0)
    major, minor = torch.cuda.get_device_capability(device)
    return Device(name, 10 * major + minor)


def check_capability(name: str) -> None:
    """Raise SettingsError if Triton does not compile for the GPU that has this ``name`` in torch."""
    if torch.version.hip or not cuda.is_available():
        return
    try:
        major, minor = cuda.get_device_capability(name)
    except (AssertionError, RuntimeError, ValueError):
        return  # there is no such device, which is said when it is used
    if 10 * major + minor < LEAST_CAPABILITY:
        least = f"{LEAST_CAPABILITY // 10}.{LEAST_CAPABILITY % 10}"
        raise SettingsError(
            f"executor 'gpu' needs compute capability {least} or later, but {name} has {major}.{minor}; "
            "use executor reference, or a newer GPU"
        )


_SHARED: Final = {8: 99 << 10, 0: 64 << 10}
"""Major compute capability -> bytes of shared memory per program on the smallest such device."""

_FOUR_BITS: Final = ("int4", "mxfp4")
"""Kinds of matrices with four codes in a word."""

_MOST_SHARED: Final = 227 << 10


@lru_cache(maxsize=4096)
def linear_tile(
    device: Device, kind: str, dtype: torch.dtype, rows: int, outputs: int, splits: int
) -> Tile:
    """Choose the tile for ``rows`` rows and a matrix of a type.

    Args:
        device: the device.
        kind: "dense", "int8", "int4", "fp8" or "mxfp4"; a launch uses the tile's columns only for "dense".
        dtype: type of the rows.
        rows: number of rows.
        outputs: outputs of the matrix.
        splits: number of stretches of its columns.
    """
    if INTERPRETED:
        return Tile(128, 16, 64, 4, 1)
    if dtype == torch.float32:
        return Tile(64, 16 if rows <= 16 else 32, 32, 4, 2)
    if rows <= 16:
        # With many outputs, two programs share a multiprocessor; with few, one keeps more loads in flight.
        best = Tile(64, 16, 128, 4, 4 if outputs >= _MANY_OUTPUTS else 8)
        if kind != "dense":
            best = Tile(64 if kind in _FOUR_BITS else 32, 16, 64, 2, 4)
    elif kind != "dense" and device.capability < 90:
        best = Tile(64, 32, 64, 4, 2)
    elif rows <= 128:
        best = _few(kind, rows, outputs)
    else:
        tiles = _TILES if kind == "dense" else _PACKED_TILES
        fitting = [t for t in tiles if _holds_sums(device, t, splits)]
        best = min(fitting, key=lambda t: _time(t, rows, outputs))
        # A tile of words of 4-bit codes has four times as many columns as words.
        best = replace(best, stages=2) if kind in _FOUR_BITS else best
    return _fitting(device, best, kind)


def grouped_tile(device: Device, kind: str, dtype: torch.dtype, rows: int, outputs: int) -> Tile:
    """Choose the tile of ``rows`` rows (16 to 128, a power of two) whose matrix is one of several.

    Args:
        device: the device.
        kind: as in :func:`linear_tile`.
        dtype: type of the rows.
        rows: rows of a tile.
        outputs: outputs of one matrix.
    """
    if INTERPRETED or kind != "dense" or dtype == torch.float32:
        return linear_tile(device, kind, dtype, rows, outputs, 1)
    return _fitting(device, _GROUPED_TILES[rows], kind)


def _fitting(device: Device, tile: Tile, kind: str) -> Tile:
    """Return the tile with as many stages as fit into shared memory."""
    parts = 1 if kind == "dense" else 4 if kind in _FOUR_BITS else 2
    stage = 2 * tile.columns * (tile.outputs + parts * tile.rows)
    room = _SHARED.get(device.capability // 10, _MOST_SHARED)
    if stage > room:
        narrower = replace(tile, rows=max(16, tile.rows // 2), outputs=max(64, tile.outputs // 2))
        return _fitting(device, narrower, kind)
    return replace(tile, stages=max(1, min(tile.stages, room // stage)))


def _few(kind: str, rows: int, outputs: int) -> Tile:
    """Choose the tile for 17 to 128 rows, which take about as long as reading the matrix."""
    many = outputs >= _MANY_OUTPUTS
    if kind in _FOUR_BITS:
        if rows <= 32:
            return Tile(128 if many else 64, 32, 64, 4, 2)
        return Tile(128, 64 if many else 32, 64, 4, 2)
    if kind != "dense":
        if rows > 64 and many:
            return Tile(128, 128, 64, 8, 3)
        return Tile(64, 32 if rows <= 32 else 64, 64, 4, 4)
    if rows <= 32:
        return Tile(64, 32, 128, 4, 4) if many else Tile(64, 32, 256, 4, 3)
    if rows <= 64 or outputs <= _FEW_OUTPUTS:
        return Tile(64, 64, 128, 4, 4)
    return Tile(128, 128, 64, 8, 3) if many else Tile(64, 128, 128, 4, 3)


_FEW_OUTPUTS: Final = 4096
_MANY_OUTPUTS: Final = 16384

_TILES: Final = {
    Tile(128, 256, 64, 8, 3): 1.0,
    Tile(256, 128, 64, 8, 3): 0.92,
    Tile(128, 128, 64, 8, 4): 0.88,
    Tile(64, 128, 64, 4, 4): 0.75,
    Tile(128, 64, 64, 4, 4): 0.7,
    Tile(64, 64, 128, 4, 4): 0.55,
    Tile(64, 32, 128, 4, 4): 0.35,
}
"""Tiles for dense matrices -> operations per second of a multiprocessor relative to the fastest tile."""

_PACKED_TILES: Final = {
    Tile(128, 128, 64, 8, 3): 0.7,
    Tile(64, 128, 64, 4, 3): 0.6,
    Tile(64, 64, 64, 4, 4): 0.45,
    Tile(64, 32, 64, 4, 4): 0.3,
}

_GROUPED_TILES: Final = {
    16: Tile(64, 16, 128, 4, 5),
    32: Tile(128, 32, 64, 4, 5),
    64: Tile(128, 64, 64, 4, 4),
    128: Tile(128, 128, 64, 8, 3),
}
"""Rows of a tile -> the fastest tile for dense matrices of experts on an H200."""

_PROCESSORS: Final = 132


def _holds_sums(device: Device, tile: Tile, splits: int) -> bool:
    """Return whether registers hold a tile's sums, and those to which stretches are added."""
    large = tile.outputs * tile.rows > 128 * 128
    return not large or (device.capability >= 90 and splits == 1)


def _time(tile: Tile, rows: int, outputs: int) -> float:
    """Estimate the relative time of a product, by rounds of tiles over all multiprocessors."""
    speed = (_TILES | _PACKED_TILES)[tile]
    tiles = -(-outputs // tile.outputs) * -(-rows // tile.rows)
    together = 2 if tile.warps == 4 else 1
    rounds = -(-tiles // (_PROCESSORS * together))
    return rounds * together * tile.outputs * tile.rows / speed


SPLIT: Final = 128
"""Keys per stretch of attention; separate programs can compute stretches."""


def block_keys(device: Device, bits: int = 0) -> int:
    """Return the number of keys of one product: as many as registers have room for.

    With ``bits`` 4 they also hold what keys and values are unpacked to.
    """
    if INTERPRETED:
        return 64
    return 64 if device.capability >= 90 and bits != 4 else 32


@dataclass(frozen=True, slots=True)
class QueryTile:
    """A tile of attention: rows of a sequence, warps and stages."""

    rows: int
    warps: int
    stages: int


def query_tile(
    device: Device, heads_together: int, *, many: bool, latent: bool = False
) -> QueryTile:
    """Choose the tile of sequences of ``many`` rows or of one, with ``heads_together`` per KV head.

    Registers hold fewer rows of ``latent`` attention, whose values are wide.
    """
    if INTERPRETED:  # numpy's products depend on the number of rows
        return QueryTile(max(1, 64 // heads_together), 4, 1)
    if latent:
        return QueryTile(max(1, 16 // heads_together), 8 if device.capability else 4, 1)
    if device.capability == 0:
        return QueryTile(max(1, (64 if many else 16) // heads_together), 4, 1)
    if many:
        return QueryTile(max(1, 128 // heads_together), 8, 2)
    return QueryTile(max(1, 16 // heads_together), 4, 3)


ROWS_TOGETHER: Final = 16 if INTERPRETED else 1
"""Rows per program of kernels without products; in the interpreter, starting a program dominates."""

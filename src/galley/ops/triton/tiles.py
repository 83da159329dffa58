"""Sizes of tiles, warps and stages, by matrix, number of rows and device. None changes a row's bits."""

import os
from dataclasses import dataclass
from typing import Final

import torch

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run on the CPU, in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Of a linear layer: outputs, rows and columns of a tile; tiles of outputs that share rows."""

    outputs: int
    rows: int
    columns: int
    warps: int
    stages: int
    together: int = 8


@dataclass(frozen=True, slots=True)
class Device:
    """What decides which tiles are best.

    Attributes:
        name: as torch has it.
        capability: of a CUDA device, 90 for 9.0; 0 in the interpreter and on other devices.
    """

    name: str
    capability: int

    @property
    def torch(self) -> torch.device:
        """For allocations."""
        return torch.device(self.name)

    @property
    def graphs(self) -> bool:
        """Whether launches can be captured and replayed."""
        return not INTERPRETED and self.torch.type == "cuda"

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)


def device_of(name: str) -> Device:
    """The device that torch knows by ``name``."""
    device = torch.device(name)
    if device.type != "cuda" or torch.version.hip:
        return Device(name, 0)
    major, minor = torch.cuda.get_device_capability(device)
    return Device(name, 10 * major + minor)


def linear_tile(
    device: Device, kind: str, dtype: torch.dtype, rows: int, outputs: int, group_columns: int
) -> Tile:
    """For ``rows`` rows of a matrix of a kind.

    Integers and 8-bit floats are multiplied by one instruction for any number of rows: tiles of 64 outputs
    and more on devices of capability 90 (warp groups read them from registers), the same order of columns
    everywhere else. Dense matrices have the same bits with either instruction (``make gpu-check`` looks).

    Args:
        device: that it is for.
        kind: "dense", "int8", "int4" or "fp8".
        dtype: of the rows.
        rows: how many.
        outputs: of the matrix.
        group_columns: columns that must be multiplied together; 0: any number.
    """
    if INTERPRETED:
        return Tile(128, 16, group_columns or 64, 4, 1)
    if dtype == torch.float32:
        return Tile(64, 16 if rows <= 16 else 32, group_columns or 32, 4, 2)
    if kind == "dense":
        return _dense(rows, outputs)
    return _packed(kind, rows, group_columns)


def _dense(rows: int, outputs: int) -> Tile:
    if rows <= 16:
        return Tile(64, 16, 128, 4, 5) if outputs >= 16384 else Tile(32, 16, 256, 4, 4)
    if rows <= 32:
        return Tile(64, 32, 128, 4, 4)
    if rows <= 64:
        return Tile(64, 64, 128, 4, 4)
    if rows <= 128:
        return Tile(128, 128, 64, 8, 4)
    return Tile(128, 256, 64, 8, 3)


def _packed(kind: str, rows: int, group_columns: int) -> Tile:
    columns = group_columns or 128
    if rows <= 16:
        return Tile(64, 16, columns, 4, 5)
    if rows <= 64:
        return Tile(64, 32 if rows <= 32 else 64, columns, 4, 4)
    if kind == "int4" or group_columns:
        return Tile(128, 128, columns, 8, 3)
    return Tile(128, 128, 64, 8, 4) if rows <= 128 else Tile(128, 256, 64, 8, 3)


SPLIT: Final = 256
"""Keys in a stretch of attention, which may be a program's own."""

BLOCK_KEYS: Final = 64
"""Keys of one product."""


def query_rows(heads_together: int, *, many: bool) -> tuple[int, int]:
    """(rows of a sequence in a tile of attention, warps); a row has so many heads for each KV head."""
    if INTERPRETED:
        return max(1, (64 if many else 16) // heads_together), 4
    if many:
        return max(1, 128 // heads_together), 8
    return max(1, 16 // heads_together), 4


ROWS_TOGETHER: Final = 16 if INTERPRETED else 1
"""Rows of a program that has no products: in the interpreter a program costs more than its work."""

"""What small launches fetch into the L2 cache for the product behind them; see ``kernels/prefetch.py``."""

from typing import Any, Final, Literal, NamedTuple

import torch

from galley.ops.triton.matrices import Matrix
from galley.ops.triton.tiles import Device

Launch = Literal["norm", "rope", "attention"]

SHARES: Final[dict[Launch, tuple[float, float]]] = {
    "norm": (0.0, 0.16),
    "rope": (0.0, 0.16),
    "attention": (0.16, 0.5),
}
"""Launch -> the shares of the L2 cache where what it fetches of the next matrix begins and ends."""

MOST_ROWS: Final = 16
"""Steps of more rows have launches that take longer than fetching would save."""

_PROGRAMS: Final = 128
_LINE: Final = 128


class Ahead(NamedTuple):
    """The part of a matrix that a launch fetches.

    Attributes:
        first: an element of the part's first line; the part begins there in every row.
        rows: rows of the matrix.
        row_bytes: bytes from one row to the next.
        lines: lines of 128 bytes of each row.
        programs: how many programs of the launch's first axis fetch; 0: nothing is fetched.
    """

    first: torch.Tensor
    rows: int
    row_bytes: int
    lines: int
    programs: int

    @property
    def arguments(self) -> dict[str, Any]:
        """The kernel's arguments."""
        return {
            "ahead_ptr": self.first,
            "ahead_rows": self.rows,
            "ahead_bytes": self.row_bytes,
            "ahead_lines": self.lines,
            "AHEAD": self.programs,
        }


def ahead(
    launch: Launch,
    matrix: Matrix | None,
    device: Device,
    rows: int,
    width: int,
    other: torch.Tensor,
) -> Ahead:
    """Return what a launch fetches.

    Args:
        launch: its kind.
        matrix: the matrix of the product behind it, if there is one.
        device: the device.
        rows: rows of the step.
        width: programs of the launch's other axes.
        other: any tensor, for the kernel's argument where nothing is fetched.
    """
    nothing = Ahead(other, 1, 0, 1, 0)
    if matrix is None or rows > MOST_ROWS or not device.cache:
        return nothing
    row_bytes = matrix.values.stride(0) * matrix.values.itemsize
    begin, end = (
        min(row_bytes, int(share * device.cache) // matrix.outputs) // _LINE
        for share in SHARES[launch]
    )
    if end == begin:
        return nothing
    first = matrix.values.view(-1)[begin * _LINE // matrix.values.itemsize :]
    return Ahead(first, matrix.outputs, row_bytes, end - begin, -(-_PROGRAMS // width))

"""Matrices in the layouts of ``kernels/linear.py``, and the launches of kernels on them."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton

from galley.ops.triton.kernels.linear import dequantize_kernel, linear_kernel
from galley.ops.triton.kernels.rows import gather_kernel
from galley.ops.triton.tiles import INTERPRETED, ROWS_TOGETHER, Device, linear_tile

GATHERED: Final = 1024
"""Maximum columns that one program of ``gather_kernel`` copies."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix on the device.

    Attributes:
        kind: "dense", "int8", "int4", "fp8" or "mxfp4".
        values: its values or codes; see ``kernels/linear.py``.
        outputs, depth: its size.
        group: number of columns that share a scale.
        words: words of codes in a tile; 0 for a dense matrix.
        coded: whether it has codes, or had before it was dequantized for many rows.
        whole: its outputs at all ranks of a divided model together; 0 if it is not divided.
        scales, zeros, minima: [groups, outputs], or None.
        bias: [outputs] float32, or None.
    """

    kind: str
    values: torch.Tensor
    outputs: int
    depth: int
    group: int
    words: int = 0
    coded: bool = False
    whole: int = 0
    scales: torch.Tensor | None = None
    zeros: torch.Tensor | None = None
    minima: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        parts = (self.values, self.scales, self.zeros, self.minima, self.bias)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def splits(self) -> tuple[int, int]:
        """(stretches of columns that are summed separately, columns of one stretch).

        Dense matrices have one stretch, because several are not read faster. A rank's part has those of the
        whole matrix: other stretches would change bits.
        """
        return splits_of(self.whole or self.outputs, self.depth) if self.coded else (1, self.depth)

    @property
    def grouped(self) -> bool:
        """Whether columns have scales of several groups, or minima."""
        return self.kind != "dense" and (self.group < self.depth or self.minima is not None)

    def multiply(
        self, device: Device, x: torch.Tensor, out: torch.Tensor, *, gated: bool = False
    ) -> None:
        """Compute ``out`` = x @ matrix^T or, if ``gated``, silu of the even outputs times the odd ones.

        For many rows, the whole matrix is dequantized first; the bits are the same.

        Args:
            device: the device of all tensors.
            x: [rows, depth].
            out: [rows, outputs], or half as many columns if ``gated``.
            gated: whether to combine pairs of outputs.
        """
        if self.kind != "dense" and x.dtype != torch.float32 and len(x) >= WHOLE_ROWS:
            whole = dataclasses.replace(
                self, kind="dense", values=self._dequantized(device, x.dtype)
            )
            whole._multiply(device, x, out, gated=gated, scaled=not self.grouped)
        else:
            scaled = self.kind != "dense" and not self.grouped
            self._multiply(device, x, out, gated=gated, scaled=scaled)

    @property
    def parts(self) -> int:
        """Number of codes in a word; 1 for a dense matrix."""
        return PARTS[self.kind]

    def constants(self, device: Device, dtype: torch.dtype) -> dict[str, Any]:
        """Return what kernels have compiled in about the matrix, for rows of ``dtype``."""
        return {
            "KIND": self.kind,
            "FAST": device.capability >= 80 and dtype == torch.bfloat16 and self.kind != "dense",
            "GROUPED": self.grouped,
            "EXACT": self.scales is not None and self.scales.dtype == torch.bfloat16,
            "ZEROS": self.zeros is not None,
            "MINIMA": self.minima is not None,
            **FUSION,
        }

    def _multiply(
        self, device: Device, x: torch.Tensor, out: torch.Tensor, *, gated: bool, scaled: bool
    ) -> None:
        rows = len(x)
        splits, stretch = self.splits
        tile = linear_tile(device, self.kind, x.dtype, rows, self.outputs, splits)
        columns = tile.columns if self.kind == "dense" else self.words
        step = columns * self.parts
        none = self.values
        tiles = triton.cdiv(self.outputs, tile.outputs) * triton.cdiv(rows, tile.rows)
        apart = splits > 1 and rows <= APART_ROWS
        part = out
        if splits > 1:
            size = tiles * tile.outputs * tile.rows * (splits if apart else 1)
            part = torch.empty(size, device=device.torch)
        linear_kernel[(tiles, splits if apart else 1)](
            x,
            self.values,
            none if self.scales is None else self.scales,
            none if self.zeros is None else self.zeros,
            none if self.minima is None else self.minima,
            none if self.bias is None else self.bias,
            out,
            part,
            counts(device.name),
            rows,
            self.outputs,
            self.depth,
            x.stride(0),
            out.stride(0),
            self.group,
            stretch,
            SPLITS=splits,
            APART=apart,
            SCALED=scaled,
            BIAS=self.bias is not None,
            GATED=gated,
            BLOCK_N=tile.outputs,
            BLOCK_T=tile.rows,
            BLOCK_K=columns,
            EVEN=self.depth % step == 0,
            TOGETHER=tile.together,
            num_warps=tile.warps,
            num_stages=tile.stages,
            **self.constants(device, x.dtype),
        )

    def _dequantized(self, device: Device, dtype: torch.dtype) -> torch.Tensor:
        whole = torch.empty((self.outputs, self.depth), dtype=dtype, device=device.torch)
        none = self.values
        step = self.words * self.parts
        dequantize_kernel[(triton.cdiv(self.outputs, 32), triton.cdiv(self.depth, step))](
            self.values,
            none if self.scales is None else self.scales,
            none if self.zeros is None else self.zeros,
            none if self.minima is None else self.minima,
            whole,
            self.outputs,
            self.depth,
            self.group,
            BLOCK_N=32,
            WORDS=self.words,
            **self.constants(device, dtype),
        )
        return whole

    def gather(self, device: Device, numbers: torch.Tensor, out: torch.Tensor) -> None:
        """Copy rows ``numbers`` of the matrix, dequantized, to ``out`` [numbers, depth]."""
        none = self.values
        block = min(GATHERED, triton.next_power_of_2(self.depth))
        gather_kernel[(triton.cdiv(len(numbers), ROWS_TOGETHER), triton.cdiv(self.depth, block))](
            numbers,
            self.values,
            none if self.scales is None else self.scales,
            none if self.zeros is None else self.zeros,
            none if self.minima is None else self.minima,
            out,
            len(numbers),
            self.values.stride(0),
            out.stride(0),
            self.depth,
            self.outputs,
            self.group,
            KIND=self.kind,
            ZEROS=self.zeros is not None,
            MINIMA=self.minima is not None,
            WORDS=max(1, self.words),
            ROWS=ROWS_TOGETHER,
            BLOCK=block,
            **FUSION,
        )


PARTS: Final[Mapping[str, int]] = {"dense": 1, "int8": 2, "fp8": 2, "int4": 4, "mxfp4": 4}
"""Number of codes in a word."""

WHOLE_ROWS: Final = 1 << 62 if INTERPRETED else 1024
"""From this many rows on, codes are dequantized once instead of in each tile."""

APART_ROWS: Final = 128
"""Up to this many rows, each stretch of columns is computed by a separate program."""

_MOST_SPLITS: Final = 8
_LEAST_STRETCH: Final = 1024
_STRETCH_STEP: Final = 256
_PROGRAMS: Final = 528
"""Four programs for each multiprocessor of an H100 or H200; used on all devices, so bits are the same."""


def splits_of(outputs: int, depth: int) -> tuple[int, int]:
    """Return (stretches of columns that are summed separately, columns of one), by the size only."""
    tiles = -(-outputs // 64)
    splits = 1
    while (
        2 * splits <= _MOST_SPLITS
        and 2 * splits * tiles <= _PROGRAMS
        and depth >= 2 * splits * _LEAST_STRETCH
    ):
        splits *= 2
    stretch = -(-depth // (splits * _STRETCH_STEP)) * _STRETCH_STEP
    return -(-depth // stretch), stretch


@functools.cache
def counts(device: str) -> torch.Tensor:
    """Return the counters of finished stretches per tile: zeros between launches, which run in order."""
    return torch.zeros(1 << 18, dtype=torch.int32, device=device)


FUSION: Final[Mapping[str, Any]] = {} if INTERPRETED else {"enable_fp_fusion": False}
"""Round a product and a following sum separately, because we cannot control where a compiler fuses them."""

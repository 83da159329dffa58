"""The integer grid of a quantized matrix: steps of one scale for each output and group of columns."""

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np

from galley.errors import UnsupportedModel
from galley.formats.values import as_bf16
from galley.formats.weights import INT4_MIDDLE, Floats, IntWeight

Bits = Literal[4, 8]

_RATIOS: Final = (1.0, 0.975, 0.95, 0.925, 0.9, 0.875, 0.85, 0.825, 0.8, 0.75, 0.7, 0.65)
"""Fractions of a group's range that the clip search tries; 1.0 clips nothing."""

_CHUNK_VALUES: Final = 1 << 20
_SEARCHED_VALUES: Final = 1 << 17
"""Values that the clip search takes at once: in a core's cache, where it reads them many times."""

_ZERO_POINT_BITS: Final = 7
"""Significant bits of a scale with zero points: float16 has 11, a zero point has 4."""

_SMALLEST: Final = 1e-30
"""A smaller scale represents a group of zeros."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme for quantizing a matrix to integers.

    Attributes:
        bits: bits per integer, 4 or 8.
        group: number of columns that share a scale; 0: all columns of a row.
        symmetric: zero is the middle of the range; False: each group has a zero point (4 bits only).
        scale_type: type of the scales. With zero points, F16 scales have so few bits that zero point times
            scale also fits a float16, as GGUF's Q4_1 needs.
    """

    bits: Bits
    group: int = 0
    symmetric: bool = True
    scale_type: Literal["BF16", "F16"] = "BF16"

    def columns(self, depth: int) -> int:
        """Return the columns per group for rows of ``depth``: all if groups do not divide the row."""
        return self.group if self.group and depth % self.group == 0 else depth

    def fitting(self, depth: int) -> "Scheme":
        """Return this scheme, or one with whole rows if groups do not divide rows of ``depth``."""
        return self if self.columns(depth) == self.group else replace(self, group=0)

    def as_scales(self, values: Floats) -> Floats:
        """Return the nearest values that scales can have."""
        if self.scale_type == "BF16":
            return as_bf16(values)
        if not self.symmetric:
            values = _with_bits(values, _ZERO_POINT_BITS)
        return values.astype(np.float16).astype(np.float32)

    @property
    def levels(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        return (0, 15) if self.bits == 4 else (-127, 127)

    @property
    def middle(self) -> int:
        """The integer that represents zero if there are no zero points."""
        return INT4_MIDDLE if self.bits == 4 else 0


class Grid(NamedTuple):
    """Scales and zero points of a matrix [outputs, depth]: both [outputs, groups]."""

    scales: Floats
    zeros: Floats


def fit(grouped: Floats, scheme: Scheme, ratio: float = 1.0) -> Grid:
    """Return the grid for ``ratio`` of each group's range; ``grouped`` is [outputs, groups, columns].

    A symmetric 4-bit scale has the sign that maps the value of largest magnitude to -8, as the range has
    one more step on that side.
    """
    return _grid_of(_extremes(grouped, scheme), scheme, ratio)


def _extremes(grouped: Floats, scheme: Scheme) -> Floats:
    """Return what groups' grids depend on: [outputs, groups], or least and greatest values, stacked."""
    if not scheme.symmetric:
        return np.stack([np.minimum(grouped.min(axis=2), 0), np.maximum(grouped.max(axis=2), 0)])
    size = np.abs(grouped)
    if scheme.bits == 8:
        largest: Floats = size.max(axis=2)
        return largest
    at = size.argmax(axis=2)[:, :, None]
    return np.take_along_axis(grouped, at, axis=2)[:, :, 0]


def _grid_of(extremes: Floats, scheme: Scheme, ratio: float) -> Grid:
    """Return the grid for ``ratio`` of the range of groups with these :func:`_extremes`."""
    if not scheme.symmetric:
        low, high = extremes * ratio
        scales = scheme.as_scales(((high - low) / 15).astype(np.float32))
        return Grid(scales, np.clip(np.rint(-low * inverse(scales)), 0, 15).astype(np.float32))
    step = ratio / 127 if scheme.bits == 8 else -ratio / INT4_MIDDLE
    scales = scheme.as_scales(extremes * np.float32(step))
    return Grid(scales, np.full_like(scales, scheme.middle))


def search(grouped: Floats, scheme: Scheme, importance: Floats | None = None) -> Grid:
    """Search the clipping of each group and return the grid with the least squared error.

    Args:
        grouped: [outputs, groups, columns].
        scheme: quantization scheme.
        importance: [groups, columns] weights of the errors; None: equal weights.
    """
    rows = max(1, _SEARCHED_VALUES // (grouped.shape[1] * grouped.shape[2]))
    parts = [
        _searched(grouped[first : first + rows], scheme, importance)
        for first in range(0, len(grouped), rows)
    ]
    return Grid(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _searched(grouped: Floats, scheme: Scheme, importance: Floats | None) -> Grid:
    """Search as :func:`search` does, for outputs whose values fit a core's cache."""
    extremes = _extremes(grouped, scheme)
    best = _grid_of(extremes, scheme, 1.0)
    least = np.full(best.scales.shape, np.inf, dtype=np.float32)
    missed = np.empty_like(grouped)
    for ratio in _RATIOS:
        tried = _grid_of(extremes, scheme, ratio)
        steps(grouped, tried, scheme, out=missed)
        missed -= tried.zeros[:, :, None]
        missed *= tried.scales[:, :, None]
        missed -= grouped
        np.square(missed, out=missed)
        if importance is not None:
            missed *= importance
        total = missed.sum(axis=2)
        better = total < least
        least = np.where(better, total, least)
        best = Grid(*(np.where(better, new, old) for new, old in zip(tried, best, strict=True)))
    return best


def steps(grouped: Floats, grid: Grid, scheme: Scheme, out: Floats | None = None) -> Floats:
    """Return the nearest integers, as floats.

    Args:
        grouped: [outputs, groups, columns].
        grid: grid of the integers.
        scheme: quantization scheme.
        out: array for the result; None: a new one.
    """
    low, high = scheme.levels
    found: Floats = np.multiply(grouped, inverse(grid.scales)[:, :, None], out=out)
    np.rint(found, out=found)
    found += grid.zeros[:, :, None]
    np.clip(found, low, high, out=found)
    return found


def values(integers: Floats, grid: Grid) -> Floats:
    """Return the values that integers [outputs, groups, columns] represent."""
    return (integers - grid.zeros[:, :, None]) * grid.scales[:, :, None]


def groups_of(matrix: Floats, scheme: Scheme) -> Floats:
    """Reshape [outputs, depth] to [outputs, groups, columns]."""
    columns = scheme.columns(matrix.shape[1])
    return matrix.reshape(len(matrix), -1, columns)


def integer_weight(name: str, integers: Floats, grid: Grid, scheme: Scheme) -> IntWeight:
    """Return integers [outputs, depth] and their grid as a typed weight."""
    q = integers.astype(np.uint8) if scheme.bits == 4 else integers.astype(np.int8)
    zeros = None if scheme.symmetric else grid.zeros.astype(np.uint8)
    columns = scheme.columns(integers.shape[1])
    return IntWeight(name, scheme.bits, q, columns, grid.scales, zeros, scheme.scale_type)


def nearest(name: str, matrix: Floats, scheme: Scheme, *, clip: bool = False) -> IntWeight:
    """Round each value to the nearest step: "rtn" or, with ``clip``, the searched grid of "mse".

    Args:
        name: name of the tensor.
        matrix: [outputs, depth].
        scheme: quantization scheme.
        clip: search the fraction of each group's range that gives the least squared error.
    """
    integers = np.empty(matrix.shape, np.float32)
    grids = []
    rows = max(1, _CHUNK_VALUES // matrix.shape[1])
    for first in range(0, len(matrix), rows):
        grouped = groups_of(matrix[first : first + rows], scheme)
        grid = search(grouped, scheme) if clip else fit(grouped, scheme)
        found = steps(grouped, grid, scheme)
        integers[first : first + rows] = found.reshape(len(grouped), -1)
        grids.append(grid)
    whole = Grid(*(np.concatenate(parts) for parts in zip(*grids, strict=True)))
    return integer_weight(name, integers, whole, scheme)


def check_finite(name: str, matrix: Floats) -> None:
    """Raise UnsupportedModel if a value is infinite or NaN."""
    if not np.isfinite(matrix).all():
        raise UnsupportedModel(f"tensor {name} contains values that are infinite or NaN")


def inverse(scales: Floats) -> Floats:
    """Return 1 / scale, or 0 where the scale is too small to divide by."""
    usable = np.abs(scales) > _SMALLEST
    return np.where(usable, 1 / np.where(usable, scales, 1), 0).astype(np.float32)


def _with_bits(values: Floats, bits: int) -> Floats:
    """Round each value to ``bits`` significant binary digits."""
    fraction, exponent = np.frexp(values)
    rounded: Floats = np.ldexp(np.rint(np.ldexp(fraction, bits)), exponent - bits)
    return rounded

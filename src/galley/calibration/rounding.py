"""Rounding of a layer's weights to integers, given the layer's inputs: one class for each method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from galley.calibration.producers import Producer, producer_of
from galley.engine.read_model import Model
from galley.formats.values import as_dense, to_float32
from galley.formats.weights import DenseWeight, Floats, IntWeight
from galley.quant.awq import clipped, input_scales
from galley.quant.gptq import corrected, factor_of, gptq
from galley.quant.grid import Grid, Scheme, check_finite, groups_of, integer_weight, nearest, steps
from galley.quant.refine import refined
from galley.quant.smoothquant import smoothing_scales

_SAMPLED: Final = 256
"""Most rows of inputs, evenly spaced, on which scales are compared."""


class Rounding(Protocol):
    """Quantizes the linear layers of one block after another."""

    @property
    def sequential(self) -> bool:
        """Whether later layers are calibrated with the outputs of the quantized earlier ones."""
        ...

    def alone(self, name: str) -> IntWeight:
        """Quantize a matrix without calibration."""
        ...

    def see(
        self, buffer: int, names: Sequence[str], rows: Floats, originals: Floats
    ) -> list[IntWeight]:
        """Process the inputs of some matrices; return those matrices that are integers now.

        Args:
            buffer: that the matrices read.
            names: names of the matrices.
            rows: its rows, [tokens, depth], as they are at present.
            originals: the same rows in the original model, for methods that use these.
        """
        ...

    def end_layer(self) -> list[IntWeight | DenseWeight]:
        """Return all tensors of the layer that have changed."""
        ...


def trials_of(
    model: Model, names: Sequence[str], rows: Floats | None
) -> Callable[[Scheme], list[IntWeight]]:
    """Return a function from a scheme to a method's integers for the matrices alone, to measure their loss.

    Args:
        model: with the matrices.
        names: names of the matrices; all read the same inputs.
        rows: these inputs, [tokens, depth], for gptq without its refinement; None: the nearest steps with
            searched clips, which stand for all other methods.
    """
    matrices = [_matrix(model, name) for name in names]
    if rows is None:

        def by_clips(scheme: Scheme) -> list[IntWeight]:
            pairs = zip(names, matrices, strict=True)
            return [nearest(name, matrix, scheme, clip=True) for name, matrix in pairs]

        return by_clips
    factor, order = factor_of(rows.T @ rows)

    def by_gptq(scheme: Scheme) -> list[IntWeight]:
        integers, grid = gptq(np.concatenate(matrices), factor, order, scheme)
        return list(_apart(names, [len(m) for m in matrices], integers, grid, scheme))

    return by_gptq


def rounding_of(
    method: str, model: Model, schemes: Mapping[str, Scheme], *, act_order: bool
) -> Rounding:
    """Return the method of that name."""
    if method == "gptq":
        return _Gptq(model, schemes, act_order)
    if method == "awq":
        return _Awq(model, schemes)
    if method == "smoothquant":
        return _SmoothQuant(model, schemes)
    return _Nearest(model, schemes, clip=method == "mse")


class _Nearest:
    sequential = True

    def __init__(self, model: Model, schemes: Mapping[str, Scheme], *, clip: bool) -> None:
        self._model, self._schemes, self._clip = model, schemes, clip

    def alone(self, name: str) -> IntWeight:
        return nearest(name, _matrix(self._model, name), self._schemes[name], clip=self._clip)

    def see(
        self, buffer: int, names: Sequence[str], rows: Floats, originals: Floats
    ) -> list[IntWeight]:
        return [self.alone(name) for name in names]

    def end_layer(self) -> list[IntWeight | DenseWeight]:
        return []


class _Gptq:
    sequential = True

    def __init__(self, model: Model, schemes: Mapping[str, Scheme], act_order: bool) -> None:
        self._model, self._schemes, self._act_order = model, schemes, act_order
        self._layer: list[IntWeight | DenseWeight] = []

    def alone(self, name: str) -> IntWeight:
        return nearest(name, _matrix(self._model, name), self._schemes[name], clip=True)

    def see(
        self, buffer: int, names: Sequence[str], rows: Floats, originals: Floats
    ) -> list[IntWeight]:
        if not names:
            return []
        hessian = rows.T @ rows
        factor, order = factor_of(hessian, act_order=self._act_order)
        missed: Floats = np.subtract(originals, rows)
        found: list[IntWeight] = []
        for scheme in dict.fromkeys(self._schemes[name] for name in names):
            alike = [name for name in names if self._schemes[name] == scheme]
            matrices = [_matrix(self._model, name) for name in alike]
            target = corrected(np.concatenate(matrices), missed, rows, factor, order)
            integers, grid = gptq(target, factor, order, scheme)
            integers, grid = refined(target, integers, grid, hessian, scheme)
            found += _apart(alike, [len(m) for m in matrices], integers, grid, scheme)
        self._layer += found
        return found

    def end_layer(self) -> list[IntWeight | DenseWeight]:
        done, self._layer = self._layer, []
        return done


def _apart(
    names: Sequence[str], rows: Sequence[int], integers: Floats, grid: Grid, scheme: Scheme
) -> Iterator[IntWeight]:
    """Split vertically stacked matrices, of ``rows`` rows each."""
    first = 0
    for name, count in zip(names, rows, strict=True):
        at = slice(first, first + count)
        first += count
        yield integer_weight(name, integers[at], Grid(grid.scales[at], grid.zeros[at]), scheme)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of some matrices: the sum of x x', the largest magnitudes, and some of the rows."""

    buffer: int
    names: Sequence[str]
    hessian: Floats
    largest: Floats
    sample: Floats


class _Scaled(ABC):
    """Columns are scaled, and the producer of their inputs is divided by the same scales.

    Scales are found with the layers' earlier weights, so the whole layer is processed at its end.
    """

    sequential = False

    def __init__(self, model: Model, schemes: Mapping[str, Scheme]) -> None:
        self._model, self._schemes = model, schemes
        self._inputs: list[_Inputs] = []

    def alone(self, name: str) -> IntWeight:
        return nearest(name, _matrix(self._model, name), self._schemes[name])

    @abstractmethod
    def _scales(self, matrices: Sequence[Floats], inputs: _Inputs, scheme: Scheme) -> Floats:
        """Return the scales of the columns of matrices with the same inputs: [depth]."""

    @abstractmethod
    def _round(self, name: str, matrix: Floats, hessian: Floats) -> IntWeight:
        """Return a scaled matrix as integers."""

    def see(
        self, buffer: int, names: Sequence[str], rows: Floats, originals: Floats
    ) -> list[IntWeight]:
        largest = np.abs(rows).max(axis=0)
        sample = rows[:: -(-len(rows) // _SAMPLED)].copy()
        self._inputs.append(_Inputs(buffer, names, rows.T @ rows, largest, sample))
        return []

    def end_layer(self) -> list[IntWeight | DenseWeight]:
        inputs, self._inputs = self._inputs, []
        matrices = {n: _matrix(self._model, n) for one in inputs for n in one.names}
        vectors: dict[str, DenseWeight] = {}
        hessians: dict[str, Floats] = {}
        for one in inputs:
            producer = producer_of(self._model.program, one.buffer)
            scales = np.ones(len(one.hessian), np.float32)
            if one.names and producer is not None and self._foldable(producer, matrices):
                group = [matrices[name] for name in one.names]
                scales = self._scales(group, one, self._schemes[one.names[0]])
                scales = self._fold(producer, scales, matrices, vectors)
            for name in one.names:
                matrices[name] = matrices[name] * scales
                hessians[name] = one.hessian / np.outer(scales, scales)
        return [*vectors.values(), *(self._round(n, m, hessians[n]) for n, m in matrices.items())]

    def _foldable(self, producer: Producer, matrices: Mapping[str, Floats]) -> bool:
        return producer.rows is None or producer.rows in matrices

    def _fold(
        self,
        producer: Producer,
        scales: Floats,
        matrices: dict[str, Floats],
        vectors: dict[str, DenseWeight],
    ) -> Floats:
        """Divide the producer of the inputs by the scales; return the exact scales after rounding."""
        if producer.rows is not None:
            matrices[producer.rows] = matrices[producer.rows] / scales[:, None]
        for name in producer.vectors:
            weight = self._model.weights[name]
            assert isinstance(weight, DenseWeight)
            before = to_float32(weight).reshape(-1)
            after = as_dense(weight.name, weight.dtype, before / scales, weight.shape)
            vectors[name] = after
            if producer.rows is None:
                now = to_float32(after).reshape(-1)
                usable = (now != 0) & (before != 0)
                scales = np.where(usable, before / np.where(usable, now, 1), 1).astype(np.float32)
        return scales


class _Awq(_Scaled):
    def _scales(self, matrices: Sequence[Floats], inputs: _Inputs, scheme: Scheme) -> Floats:
        return input_scales(matrices, inputs.hessian, scheme)

    def _round(self, name: str, matrix: Floats, hessian: Floats) -> IntWeight:
        scheme = self._schemes[name]
        grid = clipped(matrix, hessian, scheme)
        integers = steps(groups_of(matrix, scheme), grid, scheme)
        return integer_weight(name, integers.reshape(matrix.shape), grid, scheme)


class _SmoothQuant(_Scaled):
    def _scales(self, matrices: Sequence[Floats], inputs: _Inputs, scheme: Scheme) -> Floats:
        return smoothing_scales(matrices, inputs.largest, inputs.sample, scheme)

    def _round(self, name: str, matrix: Floats, hessian: Floats) -> IntWeight:
        return nearest(name, matrix, self._schemes[name])


def _matrix(model: Model, name: str) -> Floats:
    weight = model.weights[name]
    assert isinstance(weight, DenseWeight)
    values = to_float32(weight)
    check_finite(name, values)
    return values

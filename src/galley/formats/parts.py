"""Rows of tensors as tensors of their own, for processes that each hold a part of a model."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from galley.formats.weights import (
    BlockWeight,
    DenseWeight,
    IntWeight,
    Nested,
    SmallFloats,
    TensorInfo,
    Weight,
    Weights,
)

N = TypeVar("N", bound=np.generic)


class Part(NamedTuple):
    """Rows ``begin`` to ``end`` of the tensor ``source``."""

    source: str
    begin: int
    end: int

    @property
    def name(self) -> str:
        """The name of these rows as a tensor: ``lm_head.weight[0:16]``."""
        return f"{self.source}[{self.begin}:{self.end}]"


class PartWeights(Weights):
    """Some tensors of other weights, whole or in parts; the rest of a dense tensor is not read.

    Args:
        weights: all tensors.
        names: tensors that are kept whole.
        parts: name -> rows of another tensor.
    """

    def __init__(self, weights: Weights, names: frozenset[str], parts: Mapping[str, Part]) -> None:
        self._weights = weights
        self._names = names
        self._parts = parts
        self._last: tuple[str, Weight] | None = None
        self.notes = weights.notes

    def _source(self, name: str) -> str:
        if (part := self._parts.get(name)) is not None:
            return part.source
        if name not in self._names:
            raise KeyError(name)
        return name

    def info(self, name: str) -> TensorInfo:
        """Return shape and kind; see :class:`Weights`."""
        shape, kind = self._weights.info(self._source(name))
        if (part := self._parts.get(name)) is not None:
            shape = (part.end - part.begin, *shape[1:])
        return TensorInfo(shape, kind)

    def is_rounded(self, name: str) -> bool:
        """Return whether a tensor is rounded; see :class:`Weights`."""
        return self._weights.is_rounded(self._source(name))

    def input_step(self, name: str) -> float:
        """Return the static scale of a matrix's inputs; see :class:`Weights`."""
        return self._weights.input_step(self._source(name))

    def whole_rows(self, name: str) -> int:
        """Return the rows of the tensor that this is a part of; see :class:`Weights`."""
        return self._weights.whole_rows(self._source(name))

    def __getitem__(self, name: str) -> Weight:
        source = self._source(name)
        part = self._parts.get(name)
        if part is None:
            return self._weights[source]
        # Parts of one tensor follow each other, and some formats unpack a tensor each time.
        if self._last is None or self._last[0] != source:
            self._last = None
            self._last = (source, self._weights[source])
        return rows_of(self._last[1], part)

    def __iter__(self) -> Iterator[str]:
        yield from self._names
        yield from self._parts

    def __len__(self) -> int:
        return len(self._names) + len(self._parts)


def rows_of(weight: Weight, part: Part) -> Weight:
    """Return rows of a tensor, as views where the format allows it."""
    rows = slice(part.begin, part.end)
    if isinstance(weight, DenseWeight | BlockWeight):
        row_bytes = weight.data.nbytes // weight.shape[0]
        data = weight.data[part.begin * row_bytes : part.end * row_bytes]
        shape = (part.end - part.begin, *weight.shape[1:])
        return dataclasses.replace(weight, name=part.name, shape=shape, data=data)
    if isinstance(weight, SmallFloats):
        return dataclasses.replace(
            weight,
            name=part.name,
            codes=_rows(weight.codes, rows),
            scales=_rows(weight.scales, rows),
        )
    return _integer_rows(weight, part.name, rows)


def _integer_rows(weight: IntWeight, name: str, rows: slice) -> IntWeight:
    nested = None
    if weight.nested is not None:
        scales, minima = weight.nested
        nested = (
            _nested_rows(scales, rows),
            None if minima is None else _nested_rows(minima, rows),
        )
    q: Any = _rows(weight.q, rows)
    return dataclasses.replace(
        weight,
        name=name,
        q=q,
        scales=_rows(weight.scales, rows),
        zeros=None if weight.zeros is None else _rows(weight.zeros, rows),
        minima=None if weight.minima is None else _rows(weight.minima, rows),
        nested=nested,
    )


def _nested_rows(nested: Nested, rows: slice) -> Nested:
    return Nested(_rows(nested.steps, rows), _rows(nested.units, rows))


def _rows(array: npt.NDArray[N], rows: slice) -> npt.NDArray[N]:
    return np.ascontiguousarray(array[rows])

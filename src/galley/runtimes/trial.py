"""A trial of a loaded model with random inputs: whether its first axis is a batch of independent rows."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from galley.runtimes.arrays import DTYPES
from galley.runtimes.tensor_model import BatchOptions, TensorModel
from galley.types import TensorSpec

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

log = logging.getLogger("galley.runtimes")

_ROWS: Final = 6
"""Rows that are computed one by one and together."""

_LENGTHS: Final = (8, 1, 32, 224)
"""Lengths to try for all other axes of any length, until the model accepts one."""

_MOST_ELEMENTS: Final = 1 << 26
"""Elements of all inputs of a trial: of four axes of the greatest length above, a row has 2.5 billion."""

_RELATIVE: Final = 1e-3
"""Relative difference above which a row is taken to depend on other rows, and not just to be rounded."""


@dataclass(frozen=True)
class Trial:
    """The findings of a trial.

    Attributes:
        batched: whether requests may be combined along the first axis.
        exact: whether a row's bits were the same alone and with others.
        reason: why requests are not combined; empty if they are.
    """

    batched: bool
    exact: bool = True
    reason: str = ""


def examine(model: TensorModel, options: BatchOptions) -> Trial:
    """Return whether requests may be combined, from the model's shapes and a trial with random inputs."""
    if options.batch_axis == "none" or options.batching == "off":
        return Trial(batched=False, reason="the options say so")
    for spec in (*model.inputs, *model.outputs):
        if not spec.shape or spec.shape[0] != -1:
            return _refused(options, f"{spec.name!r} has shape {list(spec.shape)}")
    found = _rows_alone_and_together(model, options)
    if found is None:
        return _refused(options, "the model takes none of the random inputs of the trial")
    alone, together = found
    for spec, one, other in zip(model.outputs, alone, together, strict=True):
        if one.shape != other.shape:
            return _refused(options, f"output {spec.name!r} has another length than the inputs")
        if not are_close(one, other):
            return _refused(options, f"rows of output {spec.name!r} depend on each other")
    exact = all(_same(one, other) for one, other in zip(alone, together, strict=True))
    return Trial(batched=True, exact=exact)


def keeps_places(model: TensorModel, rows: int) -> bool:
    """Return whether a row's bits are the same at any place in a batch of ``rows`` rows."""
    for length in _LENGTHS:
        inputs = random_inputs(model.inputs, rows, length, np.random.default_rng(1))
        names = [spec.name for spec in model.outputs]
        try:
            straight = model.run(inputs, names)
            turned = model.run({name: array[::-1] for name, array in inputs.items()}, names)
        except Exception:  # noqa: S112 - whatever a library raises; the next length may be accepted
            continue
        return all(_same(a, b[::-1]) for a, b in zip(straight, turned, strict=True))
    return False


def same_bits(one: TensorModel, other: TensorModel) -> bool:
    """Return whether two models have the same inputs and outputs, and return the same bits.

    False also if the first model takes none of the random inputs that are tried.
    """
    if (one.inputs, one.outputs) != (other.inputs, other.outputs):
        return False
    names = [spec.name for spec in one.outputs]
    for length in _LENGTHS:
        shapes = {spec.name: tuple(_lengths(spec.shape, length)) for spec in one.inputs}
        if sum(map(prod, shapes.values())) > _MOST_ELEMENTS:
            continue
        rng = np.random.default_rng(2)
        inputs = {spec.name: random_values(spec, shapes[spec.name], rng) for spec in one.inputs}
        try:
            expected = one.run(inputs, names)
        except Exception:  # noqa: S112 - whatever a library raises; the next length may be accepted
            continue
        got = other.run(inputs, names)
        return all(
            a.shape == b.shape and a.dtype == b.dtype and _same(a, b)
            for a, b in zip(expected, got, strict=True)
        )
    return False


def random_inputs(
    specs: Sequence[TensorSpec], rows: int, length: int, rng: np.random.Generator
) -> "dict[str, Array]":
    """Return inputs with ``rows`` rows; other axes of any length have ``length``.

    Integers are 0 or 1, which are valid ids of most models.
    """
    return {
        spec.name: random_values(spec, (rows, *_lengths(spec.shape[1:], length)), rng)
        for spec in specs
        if not spec.optional
    }


def _refused(options: BatchOptions, reason: str) -> Trial:
    if options.batch_axis == "first":
        log.warning("batch_axis is first, although %s: requests are combined", reason)
        return Trial(batched=True, exact=False)
    return Trial(batched=False, reason=reason)


def _elements(specs: Sequence[TensorSpec], length: int) -> int:
    """Return the elements of a row of :func:`random_inputs`."""
    return sum(prod(_lengths(spec.shape[1:], length)) for spec in specs if not spec.optional)


def _lengths(shape: Sequence[int], length: int) -> list[int]:
    return [length if axis == -1 else axis for axis in shape]


def random_values(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> "Array":
    """Return random values of a tensor's type; integers are 0 or 1."""
    if spec.datatype == "BYTES":
        return rng.choice(np.array(["a", "b"], object), shape)
    dtype = np.dtype(DTYPES[spec.datatype])
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _rows_alone_and_together(
    model: TensorModel, options: BatchOptions
) -> "tuple[list[Array], list[Array]] | None":
    """Return the outputs of random rows, computed one by one and together; None if the model refuses."""
    names = [spec.name for spec in model.outputs]
    rows = max(2, min(_ROWS, options.max_batch_size))
    for length in _LENGTHS:
        if rows * _elements(model.inputs, length) > _MOST_ELEMENTS:
            continue
        inputs = random_inputs(model.inputs, rows, length, np.random.default_rng(0))
        try:
            together = model.run(inputs, names)
            alone = [model.run(_row(inputs, i), names) for i in range(rows)]
        except Exception as error:  # whatever a library raises
            log.debug("the trial with axes of length %d failed: %s", length, error)
            continue
        if any(array.ndim == 0 for array in together):
            return None
        return [np.concatenate(parts) for parts in zip(*alone, strict=True)], together
    return None


def _row(inputs: "Mapping[str, Array]", row: int) -> "dict[str, Array]":
    return {name: array[row : row + 1] for name, array in inputs.items()}


def are_close(one: "Array", other: "Array") -> bool:
    """Return whether two arrays of one shape are equal but for rounding."""
    if one.dtype.kind != "f":
        return bool((one == other).all())
    scale = float(np.abs(one[np.isfinite(one)], dtype=np.float64).max(initial=0.0))
    return bool(
        np.allclose(one, other, rtol=_RELATIVE, atol=_RELATIVE * scale / 10, equal_nan=True)
    )


def _same(one: Any, other: Any) -> bool:
    if one.dtype.kind == "O":
        return bool((one == other).all())
    return bool(np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes())

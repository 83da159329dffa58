"""Batches of requests of different lengths, for models with a mask that excludes what is added.

Lengths up to 16, and from each power of two to the next, are computed together: at most half of a batch of
longer ones is padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from galley.errors import SettingsError
from galley.runtimes.arrays import DTYPES
from galley.runtimes.tensor_model import PaddingOptions, TensorModel
from galley.runtimes.trial import are_close, random_inputs
from galley.types import Tensor, TensorSpec

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

_SHORTEST: Final = 16
"""Lengths up to this one are computed together."""

_TRIED: Final = (8, 32)
"""Lengths of the longer row of a trial, until the model accepts one."""
_SHORTER: Final = 3
"""Positions by which the other row is shorter."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Pads inputs and crops outputs of a model; :func:`padding_of` makes one.

    Attributes:
        axis: the axis that differs.
        values: name of an input with that axis -> what it is filled with.
        cropped: names of the outputs with that axis.
    """

    axis: int
    values: Mapping[str, float]
    cropped: frozenset[str]

    def group(self, tensors: Sequence[Tensor]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return what requests that are computed together have in common.

        Inputs whose lengths differ within a request are not padded.
        """
        lengths = {tensor.shape[self.axis] for tensor in tensors if tensor.name in self.values}
        shapes = {tensor.name: list(tensor.shape[1:]) for tensor in tensors}
        if len(lengths) == 1:
            most = max(_SHORTEST, 1 << max(0, lengths.pop() - 1).bit_length())
            for name in self.values.keys() & shapes.keys():
                shapes[name][self.axis - 1] = -most
        return tuple((name, tuple(shape)) for name, shape in shapes.items())

    def lengths(self, arrays: "Sequence[Mapping[str, Array]]") -> list[int]:
        """Return the length of each request's inputs."""
        return [
            max(array.shape[self.axis] for name, array in one.items() if name in self.values)
            for one in arrays
        ]

    def padded(self, inputs: "Mapping[str, Array]", length: int) -> "dict[str, Array]":
        """Return the inputs of a request with this length."""
        return {
            name: self._padded(name, array, length) if name in self.values else array
            for name, array in inputs.items()
        }

    def without(self, outputs: "Mapping[str, Array]", length: int) -> "dict[str, Array]":
        """Return the outputs of a request without those at added elements."""
        cut = (slice(None),) * self.axis + (slice(length),)
        return {n: array[cut] if n in self.cropped else array for n, array in outputs.items()}

    def _padded(self, name: str, array: "Array", length: int) -> "Array":
        widths = [(0, 0)] * array.ndim
        widths[self.axis] = (0, length - array.shape[self.axis])
        return np.pad(array, widths, constant_values=self.values[name])


def padding_of(model: TensorModel, options: PaddingOptions) -> Padding:
    """Return the padding of a model, after a trial with two rows of different lengths.

    Raises:
        SettingsError: the model has no such mask or inputs, or its outputs depend on what is added.
    """
    axis = options.axis
    ragged = {spec.name: spec for spec in model.inputs if _is_ragged(spec, axis)}
    for name in (options.mask, *options.values):
        if name not in ragged:
            raise SettingsError(
                f"padding: {name!r} is not an input whose axis {axis} has any length; such are: "
                f"{', '.join(map(repr, ragged)) or 'none'}"
            )
    for name, spec in ragged.items():
        _check_value(spec, options.values.get(name, 0))
    if options.values.get(options.mask, 0) != 0:
        raise SettingsError(f"padding: the mask {options.mask!r} is always filled with 0")
    padding = Padding(
        axis=axis,
        values={name: options.values.get(name, 0) for name in ragged},
        cropped=frozenset(spec.name for spec in model.outputs if _is_ragged(spec, axis)),
    )
    _try(model, padding, options.mask)
    return padding


def _is_ragged(spec: TensorSpec, axis: int) -> bool:
    return len(spec.shape) > axis and spec.shape[axis] == -1


def _check_value(spec: TensorSpec, value: float) -> None:
    """Raise SettingsError for a value that an input cannot have."""
    if spec.datatype == "BYTES":
        raise SettingsError(f"padding: input {spec.name!r} has texts, which cannot be padded")
    dtype = np.dtype(DTYPES[spec.datatype])
    if dtype.kind != "f":
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if value != int(value) or not limits[0] <= value <= limits[1]:
            raise SettingsError(f"padding: {spec.datatype} of {spec.name!r} has no value {value:g}")


def _try(model: TensorModel, padding: Padding, mask: str) -> None:
    names = [spec.name for spec in model.outputs]
    rng = np.random.default_rng(3)
    failed: Exception | None = None
    for length in _TRIED:
        rows = [random_inputs(model.inputs, 1, n, rng) for n in (length, length - _SHORTER)]
        for row in rows:
            row[mask] = np.ones_like(row[mask])
        try:
            alone = [dict(zip(names, model.run(row, names), strict=True)) for row in rows]
            filled = [padding.padded(row, length) for row in rows]
            inputs = {name: np.concatenate([one[name] for one in filled]) for name in filled[0]}
            together = dict(zip(names, model.run(inputs, names), strict=True))
        except Exception as error:  # whatever a library raises; the next length may be accepted
            failed = error
            continue
        for i, expected in enumerate(alone):
            row = {name: array[i : i + 1] for name, array in together.items()}
            _compare(expected, padding.without(row, length - i * _SHORTER))
        return
    raise SettingsError(
        f"padding: the model takes none of the random inputs of the trial: {failed}"
    )


def _compare(expected: "Mapping[str, Array]", got: "Mapping[str, Array]") -> None:
    for name, array in expected.items():
        if array.shape != got[name].shape or not are_close(array, got[name]):
            raise SettingsError(
                f"padding: output {name!r} depends on the padding, although the mask is 0 there; leave "
                "padding out for this model"
            )

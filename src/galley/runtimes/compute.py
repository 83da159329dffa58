"""Runs a model on the inputs of several requests at once, and on each alone if that fails."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from galley.runtimes.arrays import to_array
from galley.runtimes.tensor_model import InvalidTensors, TensorModel
from galley.types import Predict

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

log = logging.getLogger("galley.runtimes")


class Compute:
    """A model and how batches of its requests are computed."""

    def __init__(self, model: TensorModel, *, batched: bool, fixed_rows: int | None = None) -> None:
        """Wrap a model.

        Args:
            model: the model.
            batched: whether requests have a batch axis.
            fixed_rows: rows of every call of the model, whatever the requests have; None: those of the
                requests.
        """
        self._model = model
        self._batched = batched
        self._fixed_rows = fixed_rows if batched else None
        self._names = [spec.name for spec in model.outputs]

    def together(self, payloads: Sequence[Predict]) -> "list[dict[str, Array] | Exception]":
        """Return the outputs of each request, by name, or the error of one that fails alone.

        All requests have the same inputs, of the same shapes but for the batch axis.
        """
        if len(payloads) > 1:
            try:
                return [*self._run(payloads)]
            except Exception as error:  # whatever a library raises
                log.debug("a batch of %d requests failed: %s", len(payloads), error)
        return [self._alone(payload) for payload in payloads]

    def close(self) -> None:
        """Close the model."""
        self._model.close()

    def _alone(self, payload: Predict) -> "dict[str, Array] | Exception":
        try:
            [outputs] = self._run([payload])
            return outputs
        except InvalidTensors as error:
            return error
        except Exception as error:  # whatever a library raises
            log.warning("the model failed on a request: %s", error)
            return error

    def _run(self, payloads: Sequence[Predict]) -> "list[dict[str, Array]]":
        arrays = [{t.name: to_array(t) for t in payload.inputs} for payload in payloads]
        inputs = arrays[0]
        if len(arrays) > 1:
            inputs = {name: np.concatenate([one[name] for one in arrays]) for name in inputs}
        wanted = [payload.outputs or self._names for payload in payloads]
        names = list(dict.fromkeys(name for names in wanted for name in names))
        rows = [payload.rows for payload in payloads]
        outputs = dict(zip(names, self._computed(inputs, names, sum(rows)), strict=True))
        if len(payloads) == 1:
            return [{name: outputs[name] for name in wanted[0]}]
        for name, array in outputs.items():
            if not array.ndim or len(array) != sum(rows):
                raise ValueError(f"output {name!r} has shape {array.shape} for {sum(rows)} rows")
        ends = np.cumsum(rows).tolist()
        return [
            {name: outputs[name][end - count : end] for name in names}
            for names, count, end in zip(wanted, rows, ends, strict=True)
        ]

    def _computed(
        self, inputs: "Mapping[str, Array]", names: Sequence[str], rows: int
    ) -> "list[Array]":
        if self._fixed_rows is None:
            return self._model.run(inputs, names)
        parts = [
            self._padded(inputs, names, first, min(rows, first + self._fixed_rows))
            for first in range(0, rows, self._fixed_rows)
        ]
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    def _padded(
        self, inputs: "Mapping[str, Array]", names: Sequence[str], first: int, end: int
    ) -> "list[Array]":
        """Compute rows ``first`` to ``end``, filled up to the fixed number with copies of the first."""
        assert self._fixed_rows is not None
        part = {name: array[first:end] for name, array in inputs.items()}
        missing = self._fixed_rows - (end - first)
        if missing:
            part = {n: np.concatenate([a, np.repeat(a[:1], missing, 0)]) for n, a in part.items()}
        return [array[: end - first] for array in self._model.run(part, names)]

"""Runs a model on the inputs of several requests at once, and on each alone if that fails.

A model may have several instances, each with a part of the threads, among which a batch is divided.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from galley.runtimes.arrays import to_array
from galley.runtimes.padding import Padding
from galley.runtimes.tensor_model import InvalidTensors, TensorModel
from galley.types import Predict

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

log = logging.getLogger("galley.runtimes")

T = TypeVar("T")


class Compute:
    """A model and how batches of its requests are computed."""

    def __init__(
        self,
        instances: Sequence[TensorModel],
        *,
        batched: bool,
        fixed_rows: int | None = None,
        padding: Padding | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            instances: the model, loaded once or several times; each is called from one thread at a time.
            batched: whether requests have a batch axis.
            fixed_rows: rows of every call of the model, whatever the requests have; None: those of the
                requests.
            padding: pads requests of different lengths; None: all requests of a call have the same shape.
        """
        self._padding = padding
        self._instances = tuple(instances)
        self._batched = batched
        self._fixed_rows = fixed_rows if batched else None
        self._names = [spec.name for spec in instances[0].outputs]
        self._pool: ThreadPoolExecutor | None = None
        if len(instances) > 1:
            self._pool = ThreadPoolExecutor(len(instances), "galley-instance")

    def together(self, payloads: Sequence[Predict]) -> "list[dict[str, Array] | Exception]":
        """Return the outputs of each request, by name, or the error of one that fails alone.

        Requests of a model with a batch axis have the same inputs, of the same shapes but for that axis and
        the one that is padded.
        """
        if len(payloads) == 1:
            return [self._alone(payloads[0])]
        if self._batched:
            try:
                return [*self._run(payloads)]
            except Exception as error:  # whatever a library raises
                log.debug("a batch of %d requests failed: %s", len(payloads), error)
        return self._spread([partial(self._alone, payload) for payload in payloads])

    def close(self) -> None:
        """Close all instances."""
        if self._pool is not None:
            self._pool.shutdown()
        for instance in self._instances:
            instance.close()

    def _spread(self, parts: "Sequence[Callable[[TensorModel], T]]") -> list[T]:
        """Return the results of functions of an instance, in their order, computed by all instances.

        Raises:
            Exception: what one of them raised, once all instances are done.
        """
        count = min(len(self._instances), len(parts))
        if self._pool is None or count == 1:
            return [part(self._instances[0]) for part in parts]

        def of_one(number: int) -> list[T]:
            return [part(self._instances[number]) for part in parts[number::count]]

        running = [self._pool.submit(of_one, number) for number in range(count)]
        wait(running)
        done = [future.result() for future in running]
        return [done[i % count][i // count] for i in range(len(parts))]

    def _alone(
        self, payload: Predict, instance: TensorModel | None = None
    ) -> "dict[str, Array] | Exception":
        """Return the outputs of a request, computed by one instance or divided among all."""
        try:
            [outputs] = self._run([payload], instance)
            return outputs
        except InvalidTensors as error:
            return error
        except Exception as error:  # whatever a library raises
            log.warning("the model failed on a request: %s", error)
            return error

    def _run(
        self, payloads: Sequence[Predict], instance: TensorModel | None = None
    ) -> "list[dict[str, Array]]":
        arrays = [{t.name: to_array(t) for t in payload.inputs} for payload in payloads]
        inputs, lengths = arrays[0], list[int]()
        if len(arrays) > 1:
            if self._padding is not None and not _alike(arrays):
                lengths = self._padding.lengths(arrays)
                arrays = [self._padding.padded(one, max(lengths)) for one in arrays]
            inputs = {name: np.concatenate([one[name] for one in arrays]) for name in inputs}
        wanted = [payload.outputs or self._names for payload in payloads]
        names = list(dict.fromkeys(name for names in wanted for name in names))
        rows = [payload.rows for payload in payloads]
        computed = self._computed(inputs, names, sum(rows), instance)
        outputs = dict(zip(names, computed, strict=True))
        if len(payloads) == 1:
            return [{name: outputs[name] for name in wanted[0]}]
        for name, array in outputs.items():
            if not array.ndim or len(array) != sum(rows):
                raise ValueError(f"output {name!r} has shape {array.shape} for {sum(rows)} rows")
        ends = np.cumsum(rows).tolist()
        parts = [
            {name: outputs[name][end - count : end] for name in names}
            for names, count, end in zip(wanted, rows, ends, strict=True)
        ]
        if self._padding is not None and lengths:
            cut = self._padding.without
            return [cut(part, length) for part, length in zip(parts, lengths, strict=True)]
        return parts

    def _computed(
        self,
        inputs: "Mapping[str, Array]",
        names: Sequence[str],
        rows: int,
        instance: TensorModel | None,
    ) -> "list[Array]":
        size = self._fixed_rows or max(1, rows)
        if self._fixed_rows is None and self._batched and instance is None:
            size = max(1, -(-rows // len(self._instances)))
        ranges = [(first, min(rows, first + size)) for first in range(0, rows, size)]
        if len(ranges) <= 1 and self._fixed_rows is None:
            return (instance or self._instances[0]).run(inputs, names)
        parts = [partial(self._part, inputs, names, first, end) for first, end in ranges]
        done = self._spread(parts) if instance is None else [part(instance) for part in parts]
        for arrays, (first, end) in zip(done, ranges, strict=True):
            for name, array in zip(names, arrays, strict=True):
                if not array.ndim or len(array) != end - first:
                    raise ValueError(
                        f"output {name!r} has shape {array.shape} for {end - first} rows"
                    )
        return [np.concatenate(part) for part in zip(*done, strict=True)]

    def _part(
        self,
        inputs: "Mapping[str, Array]",
        names: Sequence[str],
        first: int,
        end: int,
        instance: TensorModel,
    ) -> "list[Array]":
        """Compute rows ``first`` to ``end``, filled up to a fixed number with copies of the first."""
        part = {name: array[first:end] for name, array in inputs.items()}
        missing = 0 if self._fixed_rows is None else self._fixed_rows - (end - first)
        if not missing:
            return instance.run(part, names)
        part = {n: np.concatenate([a, np.repeat(a[:1], missing, 0)]) for n, a in part.items()}
        return [array[: end - first] for array in instance.run(part, names)]


def _alike(arrays: "Sequence[Mapping[str, Array]]") -> bool:
    """Return whether all requests' inputs have the same shapes but for the batch axis."""
    shapes = [{name: array.shape[1:] for name, array in one.items()} for one in arrays]
    return all(one == shapes[0] for one in shapes)

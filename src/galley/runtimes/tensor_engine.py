"""The engine of tensor models: combines requests to batches along the first axis.

Requests that have the same inputs, whose other axes have the same lengths, are of one shape; a batch has
requests of one shape. With padding, requests of similar lengths are of one shape as well. A step takes
those whose turn it is, tenants in turn, up to ``max_batch_size`` rows. A request with more rows than that
has a step to itself.
"""

import time
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

from galley.engine.fair_queue import FairQueue, Queued
from galley.engine.step_meter import StepMeter
from galley.runtimes.arrays import to_tensor
from galley.runtimes.compute import Compute
from galley.runtimes.gathering import Arrivals, BatchCosts, wait_seconds
from galley.runtimes.padding import Padding
from galley.runtimes.tensor_model import BatchOptions, InvalidTensors
from galley.types import EngineRequest, Output, Predict, Tensors, Timing
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo
from galley.types.tensors import MOST_BYTES

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

Shape: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Names of the inputs, each with the lengths of its axes after the batch axis."""

_MOST_SHAPES: Final = 256
"""Shapes whose costs and arrivals are kept."""


class _Pace:
    """Costs and arrivals of the requests of one shape."""

    def __init__(self) -> None:
        self.costs = BatchCosts()
        self.arrivals = Arrivals()


class TensorEngine:
    """Computes tensors: see :class:`galley.service.protocol.GatheringEngine`. Not thread-safe."""

    def __init__(
        self,
        compute: Compute,
        info: ModelInfo,
        options: BatchOptions,
        *,
        priority_steps: int,
        padding: Padding | None = None,
        meter: StepMeter | None = None,
    ) -> None:
        """Create the engine.

        Args:
            compute: runs the model.
            info: describes the model.
            options: when requests are combined.
            priority_steps: number of arrivals by which one level of priority delays a request.
            padding: decides which requests of different lengths are combined; None: none are.
            meter: measures the steps; None for a new one.
        """
        assert info.tensors is not None
        self.info = info
        self._compute = compute
        self._options = options
        self._padding = padding
        self._batched = info.tensors.batched
        most = options.max_batch_size if self._batched else options.instances
        self._waiting = FairQueue[Predict](priority_steps=priority_steps, budget=most)
        self._meter = meter or StepMeter()
        self._paces: dict[Hashable, _Pace] = {}
        self._steps = self._rows = 0
        self._seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a request waits."""
        return len(self._waiting) > 0

    @property
    def is_live(self) -> bool:
        """Always False: tensors are not live audio."""
        return False

    def add(self, request: EngineRequest) -> None:
        """Queue a request; a later step returns its outputs."""
        payload = request.payload
        assert isinstance(payload, Predict), request.id
        if not self.has_work:
            self._meter.awake()
        shape = self._shape(payload)
        work = self._waiting.add(request, payload, shape)
        self._pace(shape).arrivals.arrived(work.arrival)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; unknown ids have already been answered."""
        self._waiting.abort(request_ids)

    def gather_seconds(self) -> float:
        """Return how long the next step should wait for further requests; 0: not at all."""
        options = self._options
        if not self._batched or options.batching == "off" or len(self._waiting.groups) != 1:
            return 0.0
        [(shape, tenants)] = self._waiting.groups.items()
        works = [work for heap in tenants.values() for work in heap]
        rows = sum(work.payload.rows for work in works)
        if rows >= options.max_batch_size or rows in options.preferred_batch_size:
            return 0.0
        now = time.monotonic()
        left = min(work.arrival for work in works) + options.max_queue_delay - now
        if options.batching == "static":
            return max(0.0, left)
        pace = self._pace(shape)
        return max(0.0, min(left, wait_seconds(len(works), pace.costs, pace.arrivals, now)))

    def step(self) -> list[Output]:
        """Compute one batch and return the outputs of its requests."""
        meter = self._meter
        meter.begin()
        works = self._waiting.take()
        started = time.monotonic()
        meter.assembled()
        results = self._compute.together([work.payload for work in works])
        computed = time.monotonic() - started
        rows = [work.payload.rows for work in works]
        seconds = meter.share(rows)
        self._steps += 1
        self._rows += sum(rows)
        self._seconds += computed
        if not any(isinstance(result, Exception) for result in results):
            self._pace(works[0].group).costs.observe(sum(rows), computed)
        outputs = [
            _output(work, result, started, seconds)
            for work, result in zip(works, results, strict=True)
        ]
        self._waiting.finish(works)
        meter.end()
        return outputs

    @property
    def stats(self) -> EngineStats:
        """The engine's current statistics: sequences of a batch are its requests, tokens its rows."""
        return EngineStats(
            waiting=len(self._waiting),
            steps=self._steps,
            prefill_tokens=self._rows,
            forward_seconds=self._seconds,
            schedule_seconds=self._meter.schedule_seconds,
            emit_seconds=self._meter.emit_seconds,
            busy_seconds=self._meter.busy_seconds,
            batch_sequences=self._meter.sequences,
            batch_tokens=self._meter.tokens,
        )

    def close(self) -> None:
        """Close the model."""
        self._compute.close()

    def _shape(self, payload: Predict) -> Shape:
        if not self._batched:
            return ()
        if self._padding is not None:
            return self._padding.group(payload.inputs)
        return tuple((tensor.name, tensor.shape[1:]) for tensor in payload.inputs)

    def _pace(self, shape: Hashable) -> _Pace:
        """Return the pace of a shape, now the one used last; the one not used for longest is dropped."""
        pace = self._paces.pop(shape, None) or _Pace()
        self._paces[shape] = pace
        if len(self._paces) > _MOST_SHAPES:
            del self._paces[next(iter(self._paces))]
        return pace


def _output(
    work: Queued[Predict], result: "dict[str, Array] | Exception", started: float, seconds: float
) -> Output:
    request, now = work.request, time.monotonic()
    timing = Timing(
        queued=started - work.arrival,
        first_token=now - work.arrival,
        total=now - work.arrival,
        engine_seconds=seconds * work.payload.rows,
    )
    error: str | None = None
    if isinstance(result, Exception):
        error = str(result) or type(result).__name__
        return Output(
            request_id=request.id,
            finish_reason="error",
            error=error,
            refused=isinstance(result, InvalidTensors),
            timing=timing,
        )
    tensors = Tensors(tuple(to_tensor(name, array) for name, array in result.items()))
    size = sum(len(tensor.data) for tensor in tensors.outputs)
    if size > MOST_BYTES:
        error = f"the outputs have {size} bytes; at most {MOST_BYTES} are returned: request fewer"
        return Output(
            request_id=request.id, finish_reason="error", error=error, refused=True, timing=timing
        )
    return Output(request_id=request.id, result=tensors, finish_reason="stop", timing=timing)

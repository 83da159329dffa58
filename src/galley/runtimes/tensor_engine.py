"""The engine of models of tensors: combines requests to batches along the first axis.

Requests that have the same inputs, whose other axes have the same lengths, are of one shape; a batch has
requests of one shape. A step takes those whose turn it is, tenants in turn, up to ``max_batch_size`` rows.
A request with more rows than that has a step to itself.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from galley.engine.fair_share import FairShare
from galley.engine.step_meter import StepMeter
from galley.runtimes.arrays import to_tensor
from galley.runtimes.compute import Compute
from galley.runtimes.gathering import Arrivals, BatchCosts, wait_seconds
from galley.runtimes.tensor_model import BatchOptions, InvalidTensors
from galley.types import EngineRequest, Output, Predict, Tensors, Timing
from galley.types.model_info import EngineStats, ModelInfo
from galley.types.tensors import MOST_BYTES

if TYPE_CHECKING:
    from galley.runtimes.tensor_model import Array

Shape: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Names of the inputs, each with the lengths of its axes after the batch axis."""

_MOST_SHAPES: Final = 256
"""Shapes whose costs and arrivals are kept."""


@dataclass(slots=True, eq=False)
class Work:
    """A request that waits for its step; ``order`` is its arrival number, delayed by its priority."""

    request: EngineRequest
    payload: Predict
    order: int
    arrival: float

    def __lt__(self, other: Any) -> bool:
        return bool(self.order < other.order)


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
        meter: StepMeter | None = None,
    ) -> None:
        """Create the engine.

        Args:
            compute: runs the model.
            info: describes the model.
            options: when requests are combined.
            priority_steps: number of arrivals by which one level of priority delays a request.
            meter: measures the steps; None for a new one.
        """
        assert info.tensors is not None
        self.info = info
        self._compute = compute
        self._options = options
        self._batched = info.tensors.batched
        self._priority = priority_steps
        self._fair = FairShare(priority_steps * options.max_batch_size)
        self._meter = meter or StepMeter()
        self._waiting: dict[Shape, dict[str, list[Work]]] = {}  # a heap for each shape and tenant
        self._paces: dict[Shape, _Pace] = {}
        self._count = self._arrivals = self._steps = self._rows = 0
        self._seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a request waits."""
        return self._count > 0

    @property
    def is_live(self) -> bool:
        """Always False: tensors are not live audio."""
        return False

    def add(self, request: EngineRequest) -> None:
        """Queue a request; a later step returns its outputs."""
        payload, now = request.payload, time.monotonic()
        assert isinstance(payload, Predict), request.id
        if not self._count:
            self._meter.awake()
        work = Work(request, payload, self._arrivals + request.priority * self._priority, now)
        self._arrivals += 1
        self._count += 1
        self._fair.join(work)
        shape = self._shape(payload)
        self._pace(shape).arrivals.arrived(now)
        heappush(self._waiting.setdefault(shape, {}).setdefault(request.tenant, []), work)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests; unknown ids have already been answered."""
        gone = frozenset(request_ids)
        for shape, tenants in list(self._waiting.items()):
            for tenant, works in list(tenants.items()):
                left = [work for work in works if work.request.id not in gone]
                for work in works:
                    if work.request.id in gone:
                        self._fair.leave(work)
                        self._count -= 1
                heapify(left)
                self._keep(shape, tenant, left)

    def gather_seconds(self) -> float:
        """Return how long the next step should wait for further requests; 0: not at all."""
        options = self._options
        if not self._batched or options.batching == "off" or len(self._waiting) != 1:
            return 0.0
        [(shape, tenants)] = self._waiting.items()
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
        shape, works = self._take()
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
            self._pace(shape).costs.observe(sum(rows), computed)
        outputs = [
            _output(work, result, started, seconds)
            for work, result in zip(works, results, strict=True)
        ]
        for work in works:
            self._fair.leave(work)
        meter.end()
        return outputs

    @property
    def stats(self) -> EngineStats:
        """The engine's current statistics: sequences of a batch are its requests, tokens its rows."""
        return EngineStats(
            waiting=self._count,
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
        return tuple((tensor.name, tensor.shape[1:]) for tensor in payload.inputs)

    def _pace(self, shape: Shape) -> _Pace:
        """Return the pace of a shape, now the one used last; the one not used for longest is dropped."""
        pace = self._paces.pop(shape, None) or _Pace()
        self._paces[shape] = pace
        if len(self._paces) > _MOST_SHAPES:
            del self._paces[next(iter(self._paces))]
        return pace

    def _take(self) -> tuple[Shape, list[Work]]:
        """Remove and return the requests whose turn it is, of one shape: at least one, at most a batch."""
        firsts = {
            heap[0]: shape for shape, tenants in self._waiting.items() for heap in tenants.values()
        }
        shape = firsts[self._fair.next(firsts)]
        most = self._options.max_batch_size if self._batched else 1
        taken: list[Work] = []
        while tenants := self._waiting.get(shape):
            work = self._fair.next(heap[0] for heap in tenants.values())
            if taken and work.payload.rows > most:
                break
            most -= work.payload.rows
            tenant = work.request.tenant
            heappop(tenants[tenant])
            self._keep(shape, tenant, tenants[tenant])
            self._fair.charge(work, work.payload.rows)
            taken.append(work)
            if most <= 0 or not self._batched:
                break
        self._count -= len(taken)
        return shape, taken

    def _keep(self, shape: Shape, tenant: str, works: list[Work]) -> None:
        tenants = self._waiting[shape]
        tenants[tenant] = works
        if not works:
            del tenants[tenant]
        if not tenants:
            del self._waiting[shape]


def _output(
    work: Work, result: "dict[str, Array] | Exception", started: float, seconds: float
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

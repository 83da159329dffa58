"""The engine of models that make a vector or a score from whole texts: no cache and no sequences.

A step takes texts in order of arrival, tenants in turn, up to its token budget, and returns one Output
for each. A text that is longer than the budget has a step to itself.
"""

import time
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from galley.engine.fair_queue import FairQueue, Queued
from galley.engine.step_meter import StepMeter
from galley.models.embedding import Head
from galley.ops.batch import Batch
from galley.ops.executor import Closable, Executor, forward
from galley.types import Embed, EngineRequest, Output, Timing, Vector
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo

if TYPE_CHECKING:
    from galley.formats.weights import Floats


class EmbeddingEngine:
    """Runs whole texts: see :class:`galley.service.protocol.Engine`. Not thread-safe."""

    def __init__(
        self,
        executor: Executor,
        head: Head,
        info: ModelInfo,
        *,
        max_batch_tokens: int,
        priority_steps: int,
        meter: StepMeter | None = None,
    ) -> None:
        """Create the engine.

        Args:
            executor: runs the model.
            head: makes a text's vector or score from its rows.
            info: describes the model.
            max_batch_tokens: token budget of a step.
            priority_steps: number of arrivals by which one level of priority delays a text.
            meter: measures the steps; None for a new one.
        """
        self.info = info
        self._executor = executor
        self._head = head
        self._waiting = FairQueue[Embed](priority_steps=priority_steps, budget=max_batch_tokens)
        self._meter = meter or StepMeter()
        self._steps = 0
        self._tokens = 0
        self._warm_up = executor.forward_seconds

    @property
    def has_work(self) -> bool:
        """Whether a text waits."""
        return len(self._waiting) > 0

    @property
    def is_live(self) -> bool:
        """Always False: texts are not live audio."""
        return False

    def add(self, request: EngineRequest) -> None:
        """Queue a text; a later step returns its vector."""
        payload = request.payload
        assert isinstance(payload, Embed), request.id
        if not self.has_work:
            self._meter.awake()
        self._waiting.add(request, payload)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop texts; unknown ids have already been answered."""
        self._waiting.abort(request_ids)

    def step(self) -> list[Output]:
        """Run one step and return the vectors of the texts whose turn it is."""
        meter = self._meter
        meter.begin()
        texts = self._waiting.take()
        started = time.monotonic()
        batch = _assembled([text.payload for text in texts], self._head)
        meter.assembled()
        try:
            rows = forward(self._executor, batch)
        except BaseException:  # such as an interrupt in a notebook: the texts stay in the queue
            self._waiting.put_back(texts)
            raise
        lengths = [len(text.payload.prompt) for text in texts]
        seconds = meter.share(lengths)
        self._steps += 1
        self._tokens += sum(lengths)
        outputs = [
            self._output(text, vector, started, seconds)
            for text, vector in zip(texts, self._parts(rows, lengths), strict=True)
        ]
        self._waiting.finish(texts)
        meter.end()
        return outputs

    def _parts(self, rows: "Floats", lengths: list[int]) -> "list[Floats]":
        """Return each text's part of the selected rows."""
        if not self._head.all_rows:
            return [rows[i : i + 1] for i in range(len(lengths))]
        ends = np.cumsum(lengths)
        return [rows[end - n : end] for end, n in zip(ends, lengths, strict=True)]

    def _output(
        self, text: Queued[Embed], rows: "Floats", started: float, seconds: float
    ) -> Output:
        request, now = text.request, time.monotonic()
        vector = self._head.vector(rows, text.payload.dimensions)
        timing = Timing(
            queued=started - text.arrival,
            first_token=now - text.arrival,
            total=now - text.arrival,
            engine_seconds=seconds * len(text.payload.prompt),
        )
        if not np.isfinite(vector).all():
            error = "the model's result for this text is NaN or infinite"
            return Output(request_id=request.id, finish_reason="error", error=error, timing=timing)
        return Output(
            request_id=request.id,
            result=Vector(vector.tobytes()),
            finish_reason="stop",
            timing=timing,
        )

    @property
    def stats(self) -> EngineStats:
        """The engine's current statistics."""
        return EngineStats(
            waiting=len(self._waiting),
            steps=self._steps,
            prefill_tokens=self._tokens,
            forward_seconds=self._executor.forward_seconds - self._warm_up,
            schedule_seconds=self._meter.schedule_seconds,
            emit_seconds=self._meter.emit_seconds,
            busy_seconds=self._meter.busy_seconds,
            batch_sequences=self._meter.sequences,
            batch_tokens=self._meter.tokens,
        )

    def close(self) -> None:
        """End other ranks; all else is memory, which is freed with the object."""
        if isinstance(self._executor, Closable):
            self._executor.close()


def _assembled(texts: list[Embed], head: Head) -> Batch:
    """Return a batch of the texts one after another, each from its first token to its last."""
    tokens, positions, starts = array("q"), array("q"), array("q", [0])
    wanted = array("q")
    for text in texts:
        begin, length = len(tokens), len(text.prompt)
        tokens.extend(text.prompt)
        positions.extend(range(length))
        starts.append(begin + length)
        if head.all_rows:
            wanted.extend(range(begin, begin + length))
        else:
            wanted.append(begin if head.pooling == ("cls",) else begin + length - 1)
    types: array[int] | None = None
    if any(text.second for text in texts):
        types = array("q")
        for text in texts:
            first = text.second or len(text.prompt)
            types.extend([0] * first + [1] * (len(text.prompt) - first))
    return Batch(tokens, positions, starts, (), wanted, types=types)

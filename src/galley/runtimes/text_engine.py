"""The engine of language models that another library runs.

The library schedules, computes and samples (:class:`~galley.runtimes.text_runtime.TextRuntime`). This
engine holds back what exceeds ``max_running``, or what the library could not begin, so that tenants and
priorities count as with Galley's own.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, cast

from galley.engine.fair_queue import FairQueue, Queued
from galley.engine.step_meter import StepMeter
from galley.errors import EngineError, RequestError
from galley.runtimes.text_runtime import Advance, TextRuntime, Writing
from galley.types import EngineRequest, FinishReason, Output, Timing, Tokens
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo

_ONE: Final = 1
"""Budget of the queue: it returns one request at a time."""


@dataclass(slots=True, eq=False)
class _Text(Generic[Writing]):
    """A request that the runtime works on.

    Attributes:
        work: its entry of the queue.
        started, first_token: times on the monotonic clock; 0: not yet.
        engine_seconds: its share of the engine's time.
        timed: whether each output may be the last, because the text has stop strings.
    """

    work: Queued[Writing]
    started: float
    timed: bool
    first_token: float = 0.0
    engine_seconds: float = 0.0


class TextEngine(Generic[Writing]):
    """Continues texts or transcripts: see :class:`galley.service.protocol.Engine`. Not thread-safe."""

    def __init__(
        self,
        runtime: TextRuntime[Writing],
        info: ModelInfo,
        *,
        max_running: int,
        priority_steps: int,
        meter: StepMeter | None = None,
    ) -> None:
        """Create the engine.

        Args:
            runtime: the library, with the model loaded.
            info: describes the model.
            max_running: the most texts that the runtime works on at a time.
            priority_steps: number of arrivals by which one level of priority delays a request.
            meter: measures the steps; None for a new one.
        """
        self.info = info
        self._runtime = runtime
        self._most = max_running
        self._waiting = FairQueue[Writing](priority_steps=priority_steps, budget=_ONE)
        self._meter = meter or StepMeter()
        self._texts: dict[str, _Text[Writing]] = {}
        self._ended: list[Output] = []  # outputs of requests that never ran
        self._steps = self._prefill_tokens = self._decode_tokens = self._cached_tokens = 0
        self._forward_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self._texts or self._ended or len(self._waiting))

    @property
    def is_live(self) -> bool:
        """Always False: texts are not live audio."""
        return False

    def add(self, request: EngineRequest) -> None:
        """Queue a request; later steps return its tokens."""
        payload = cast(Writing, request.payload)  # of the task that the runtime performs
        if not self.has_work:
            self._meter.awake()
        if len(payload.output) >= payload.writes:
            self._ended.append(_ended(request, "length"))
            return
        self._waiting.add(request, payload)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests, wherever they are; unknown ids have already finished."""
        gone = set(request_ids)
        self._waiting.abort(gone)
        self._ended = [output for output in self._ended if output.request_id not in gone]
        for request_id in gone:
            text = self._texts.pop(request_id, None)
            if text is not None:
                self._runtime.end(request_id)
                self._waiting.finish([text.work])

    def step(self) -> list[Output]:
        """Let the runtime do one step, and return an output for each text that advanced."""
        meter = self._meter
        meter.begin()
        self._begin_waiting()
        ended, self._ended = self._ended, []
        if ended and not self._texts:
            return ended
        meter.assembled()
        began = time.monotonic()
        advances = self._runtime.step()
        self._forward_seconds += time.monotonic() - began
        self._steps += 1
        self._charge(advances)
        outputs = [self._output(advance) for advance in advances if _reports(advance)]
        meter.end()
        return [*ended, *outputs]

    def _begin_waiting(self) -> None:
        while len(self._waiting) and len(self._texts) < self._most and self._runtime.room > 0:
            [work] = self._waiting.take()
            sampling = work.payload.sampling
            try:
                self._runtime.begin(work.request.id, work.payload, self._stop_ids(work.payload))
            except (RequestError, EngineError) as error:
                self._waiting.finish([work])
                refused = isinstance(error, RequestError)
                self._ended.append(_ended(work.request, "error", str(error), refused=refused))
                continue
            self._texts[work.request.id] = _Text(work, time.monotonic(), bool(sampling.stop))

    def _stop_ids(self, payload: Writing) -> frozenset[int]:
        sampling = payload.sampling
        eos = () if sampling.ignore_eos else self.info.require_text().eos_token_ids
        return frozenset((*eos, *sampling.stop_token_ids))

    def _charge(self, advances: list[Advance]) -> None:
        """Divide the step's time among the texts, by the rows that were computed for each."""
        rows = [advance.rows for advance in advances]
        if not sum(rows):
            return
        share = self._meter.share(rows)
        for advance in advances:
            text = self._texts[advance.id]
            text.engine_seconds += share * advance.rows
            self._cached_tokens += advance.cached
            # The rows of the prompt give the first token.
            written = advance.rows if text.first_token else max(0, len(advance.tokens) - 1)
            self._decode_tokens += written
            self._prefill_tokens += advance.rows - written

    def _output(self, advance: Advance) -> Output:
        """Return a text's output, with timings where they are needed; forget a text that ended."""
        text, now = self._texts[advance.id], time.monotonic()
        first = not text.first_token
        text.first_token = text.first_token or now
        timing = None
        if first or text.timed or advance.finish_reason is not None:
            timing = Timing(
                queued=text.started - text.work.arrival,
                first_token=text.first_token - text.work.arrival,
                total=now - text.work.arrival,
                engine_seconds=text.engine_seconds,
            )
        if advance.finish_reason is not None:
            del self._texts[advance.id]
            self._waiting.finish([text.work])
        return Output(
            request_id=advance.id,
            result=Tokens(
                tokens=advance.tokens,
                logprobs=advance.logprobs,
                scores=advance.scores,
                no_speech_prob=advance.no_speech_prob,
            ),
            cached_tokens=advance.cached,
            finish_reason=advance.finish_reason,
            error=advance.error,
            timing=timing,
        )

    @property
    def stats(self) -> EngineStats:
        """The engine's current statistics; blocks of the KV cache are the runtime's."""
        cache = self._runtime.cache
        return EngineStats(
            running=len(self._texts),
            waiting=len(self._waiting),
            kv_used_blocks=cache.used,
            kv_total_blocks=cache.total,
            steps=self._steps,
            prefill_tokens=self._prefill_tokens,
            decode_tokens=self._decode_tokens,
            prefix_query_tokens=self._prefill_tokens + self._cached_tokens,
            prefix_hit_tokens=self._cached_tokens,
            forward_seconds=self._forward_seconds,
            schedule_seconds=self._meter.schedule_seconds,
            emit_seconds=self._meter.emit_seconds,
            busy_seconds=self._meter.busy_seconds,
            batch_sequences=self._meter.sequences,
            batch_tokens=self._meter.tokens,
        )

    def close(self) -> None:
        """Close the runtime."""
        self._runtime.close()


def _reports(advance: Advance) -> bool:
    return bool(advance.tokens) or advance.finish_reason is not None


def _ended(
    request: EngineRequest,
    reason: FinishReason,
    error: str | None = None,
    *,
    refused: bool = False,
) -> Output:
    return Output(
        request_id=request.id, finish_reason=reason, error=error, refused=refused, timing=Timing()
    )

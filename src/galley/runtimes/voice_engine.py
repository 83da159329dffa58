"""The engine of models that speak: makes the audio of several texts in turn, part by part.

A step makes one part of one text. It takes the text whose listener has the least audio left: new texts
come first, and no text waits while another's audio is made far ahead of its playback.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from galley.engine.fair_queue import FairQueue, Queued
from galley.engine.step_meter import StepMeter
from galley.types import LIVE_PRIORITY, Audio, EngineRequest, Output, Speak, Timing
from galley.types.engine_stats import EngineStats
from galley.types.model_info import ModelInfo

if TYPE_CHECKING:
    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

log = logging.getLogger("galley.runtimes")

_FULL_SCALE: Final = 32767


class UnspeakableText(Exception):
    """A text cannot be spoken; the message is for its sender."""


class VoiceModel(Protocol):
    """A loaded voice. It is called from one thread."""

    def speak(self, payload: Speak) -> "Iterator[tuple[Array, bool]]":
        """Return the samples of a text, float32 from -1 to 1, in parts, and whether each is the last.

        Raises:
            UnspeakableText: the text cannot be spoken.
        """


@dataclass(eq=False)
class _Active:
    """A text that is being spoken.

    Attributes:
        skip: samples to leave out, since they have been delivered.
        samples: samples made so far.
        first_audio: when its first part was made, on the monotonic clock.
        seconds: the engine's time for it.
    """

    work: Queued[Speak]
    started: float
    skip: int
    parts: "Iterator[tuple[Array, bool]] | None" = None
    samples: int = 0
    first_audio: float | None = None
    seconds: float = 0.0

    def runs_dry(self, rate: int) -> float:
        """Return when its listener, who began with the first part, has nothing left to hear."""
        began = self.work.arrival + self.work.payload.ahead
        if self.first_audio is None:
            return began
        return max(began, self.first_audio) + self.samples / rate


class VoiceEngine:
    """Speaks texts: see :class:`galley.service.protocol.Engine`. Not thread-safe."""

    def __init__(
        self,
        model: VoiceModel,
        info: ModelInfo,
        *,
        max_active: int,
        priority_steps: int,
        meter: StepMeter | None = None,
    ) -> None:
        """Create the engine.

        Args:
            model: the voice.
            info: describes the model.
            max_active: texts that are spoken at a time; others wait, tenants in turn.
            priority_steps: number of arrivals by which one level of priority delays a text.
            meter: measures the steps; None for a new one.
        """
        assert info.voice is not None
        self.info = info
        self._rate = info.voice.sample_rate
        self._model = model
        self._most = max_active
        # With this budget, each text is taken on its own.
        self._waiting = FairQueue[Speak](priority_steps=priority_steps, budget=1)
        self._active: list[_Active] = []
        self._meter = meter or StepMeter()
        self._steps = self._characters = 0
        self._seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a text waits or is being spoken."""
        return bool(self._active) or len(self._waiting) > 0

    @property
    def is_live(self) -> bool:
        """Whether a text is part of a live conversation."""
        return any(one.work.request.priority <= LIVE_PRIORITY for one in self._active)

    def add(self, request: EngineRequest) -> None:
        """Queue a text; later steps return its audio."""
        payload = request.payload
        assert isinstance(payload, Speak), request.id
        if not self.has_work:
            self._meter.awake()
        self._waiting.add(request, payload)
        self._admit()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop texts; unknown ids have already been answered."""
        gone = frozenset(request_ids)
        self._waiting.abort(gone)
        for one in [one for one in self._active if one.work.request.id in gone]:
            self._end(one)
        self._admit()

    def step(self) -> list[Output]:
        """Make one part of the audio of the most urgent text."""
        meter = self._meter
        meter.begin()
        one = min(self._active, key=lambda active: active.runs_dry(self._rate))
        meter.assembled()
        began = time.monotonic()
        error: Exception | None = None
        samples, last = np.zeros(0, np.float32), True
        try:
            if one.parts is None:
                one.parts = self._model.speak(one.work.payload)
            samples, last = next(one.parts)
        except Exception as raised:  # whatever the library raises
            error = raised
            if not isinstance(raised, UnspeakableText):
                log.warning("the voice failed on a text: %r", raised)
        now = time.monotonic()
        one.seconds += meter.share([1])
        one.samples += len(samples)
        if one.first_audio is None:
            one.first_audio = now
            self._characters += one.work.payload.reads
        self._steps += 1
        self._seconds += now - began
        output = self._output(one, samples, last, error, now)
        if last or error is not None:
            self._end(one)
            self._admit()
        meter.end()
        return [output]

    @property
    def stats(self) -> EngineStats:
        """The engine's current statistics; tokens are characters."""
        return EngineStats(
            running=len(self._active),
            waiting=len(self._waiting),
            steps=self._steps,
            prefill_tokens=self._characters,
            forward_seconds=self._seconds,
            schedule_seconds=self._meter.schedule_seconds,
            emit_seconds=self._meter.emit_seconds,
            busy_seconds=self._meter.busy_seconds,
            batch_sequences=self._meter.sequences,
            batch_tokens=self._meter.tokens,
        )

    def close(self) -> None:
        """Do nothing: the engine holds only memory, which is freed with the object."""

    def _admit(self) -> None:
        while len(self._active) < self._most and len(self._waiting):
            for work in self._waiting.take():
                self._active.append(_Active(work, time.monotonic(), work.payload.samples))

    def _end(self, one: _Active) -> None:
        self._active.remove(one)
        self._waiting.finish([one.work])

    def _output(
        self, one: _Active, samples: "Array", last: bool, error: Exception | None, now: float
    ) -> Output:
        request, arrival = one.work.request, one.work.arrival
        assert one.first_audio is not None
        timing = Timing(
            queued=one.started - arrival,
            first_token=one.first_audio - arrival,
            total=now - arrival,
            engine_seconds=one.seconds,
        )
        if error is not None:
            return Output(
                request_id=request.id,
                finish_reason="error",
                error=str(error) or type(error).__name__,
                refused=isinstance(error, UnspeakableText),
                timing=timing,
            )
        left_out = min(one.skip, len(samples))
        one.skip -= left_out
        whole = np.clip(samples[left_out:] * _FULL_SCALE, -_FULL_SCALE, _FULL_SCALE)
        return Output(
            request_id=request.id,
            result=Audio(whole.astype("<i2").tobytes()),
            finish_reason="stop" if last else None,
            timing=timing,
        )

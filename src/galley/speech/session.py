"""One recording's way through the engine: windows in, engine requests out, segments in order.

It waits for nothing and reads nothing. Who drives it feeds it windows while it has room, hands its requests
to an engine, and gives it what the engine says.
"""

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from galley.audio import AudioWindow
from galley.errors import EngineError
from galley.service.requests import expand
from galley.speech.attempts import Attempt, chosen, compression_ratio
from galley.speech.merge import join
from galley.speech.options import TranscribeOptions
from galley.speech.results import Segment
from galley.speech.tokens import SpeechTokens
from galley.speech.windows import Window
from galley.speech.words import keep_words, split_words
from galley.types import EngineRequest, Output

_MAX_CONDITION_TEMPERATURE: Final = 0.5
"""Text that was guessed at a higher one is no context for what follows (openai/whisper)."""


@dataclass(slots=True)
class _Job:
    """A window on its way."""

    window: Window
    audio: AudioWindow
    started: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    no_speech_prob: float = 0.0
    segments: list[Segment] | None = None
    """None while it is transcribed."""


class Session:
    """One recording.

    Args:
        tokens: of the model.
        options: what is wanted.
        request_id: unique; the engine's requests are named after it.
        room: windows that may be on their way at a time.
        priority: lower is sooner.
        cache_salt: tenant, whose windows no other one's requests find in the cache.

    Raises:
        RequestError: the model does not know the language or the task.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        options: TranscribeOptions,
        request_id: str,
        *,
        room: int,
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        tokens.check(options.language, options.task)
        self._tokens = tokens
        self._options = options
        self._rules = options.rules
        self._timestamps = options.timestamps and tokens.speech.timestamp_begin is not None
        self._request_id = request_id
        self._priority = priority
        self._cache_salt = cache_salt
        self._room = room
        self._jobs: deque[_Job] = deque()
        self._running: dict[str, _Job] = {}
        self._outbox: list[EngineRequest] = []
        self._numbers = itertools.count()
        self._segment_ids = itertools.count()
        self._ended = False
        self._context: list[int] = []
        prompt = options.prompt.strip()
        if prompt:
            self._context = tokens.tokenizer.encode_plain(" " + prompt)
        self.language = options.language
        """A code; None until it is detected."""
        if self.language is None and not tokens.detects_language:
            self.language = "en"

    @property
    def has_room(self) -> bool:
        """Whether another window is welcome."""
        return not self._ended and len(self._jobs) < self._room

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing of it."""
        return not self._running and not self._outbox

    def add(self, window: Window, features: NDArray[np.float32]) -> None:
        """The next window, with its features ``[frames, mels]``."""
        frames, mels = features.shape
        data = np.ascontiguousarray(features, "<f4").tobytes()
        self._jobs.append(_Job(window, AudioWindow(frames=frames, mels=mels, data=data)))
        self._start_jobs()

    def end(self) -> None:
        """There are no more windows."""
        self._ended = True

    def requests(self) -> list[EngineRequest]:
        """What the engine is to be given now."""
        requests, self._outbox = self._outbox, []
        return requests

    def take(self, output: Output) -> None:
        """What the engine says of one of the requests.

        Raises:
            EngineError: it gave the request up.
        """
        job = self._running[output.request_id]
        if output.finish_reason in ("error", "abort"):
            raise EngineError(output.error or "the engine gave the request up")
        job.tokens += output.tokens
        job.scores += output.scores or ()
        if output.no_speech_prob is not None:
            job.no_speech_prob = output.no_speech_prob
        if output.finish_reason is None:
            return
        del self._running[output.request_id]
        if self.language is None:
            self.language = self._tokens.language(job.tokens[0])
            job.started = False
        else:
            self._attempted(job)
        self._start_jobs()

    def segments(self) -> list[Segment]:
        """Segments that are certain, each once, in order."""
        certain: list[Segment] = []
        while self._jobs and self._jobs[0].segments is not None:
            if len(self._jobs) > 1:
                following = self._jobs[1]
                if following.window.overlap and not self._join(self._jobs[0], following):
                    break
            elif not self._ended:
                break
            job = self._jobs.popleft()
            certain += job.segments or ()
        return [msgspec.structs.replace(segment, id=next(self._segment_ids)) for segment in certain]

    def _start_jobs(self) -> None:
        """Starts what need not wait: for the language, or for the text before."""
        for job in self._jobs:
            if not job.started:
                self._start(job)
            in_turn = self.language is None or self._rules.condition_on_previous_text
            if in_turn and job.segments is None:
                return

    def _start(self, job: _Job) -> None:
        """Asks for a window's language or, if that is known, its text at the next temperature."""
        job.started = True
        job.tokens, job.scores = [], []
        if self.language is None:
            ids, params = self._tokens.detection()
        else:
            prompt = self._tokens.prompt(
                self.language,
                self._options.task,
                timestamps=self._timestamps,
                previous=self._context,
            )
            temperature = self._rules.temperatures[len(job.attempts)]
            params = self._tokens.sampling(
                prompt,
                temperature,
                timestamps=self._timestamps,
                beam_size=self._rules.beam_size,
            )
            ids = prompt.ids
        [request] = expand(
            ids,
            params,
            self._tokens.info,
            request_id=f"{self._request_id}-{next(self._numbers)}",
            window=job.audio,
            priority=self._priority,
            cache_salt=self._cache_salt,
        )
        self._running[request.id] = job
        self._outbox.append(request)

    def _attempted(self, job: _Job) -> None:
        """Takes the transcript if it is good or the last, else asks for another."""
        temperature = self._rules.temperatures[len(job.attempts)]
        attempt = Attempt(
            tokens=tuple(job.tokens),
            temperature=temperature,
            avg_logprob=sum(job.scores) / max(1, len(job.scores)),
            compression_ratio=compression_ratio(self._tokens.text(job.tokens)),
            no_speech_prob=job.no_speech_prob,
        )
        job.attempts.append(attempt)
        taken = chosen(job.attempts, self._rules)
        if taken is None:
            self._start(job)
            return
        silence = taken.is_silence(self._rules)
        job.segments = [] if silence else self._segments(job.window, taken)
        if self._rules.condition_on_previous_text:
            self._remember(job.segments, taken.temperature)

    def _remember(self, segments: Sequence[Segment], temperature: float) -> None:
        if temperature > _MAX_CONDITION_TEMPERATURE:
            self._context = []
        else:
            self._context += [token for segment in segments for token in segment.tokens]

    def _segments(self, window: Window, attempt: Attempt) -> list[Segment]:
        seconds = len(window.samples) / 16_000
        return [
            Segment(
                id=0,
                start=round(window.recording_time(piece.start), 3),
                end=round(window.recording_time(piece.end, end=True), 3),
                text=text,
                tokens=piece.tokens,
                temperature=attempt.temperature,
                avg_logprob=attempt.avg_logprob,
                compression_ratio=attempt.compression_ratio,
                no_speech_prob=attempt.no_speech_prob,
            )
            for piece in self._tokens.pieces(attempt.tokens, seconds)
            if (text := self._tokens.text(piece.tokens)).strip()
        ]

    def _join(self, left: _Job, right: _Job) -> bool:
        """Takes from both what the other says better; False if ``right`` is not there yet."""
        if left.segments is None or right.segments is None:
            return False
        start = right.window.spans[0].start / 16_000
        overlap = (start, start + right.window.overlap)
        before, after = (
            [split_words(segment, self.language or "en") for segment in job.segments or []]
            for job in (left, right)
        )
        where = join(list(itertools.chain(*before)), list(itertools.chain(*after)), overlap)
        tokenizer = self._tokens.tokenizer
        left.segments = keep_words(left.segments, before, slice(0, where.keep_left), tokenizer)
        right.segments = keep_words(right.segments, after, slice(where.skip_right, None), tokenizer)
        return True

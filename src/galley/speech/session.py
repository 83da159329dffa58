"""One recording's way through the engine: chunks in, engine requests out, segments in order.

It waits for nothing and reads nothing. Who drives it feeds it chunks while it has room, hands its requests
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

from galley.audio import Alignment, EncoderInput
from galley.errors import EngineError
from galley.service.requests import expand
from galley.speech.alignment import token_times
from galley.speech.chunks import AudioChunk
from galley.speech.fallback import Attempt, choose, compression_ratio
from galley.speech.features import SAMPLE_RATE
from galley.speech.languages import UNSPACED
from galley.speech.merge import join
from galley.speech.options import TranscribeOptions
from galley.speech.results import Segment, Word
from galley.speech.tokens import DecodedSegment, SpeechTokens
from galley.speech.word_times import time_words
from galley.speech.words import after_space, keep_words, moved, not_before, words_of
from galley.types import EngineRequest, Output, SamplingParams

_MAX_CONDITION_TEMPERATURE: Final = 0.5
"""Text that was guessed at a higher one is no context for what follows (openai/whisper)."""


@dataclass(slots=True)
class _ChunkJob:
    """A chunk and how far its transcription is."""

    chunk: AudioChunk
    encoder_input: EncoderInput
    started: bool = False
    attempts: list[Attempt] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    no_speech_prob: float = 0.0
    taken: Attempt | None = None
    """None while it is transcribed."""
    decoded: list[DecodedSegment] = field(default_factory=list)
    """Of what is taken; none if that is silence."""
    segments: list[Segment] | None = None
    """None while it is transcribed, or its words are timed."""


class Session:
    """One recording.

    Args:
        tokens: of the model.
        options: what is wanted.
        request_id: unique; the engine's requests are named after it.
        max_chunks: chunks that may be on their way at a time.
        priority: lower is sooner.
        cache_salt: tenant, whose chunks no other one's requests find in the cache.

    Raises:
        RequestError: the model does not know the language or the task, or cannot time words.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        options: TranscribeOptions,
        request_id: str,
        *,
        max_chunks: int,
        priority: int = 0,
        cache_salt: str = "",
    ) -> None:
        tokens.check(options.language, options.task)
        if options.word_timestamps:
            tokens.check_words()
        self._tokens = tokens
        self._options = options
        self._rules = options.rules
        self._timestamps = options.timestamps and tokens.speech.timestamp_begin is not None
        self._request_id = request_id
        self._priority = priority
        self._cache_salt = cache_salt
        self._max_chunks = max_chunks
        self._jobs: deque[_ChunkJob] = deque()
        self._running: dict[str, _ChunkJob] = {}
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
    def _spoken(self) -> str:
        return self.language or "en"

    @property
    def _written(self) -> str:
        return "en" if self._options.task == "translate" else self._spoken

    @property
    def has_room(self) -> bool:
        """Whether another chunk is welcome."""
        return not self._ended and len(self._jobs) < self._max_chunks

    @property
    def idle(self) -> bool:
        """Whether the engine has nothing of it."""
        return not self._running and not self._outbox

    def add(self, chunk: AudioChunk, features: NDArray[np.float32]) -> None:
        """The next chunk, with its features ``[frames, mels]``."""
        frames, mels = features.shape
        data = np.ascontiguousarray(features, "<f4").tobytes()
        self._jobs.append(_ChunkJob(chunk, EncoderInput(frames=frames, mels=mels, data=data)))
        self._start_jobs()

    def end(self) -> None:
        """There are no more chunks."""
        self._ended = True

    def requests(self) -> list[EngineRequest]:
        """What the engine is to be given now."""
        requests, self._outbox = self._outbox, []
        return requests

    def take(self, output: Output) -> None:
        """What the engine says of one of the requests. It takes some 50 ms to make times of an alignment.

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
        elif job.taken is None:
            self._attempted(job)
        else:
            assert output.alignment is not None
            job.segments = self._segments(job, self._words(job, output.alignment))
        self._start_jobs()

    def segments(self) -> list[Segment]:
        """Segments that are certain, each once, in order."""
        certain: list[Segment] = []
        while self._jobs and self._jobs[0].segments is not None:
            if len(self._jobs) > 1:
                following = self._jobs[1]
                if following.chunk.overlap and not self._join(self._jobs[0], following):
                    break
            elif not self._ended:
                break
            job = self._jobs.popleft()
            certain += job.segments or ()
        return [self._numbered(segment) for segment in certain]

    def _numbered(self, segment: Segment) -> Segment:
        """In its place: with its number, and a space before it even if its model puts none there."""
        number = next(self._segment_ids)
        if number and self._written not in UNSPACED:
            segment = after_space(segment)
        return msgspec.structs.replace(segment, id=number)

    def _start_jobs(self) -> None:
        """Starts what need not wait: for the language, or for the text before."""
        for job in self._jobs:
            if not job.started:
                self._start(job)
            in_turn = self.language is None or self._rules.condition_on_previous_text
            if in_turn and job.taken is None:
                return

    def _start(self, job: _ChunkJob) -> None:
        """Asks for a chunk's language or, if that is known, its text at the next temperature."""
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
        self._ask(job, ids, params)

    def _ask(self, job: _ChunkJob, ids: list[int], params: SamplingParams) -> None:
        [request] = expand(
            ids,
            params,
            self._tokens.info,
            request_id=f"{self._request_id}-{next(self._numbers)}",
            encoder_input=job.encoder_input,
            priority=self._priority,
            cache_salt=self._cache_salt,
        )
        self._running[request.id] = job
        self._outbox.append(request)

    def _attempted(self, job: _ChunkJob) -> None:
        """Takes the transcript if it is good or the last, else asks for another."""
        temperature = self._rules.temperatures[len(job.attempts)]
        attempt = Attempt(
            tokens=tuple(job.tokens),
            scores=tuple(job.scores),
            temperature=temperature,
            compression_ratio=compression_ratio(self._tokens.text(job.tokens)),
            no_speech_prob=job.no_speech_prob,
        )
        job.attempts.append(attempt)
        taken = choose(job.attempts, self._rules)
        if taken is None:
            self._start(job)
            return
        job.taken = taken
        if not taken.is_silence(self._rules):
            found = self._tokens.segments(taken.tokens, taken.scores, job.chunk.seconds)
            job.decoded = [
                segment for segment in found if self._tokens.text(segment.tokens).strip()
            ]
        text = [token for segment in job.decoded for token in segment.tokens]
        if self._rules.condition_on_previous_text:
            above = taken.temperature > _MAX_CONDITION_TEMPERATURE
            self._context = [] if above else self._context + text
        if self._options.word_timestamps and text:
            prompt, params = self._tokens.alignment(self._spoken, self._options.task, text)
            self._ask(job, prompt.ids, params)
        else:
            job.segments = self._segments(job, [None] * len(job.decoded))

    def _words(self, job: _ChunkJob, alignment: Alignment) -> list[tuple[Word, ...]]:
        """Of each of the job's decoded, with times in the recording."""
        chunk, tokens = job.chunk, self._tokens
        count = sum(len(segment.tokens) for segment in job.decoded)
        times = token_times(alignment, count, chunk.seconds, tokens.row_seconds)
        return [
            tuple(moved(word, *chunk.recording_times(word.start, word.end)) for word in words)
            for words in time_words(job.decoded, times, tokens.tokenizer, self._written)
        ]

    def _segments(self, job: _ChunkJob, words: Sequence[tuple[Word, ...] | None]) -> list[Segment]:
        """One for each segment; ``words`` are theirs and have the say on when they begin and end."""
        chunk, taken = job.chunk, job.taken
        assert taken is not None
        return [
            Segment(
                id=0,
                start=round(timed[0].start if timed else chunk.recording_time(segment.start), 3),
                end=round(
                    timed[-1].end if timed else chunk.recording_time(segment.end, end=True), 3
                ),
                text=self._tokens.text(segment.tokens),
                tokens=segment.tokens,
                temperature=taken.temperature,
                avg_logprob=taken.avg_logprob,
                compression_ratio=taken.compression_ratio,
                no_speech_prob=taken.no_speech_prob,
                words=timed,
            )
            for segment, timed in zip(job.decoded, words, strict=True)
        ]

    def _join(self, left: _ChunkJob, right: _ChunkJob) -> bool:
        """Takes from both what the other says better; False if ``right`` is not there yet."""
        if left.segments is None or right.segments is None:
            return False
        start = right.chunk.segments[0].start / SAMPLE_RATE
        overlap = (start, start + right.chunk.overlap)
        before, after = (
            [words_of(segment, self._written) for segment in job.segments or []]
            for job in (left, right)
        )
        where = join(list(itertools.chain(*before)), list(itertools.chain(*after)), overlap)
        tokenizer = self._tokens.tokenizer
        left.segments = keep_words(left.segments, before, slice(0, where.keep_left), tokenizer)
        right.segments = keep_words(right.segments, after, slice(where.skip_right, None), tokenizer)
        if left.segments:
            right.segments = not_before(left.segments[-1].end, right.segments)
        return True

"""Transcription of one recording: chunks in, engine requests out, segments in order.

A :class:`Session` neither waits nor does I/O. Its caller adds chunks while the session has room, passes the
session's requests to an engine, and passes the engine's outputs back.
"""

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from galley.errors import EngineError
from galley.service.speech_requests import align_request, transcribe_requests
from galley.speech.alignment import token_times
from galley.speech.chunks import AudioChunk
from galley.speech.fallback import Answer, Attempt, choose, likeliest
from galley.speech.features import SAMPLE_RATE, encoder_input, rest_of
from galley.speech.languages import UNSPACED
from galley.speech.merge import join
from galley.speech.options import TranscribeOptions
from galley.speech.part import ChunkJob, Part
from galley.speech.results import Segment, Word
from galley.speech.tokens import LEAST_STEP, SpeechTokens, Transcript
from galley.speech.word_times import time_words
from galley.speech.words import after_space, keep_words, moved, not_before, words_of
from galley.types import EngineRequest, Output
from galley.types.audio import Alignment

_MAX_CONDITION_TEMPERATURE: Final = 0.5
"""Text sampled at a higher temperature does not condition the text after it, as in openai/whisper."""

_LISTED_DOUBTS: Final = 5
"""Maximum number of places in a recording that a warning lists."""


class Session:
    """The state of one recording's transcription.

    Args:
        tokens: the model's special tokens.
        options: the caller's options.
        request_id: unique prefix of the engine requests' ids.
        max_chunks: maximum number of chunks in the session at a time.
        pads: whether the model's encoder inputs are padded to one length.
        priority: priority of the engine requests; a lower value runs sooner.
        cache_salt: the tenant; requests of other tenants never reuse this recording's encoded audio.

    Raises:
        RequestError: the model does not support the language, the task or word timestamps.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        options: TranscribeOptions,
        request_id: str,
        *,
        max_chunks: int,
        pads: bool = True,
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
        self._pads = pads
        self._jobs: deque[ChunkJob] = deque()
        self._running: dict[str, tuple[ChunkJob, Part]] = {}
        """Engine request id -> the chunk's job and the part that the request is for."""
        self._outbox: list[EngineRequest] = []
        self._numbers = itertools.count()
        self._segment_ids = itertools.count()
        self._ended = False
        self._doubtful: list[tuple[float, float]] = []
        """(start in seconds, mean token probability) of chunks with low confidence."""
        self._context: list[int] = []
        """Tokens of the text that conditions the next chunk."""
        prompt = options.prompt.strip()
        if prompt:
            self._context = tokens.tokenizer.encode_plain(" " + prompt)
        hotwords = options.hotwords.strip()
        self._hotwords = tokens.tokenizer.encode_plain(" " + hotwords) if hotwords else []
        self.language = options.language
        """The spoken language as a code; None until it is detected."""
        if self.language is None and not tokens.detects_language:
            self.language = "en"

    @property
    def _spoken(self) -> str:
        """The language of the audio."""
        return self.language or "en"

    @property
    def _written(self) -> str:
        """The language of the text."""
        return "en" if self._options.task == "translate" else self._spoken

    @property
    def has_room(self) -> bool:
        """Whether :meth:`add` may be called."""
        return not self._ended and len(self._jobs) < self._max_chunks

    @property
    def idle(self) -> bool:
        """Whether no request is running in the engine or waiting to be submitted."""
        return not self._running and not self._outbox

    def add(self, chunk: AudioChunk, features: NDArray[np.float32]) -> None:
        """Add the recording's next chunk; ``features`` is float32 ``[frames, mels]``."""
        self._jobs.append(ChunkJob(chunk, [Part(0.0, encoder_input(features))]))
        self._start_jobs()

    def end(self) -> None:
        """Mark the recording as having no more chunks."""
        self._ended = True

    def requests(self) -> list[EngineRequest]:
        """Return the engine requests created since the last call."""
        requests, self._outbox = self._outbox, []
        return requests

    def take(self, output: Output) -> None:
        """Process one engine output. An output with an alignment takes about 50 ms of CPU time.

        Raises:
            EngineError: the engine aborted the request.
        """
        job, part = self._running[output.request_id]
        if output.finish_reason in ("error", "abort"):
            raise EngineError(output.error or "the engine gave up the request")
        answer = part.answers[output.request_id]
        answer.add(output)
        if output.finish_reason is None:
            return
        del self._running[output.request_id]
        part.waiting -= 1
        if part.waiting:
            return
        if self.language is None:
            self.language = self._tokens.language(answer.tokens[0])
            part.started = False
        elif part.best is None:
            self._judge(job, part)
        else:
            assert isinstance(output.result, Alignment)
            part.segments = self._segments(job, part, self._words(job, part, output.result))
        job.settle()
        self._start_jobs()

    def doubts(self) -> list[str]:
        """Return the warnings about chunks with a low mean token probability; empty if there are none."""
        if not self._doubtful:
            return []
        places = ", ".join(
            f"{start:.1f} s ({mean:.2f})" for start, mean in sorted(self._doubtful)[:_LISTED_DOUBTS]
        )
        more = len(self._doubtful) - _LISTED_DOUBTS
        return [
            f"{self._tokens.info.name} has low confidence from {places}"
            f"{f' and {more} other places' if more > 0 else ''} on (mean token probability below "
            f"{self._tokens.speech.low_confidence:g}); names and numbers there may be wrong"
        ]

    def segments(self) -> list[Segment]:
        """Return the segments that have become final since the last call, in order.

        A chunk's segments are final once the next chunk is known not to overlap or has been joined to it.
        """
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
        """Return the segment with its number and, after other segments, a leading space.

        Some models omit that space.
        """
        number = next(self._segment_ids)
        if number and self._written not in UNSPACED:
            segment = after_space(segment)
        return msgspec.structs.replace(segment, id=number)

    def _start_jobs(self) -> None:
        """Create the first requests of all parts that need not wait for the language or earlier text."""
        for job in self._jobs:
            for part in job.parts:
                if not part.started:
                    self._start(job, part)
            in_turn = self.language is None or self._rules.condition_on_previous_text
            if in_turn and not job.used_up:
                return

    def _start(self, job: ChunkJob, part: Part) -> None:
        """Request a chunk's language or, if it is known, a part's transcript at the next temperature."""
        part.started = True
        if self.language is None:
            wanted = self._tokens.detection()
        else:
            prompt = self._tokens.prompt(
                self.language,
                self._options.task,
                timestamps=self._timestamps,
                previous=self._context,
                hotwords=self._hotwords,
            )
            wanted = self._tokens.transcription(
                prompt,
                self._rules.temperatures[len(part.attempts)],
                timestamps=self._timestamps,
                beam_size=self._rules.beam_size,
                best_of=self._rules.best_of,
            )
        requests = transcribe_requests(
            wanted.prompt,
            wanted.sampling,
            self._tokens.info,
            request_id=self._next_id(),
            encoder_input=part.encoder_input,
            rules=wanted.rules,
            priority=self._priority,
            cache_salt=self._cache_salt,
        )
        self._request(job, part, requests)

    def _next_id(self) -> str:
        return f"{self._request_id}-{next(self._numbers)}"

    def _request(self, job: ChunkJob, part: Part, requests: list[EngineRequest]) -> None:
        part.answers = {request.id: Answer() for request in requests}
        part.waiting = len(requests)
        self._running |= {request.id: (job, part) for request in requests}
        self._outbox += requests

    def _judge(self, job: ChunkJob, part: Part) -> None:
        """Use the part's transcript if it is good or the last one; otherwise request another."""
        temperature = self._rules.temperatures[len(part.attempts)]
        answers = part.answers.values()
        part.attempts.append(
            likeliest(one.attempt(temperature, self._tokens.text(one.tokens)) for one in answers)
        )
        best = choose(part.attempts, self._rules)
        if best is None:
            self._start(job, part)
            return
        part.best = best
        self._read(job, part, best)
        least, mean = self._tokens.speech.low_confidence, math.exp(best.avg_logprob)
        if least is not None and part.decoded and mean < least:
            self._doubtful.append((job.time(part, part.decoded[0].start), mean))
        text = [token for segment in part.decoded for token in segment.tokens]
        if self._rules.condition_on_previous_text:
            above = best.temperature > _MAX_CONDITION_TEMPERATURE
            self._context = [] if above else self._context + text
        if self._options.word_timestamps and text:
            prompt = self._tokens.alignment(self._spoken, self._options.task, text)
            request = align_request(
                prompt.ids,
                self._tokens.info,
                request_id=self._next_id(),
                encoder_input=part.encoder_input,
                priority=self._priority,
                cache_salt=self._cache_salt,
            )
            self._request(job, part, [request])
        else:
            part.segments = self._segments(job, part, [None] * len(part.decoded))

    def _read(self, job: ChunkJob, part: Part, best: Attempt) -> None:
        """Parse the chosen transcript; speech in the chunk that it does not cover becomes another part."""
        seconds = job.chunk.seconds - part.start
        rest = None
        if not self._is_silence(part, best):
            heard = self._tokens.transcript(
                best.tokens, best.scores, seconds, complete=best.complete or not self._timestamps
            )
            part.decoded = heard.segments
            rest = self._rest(job, part, heard)
        if rest is None:
            job.used_up = True
            return
        whole = job.parts[0].encoder_input
        job.parts.append(Part(rest, rest_of(whole, rest, pads=self._pads)))

    def _is_silence(self, part: Part, best: Attempt) -> bool:
        """Return whether a part is treated as silence.

        After earlier text, a high no-speech probability is enough: the model may transcribe a breath or an
        echo as a very likely phrase.
        """
        limit = self._rules.no_speech_threshold
        is_rest = part.start > 0 and limit is not None and best.no_speech_prob > limit
        return is_rest or best.is_silence(self._rules)

    def _rest(self, job: ChunkJob, part: Part, heard: Transcript) -> float | None:
        """Return the time in the chunk from which speech is left to transcribe; None if none is left.

        The speech detector decides this. If the whole recording counts as speech, the model's transcript
        decides it, as in openai/whisper.
        """
        if not self._timestamps or not heard.segments or not heard.until:
            return None
        if self._options.speech is None and not heard.goes_on:
            return None
        rest = job.chunk.unheard_from(part.start + heard.until)
        return None if rest is None or rest < part.start + LEAST_STEP else rest

    def _words(self, job: ChunkJob, part: Part, alignment: Alignment) -> list[tuple[Word, ...]]:
        """Return the words of each decoded segment, with times in the recording."""
        chunk, tokens, start = job.chunk, self._tokens, part.start
        count = sum(len(segment.tokens) for segment in part.decoded)
        times = token_times(alignment, count, chunk.seconds - start, tokens.row_seconds)
        return [
            tuple(
                moved(word, *chunk.recording_times(start + word.start, start + word.end))
                for word in words
            )
            for words in time_words(part.decoded, times, tokens.tokenizer, self._written)
        ]

    def _segments(
        self, job: ChunkJob, part: Part, words: Sequence[tuple[Word, ...] | None]
    ) -> list[Segment]:
        """Return the part's segments with times in the recording, taken from ``words`` where given."""
        best = part.best
        assert best is not None
        return [
            Segment(
                id=0,
                start=round(timed[0].start if timed else job.time(part, segment.start), 3),
                end=round(timed[-1].end if timed else job.time(part, segment.end, end=True), 3),
                text=self._tokens.text(segment.tokens),
                tokens=segment.tokens,
                temperature=best.temperature,
                avg_logprob=best.avg_logprob,
                compression_ratio=best.compression_ratio,
                no_speech_prob=best.no_speech_prob,
                words=timed,
            )
            for segment, timed in zip(part.decoded, words, strict=True)
        ]

    def _join(self, left: ChunkJob, right: ChunkJob) -> bool:
        """Remove the words that two overlapping chunks share; return False if one has no segments yet."""
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

"""Transcription of one recording: chunks in, engine requests out, segments in order.

A :class:`Session` neither waits nor does I/O. Its caller adds chunks while the session has room, passes the
session's requests to an engine, and passes the engine's outputs back.
"""

import itertools
from collections import deque
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from galley.errors import EngineError, RequestError
from galley.service.speech_requests import align_request, transcribe_requests
from galley.speech.chunks import AudioChunk
from galley.speech.fallback import Answer, choose, likeliest
from galley.speech.features import SAMPLE_RATE, encoder_input, rest_of
from galley.speech.languages import UNSPACED
from galley.speech.low_confidence import LowConfidence
from galley.speech.merge import join
from galley.speech.options import TranscribeOptions
from galley.speech.part import ChunkJob, Part
from galley.speech.part_reader import PartReader
from galley.speech.results import Segment
from galley.speech.tokens import SpeechTokens
from galley.speech.words import after_space, keep_words, not_before, words_of
from galley.types import EngineRequest, Output
from galley.types.audio import Alignment

_MAX_CONDITION_TEMPERATURE: Final = 0.5
"""Text sampled at a higher temperature does not condition the text after it, as in openai/whisper."""


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
        RequestError: the model does not support the language, the task, word timestamps or several
            languages.
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
        if options.multilingual and not tokens.detects_language:
            raise RequestError(
                f"{tokens.info.name} knows one language; multilingual needs a model that knows several",
                param="multilingual",
            )
        if options.aligns_words:
            tokens.check_words()
        self._tokens = tokens
        self._options = options
        self._rules = options.rules
        self._reader = PartReader(tokens, options)
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
        self._low_confidence = LowConfidence(tokens.info.name, tokens.speech.low_confidence)
        self._context: list[int] = []
        """Tokens of the text that conditions the next chunk."""
        prompt = options.prompt.strip()
        if prompt:
            self._context = tokens.tokenizer.encode_plain(" " + prompt)
        hotwords = options.hotwords.strip()
        self._hotwords = tokens.tokenizer.encode_plain(" " + hotwords) if hotwords else []
        self.language = options.language
        """The spoken language as a code, of the first chunk if each has its own; None until detected."""
        if self.language is None and not tokens.detects_language:
            self.language = "en"

    def _language_of(self, job: ChunkJob) -> str | None:
        """Return the language of a chunk's audio; None until it is detected."""
        return job.language if self._options.multilingual else self.language

    def _written(self, language: str | None) -> str:
        """Return the language of the text of audio in ``language``."""
        return "en" if self._options.task == "translate" else language or "en"

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
            RequestError: the engine does not do what the request says.
            EngineError: the engine aborted the request.
        """
        job, part = self._running[output.request_id]
        if output.finish_reason in ("error", "abort"):
            error = output.error or "the engine gave up the request"
            raise RequestError(error) if output.refused else EngineError(error)
        answer = part.answers[output.request_id]
        answer.add(output)
        if output.finish_reason is None:
            return
        del self._running[output.request_id]
        part.waiting -= 1
        if part.waiting:
            return
        if self._language_of(job) is None:
            job.language = self._tokens.language(answer.tokens[0])
            self.language = self.language or job.language
            part.started = False
        elif part.best is None:
            self._judge(job, part)
        else:
            assert isinstance(output.result, Alignment)
            self._align(job, part, output.result)
        job.settle()
        self._start_jobs()

    def warnings(self) -> list[str]:
        """Return the warnings about chunks with a low mean token probability; empty if there are none."""
        return self._low_confidence.warnings()

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
        if number and self._written(segment.language or self.language) not in UNSPACED:
            segment = after_space(segment)
        return msgspec.structs.replace(segment, id=number)

    def _start_jobs(self) -> None:
        """Create the first requests of all parts that need not wait for the language or earlier text."""
        for job in self._jobs:
            for part in job.parts:
                if not part.started:
                    self._start(job, part)
            waits = self.language is None and not self._options.multilingual
            if (waits or self._rules.condition_on_previous_text) and not job.used_up:
                return

    def _start(self, job: ChunkJob, part: Part) -> None:
        """Request a chunk's language or, if it is known, a part's transcript at the next temperature."""
        part.started = True
        language = self._language_of(job)
        if language is None:
            wanted = self._tokens.detection()
        else:
            prompt = self._tokens.prompt(
                language,
                self._options.task,
                timestamps=self._reader.timestamps,
                previous=self._context,
                hotwords=self._hotwords,
            )
            wanted = self._tokens.transcription(
                prompt,
                self._rules.temperatures[len(part.attempts)],
                timestamps=self._reader.timestamps,
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
        samples = [one.attempt(temperature, self._tokens.text(one.tokens)) for one in answers]
        part.attempts.append(likeliest(samples, self._rules))
        best = choose(part.attempts, self._rules)
        if best is None:
            self._start(job, part)
            return
        part.best = best
        self._reader.read(job, part, best)
        if part.decoded:
            start = job.time(part, part.decoded[0].start)
            self._low_confidence.add(start, best.avg_logprob)
        if not (self._options.aligns_words and part.decoded):
            part.segments = self._reader.segments(job, part, None)
            self._go_on(job, part)
            return
        if self._options.hallucination_silence_threshold is None:
            self._go_on(job, part)
        text = [token for segment in part.decoded for token in segment.tokens]
        language = self._language_of(job) or "en"
        request = align_request(
            self._tokens.alignment(language, self._options.task, text).ids,
            self._tokens.info,
            request_id=self._next_id(),
            encoder_input=part.encoder_input,
            priority=self._priority,
            cache_salt=self._cache_salt,
        )
        self._request(job, part, [request])

    def _go_on(self, job: ChunkJob, part: Part) -> None:
        """Start the part after one whose text is certain, if speech is left."""
        if self._rules.condition_on_previous_text:
            assert part.best is not None
            text = [token for segment in part.decoded for token in segment.tokens]
            above = part.best.temperature > _MAX_CONDITION_TEMPERATURE
            self._context = [] if above else self._context + text
        if part.rest is None:
            job.used_up = True
            return
        whole = job.parts[0].encoder_input
        job.parts.append(Part(part.rest, rest_of(whole, part.rest, pads=self._pads)))

    def _align(self, job: ChunkJob, part: Part, alignment: Alignment) -> None:
        """Set the part's segments from the times of its words, without invented ones."""
        words = self._reader.words(job, part, alignment, self._written(self._language_of(job)))
        if self._options.hallucination_silence_threshold is not None:
            words = self._reader.without_invented(job, part, words)
            self._go_on(job, part)
        part.segments = self._reader.segments(job, part, words)

    def _join(self, left: ChunkJob, right: ChunkJob) -> bool:
        """Remove the words that two overlapping chunks share; return False if one has no segments yet."""
        if left.segments is None or right.segments is None:
            return False
        start = right.chunk.segments[0].start / SAMPLE_RATE
        overlap = (start, start + right.chunk.overlap)
        before, after = (
            [
                words_of(segment, self._written(self._language_of(job)))
                for segment in job.segments or []
            ]
            for job in (left, right)
        )
        where = join(list(itertools.chain(*before)), list(itertools.chain(*after)), overlap)
        tokenizer = self._tokens.tokenizer
        left.segments = keep_words(left.segments, before, slice(0, where.keep_left), tokenizer)
        right.segments = keep_words(right.segments, after, slice(where.skip_right, None), tokenizer)
        if left.segments:
            right.segments = not_before(left.segments[-1].end, right.segments)
        return True

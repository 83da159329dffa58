"""Transcription of one recording: chunks in, engine requests out, segments in order.

A :class:`Session` does no waiting and no I/O. Its caller adds chunks while the session has room, hands the
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
"""Text sampled at a higher temperature does not condition what follows, as in openai/whisper."""

_TOLD_DOUBTS: Final = 5
"""Most places of a recording that a warning names."""


class Session:
    """The state of one recording's transcription.

    Args:
        tokens: the model's special tokens.
        options: what the caller wants.
        request_id: unique; prefix of the ids of the engine requests.
        max_chunks: how many chunks may be in the session at a time.
        pads: the model's encoder inputs are padded to one length.
        priority: of the engine requests; lower is sooner.
        cache_salt: the tenant; requests of another tenant never reuse this recording's encoded audio.

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
        """By the id of its request to the engine."""
        self._outbox: list[EngineRequest] = []
        self._numbers = itertools.count()
        self._segment_ids = itertools.count()
        self._ended = False
        self._doubtful: list[tuple[float, float]] = []
        """(start in seconds, mean token probability) of chunks that the model was unsure of."""
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
        """Language of the audio."""
        return self.language or "en"

    @property
    def _written(self) -> str:
        """Language of the text."""
        return "en" if self._options.task == "translate" else self._spoken

    @property
    def has_room(self) -> bool:
        """Whether :meth:`add` may be called."""
        return not self._ended and len(self._jobs) < self._max_chunks

    @property
    def idle(self) -> bool:
        """Whether no request is with the engine or waiting for it."""
        return not self._running and not self._outbox

    def add(self, chunk: AudioChunk, features: NDArray[np.float32]) -> None:
        """Adds the recording's next chunk; ``features`` are its float32 ``[frames, mels]``."""
        self._jobs.append(ChunkJob(chunk, [Part(0.0, encoder_input(features))]))
        self._start_jobs()

    def end(self) -> None:
        """Takes note that the recording has no more chunks."""
        self._ended = True

    def requests(self) -> list[EngineRequest]:
        """The requests made since the last call, for the engine."""
        requests, self._outbox = self._outbox, []
        return requests

    def take(self, output: Output) -> None:
        """Takes one of the engine's outputs. An output with an alignment costs some 50 ms of CPU time.

        Raises:
            EngineError: the engine gave the request up.
        """
        job, part = self._running[output.request_id]
        if output.finish_reason in ("error", "abort"):
            raise EngineError(output.error or "the engine gave the request up")
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
        """What to tell people of chunks with a low mean token probability; nothing without any."""
        if not self._doubtful:
            return []
        told = ", ".join(
            f"{start:.1f} s ({mean:.2f})" for start, mean in sorted(self._doubtful)[:_TOLD_DOUBTS]
        )
        more = len(self._doubtful) - _TOLD_DOUBTS
        return [
            f"{self._tokens.info.name} is unsure of what is said from {told}"
            f"{f' and {more} other places' if more > 0 else ''} on: a mean token probability below "
            f"{self._tokens.speech.low_confidence:g} is low for this model; names and numbers there may be "
            "invented"
        ]

    def segments(self) -> list[Segment]:
        """The segments that have become certain since the last call, in order.

        A chunk's segments are certain once the next chunk is known not to overlap, or is joined with it.
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
        """The segment as it follows the segments before: numbered, and with a space in front, which some
        models leave out.
        """
        number = next(self._segment_ids)
        if number and self._written not in UNSPACED:
            segment = after_space(segment)
        return msgspec.structs.replace(segment, id=number)

    def _start_jobs(self) -> None:
        """Makes the first requests of all parts that need not wait for the language or the text before."""
        for job in self._jobs:
            for part in job.parts:
                if not part.started:
                    self._start(job, part)
            in_turn = self.language is None or self._rules.condition_on_previous_text
            if in_turn and not job.used_up:
                return

    def _start(self, job: ChunkJob, part: Part) -> None:
        """Requests a chunk's language or, if that is known, a part's transcript at the next temperature."""
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
        """Uses the part's transcript if it is good or the last one; else requests another."""
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
        """Reads the chosen transcript; speech that it leaves of the chunk becomes another part."""
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
        """Whether a part is taken for silence. After text, the model's word that there is none is enough:
        of a breath or an echo it makes the likeliest of phrases.
        """
        limit = self._rules.no_speech_threshold
        is_rest = part.start > 0 and limit is not None and best.no_speech_prob > limit
        return is_rest or best.is_silence(self._rules)

    def _rest(self, job: ChunkJob, part: Part, heard: Transcript) -> float | None:
        """Where in the chunk speech is left to be transcribed; None if none is.

        The detector knows; where all of the recording counts as speech, the model says so, as in
        openai/whisper.
        """
        if not self._timestamps or not heard.segments or not heard.until:
            return None
        if self._options.speech is None and not heard.goes_on:
            return None
        rest = job.chunk.unheard_from(part.start + heard.until)
        return None if rest is None or rest < part.start + LEAST_STEP else rest

    def _words(self, job: ChunkJob, part: Part, alignment: Alignment) -> list[tuple[Word, ...]]:
        """The words of each decoded segment, with times in the recording."""
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
        """The part's segments with times in the recording; those of ``words``, if given, count."""
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
        """Removes the words that two overlapping chunks both have; False if one has no segments yet."""
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

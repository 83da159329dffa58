"""Streaming transcription of one live stream: samples in, engine requests out, events with final text.

A :class:`LiveSession` neither waits nor does I/O. Its caller feeds samples while the session has room,
passes the session's request to an engine, and passes the engine's outputs back. At most one request runs in
the engine; the next one covers all audio that arrived meanwhile. During speech, the utterance so far is
decoded repeatedly, and words that two consecutive partial transcripts agree on become final.
Silence is never decoded.
"""

import dataclasses
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.speech.audio_buffer import AudioBuffer
from galley.speech.divided_turn import DIVIDES, DividedTurn
from galley.speech.endpoint import Boundary, Endpointer, Onset
from galley.speech.fallback import choose
from galley.speech.features import SAMPLE_RATE, LogMel
from galley.speech.live_decoder import LiveDecoder
from galley.speech.live_events import (
    Committed,
    Completed,
    Failed,
    LiveEvent,
    Paused,
    Resumed,
    SpeechStarted,
    SpeechStopped,
)
from galley.speech.live_frames import LiveFrames
from galley.speech.live_text import LiveText
from galley.speech.options import LiveOptions
from galley.speech.segmenter import SAMPLES_PER_MS, VadStream
from galley.speech.tokens import SpeechTokens
from galley.speech.utterance import Decoding, Turn, Utterance
from galley.speech.utterance_text import UtteranceText
from galley.types import EngineRequest, Output

_HELD_MS: Final = 5_000
"""Silence of at least this length, in milliseconds, is left out of a turn that the caller commits."""
_BACKLOG: Final = 30 * SAMPLE_RATE
"""Samples, in addition to one encoder input, that may wait for the engine."""
_MIN_COMMIT: Final = 100 * SAMPLES_PER_MS
"""Minimum audio of a committed turn, in samples."""
_LANGUAGE_AFTER: Final = 1 * SAMPLE_RATE
"""Minimum length of an utterance for language detection, in samples."""


class LiveSession:
    """The state of one live stream.

    Args:
        tokens: the model's special tokens.
        features: makes the model's encoder inputs.
        detector: voice activity detection, used by this stream alone.
        options: the caller's options; see :meth:`configure`.
        request_id: unique prefix of the engine requests' ids.
        cache_salt: the tenant; requests of other tenants never reuse this stream's encoded audio.

    Raises:
        RequestError: the model does not support the language.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        features: LogMel,
        detector: VadStream,
        options: LiveOptions,
        request_id: str,
        *,
        cache_salt: str = "",
    ) -> None:
        self._tokens = tokens
        self._features = features
        self._detector = detector
        self._decoder = LiveDecoder(tokens, features, request_id, cache_salt)
        self._endpointer = Endpointer(options.turns)  # see configure
        self._audio = AudioBuffer()
        self._frames = LiveFrames()
        """The latest frames, up to the endpointer's position."""
        self._turn = Turn(0, 0)
        self._turns: deque[Turn] = deque([self._turn])
        self._utterances: deque[Utterance] = deque()
        self._open: Utterance | None = None
        """The last utterance, while it is still being spoken."""
        self._divided: DividedTurn | None = None
        """The turn whose last utterance a silence has ended; then none is open."""
        self._paused = False
        """Whether the last Paused event stands."""
        self._text = LiveText(self._decoder.encode, tokens.info.require_text().max_model_len)
        self._spoken = UtteranceText(self._text, self._is_long)
        self._options = options
        self.language = self._language_of(options)
        """The spoken language as a code; None until it is detected."""
        self.configure(options)

    def configure(self, options: LiveOptions) -> None:
        """Replace the options for the audio from this point on.

        Raises:
            RequestError: the model does not support the language.
        """
        self._tokens.check(options.language, "transcribe")
        if options.language != self._options.language:
            self.language = self._language_of(options)
        self._options = options
        # Callers that commit turns pause within them, so only a long silence is left out of an utterance.
        held = dataclasses.replace(options.turns, silence_duration_ms=_HELD_MS)
        self._endpointer.options = options.turns if options.commit_turns else held
        self._endpointer.enough_ms = None  # it was judged by the options before
        prompt = options.prompt.strip()
        self._prompt = self._decoder.encode(" " + prompt if prompt else "")

    def _language_of(self, options: LiveOptions) -> str | None:
        return options.language if options.language or self._tokens.detects_language else "en"

    @property
    def turn(self) -> int:
        """The number of the turn that is not committed yet."""
        return self._turn.number

    @property
    def has_turn(self) -> bool:
        """Whether that turn has enough audio for :meth:`commit`."""
        return self._audio.end - self._turn.start >= _MIN_COMMIT

    @property
    def has_room(self) -> bool:
        """Whether :meth:`feed` may be called with a few more seconds of audio."""
        first = self._utterances[0].start if self._utterances else self._audio.end
        return self._audio.end - first < self._features.chunk_samples + _BACKLOG

    @property
    def idle(self) -> bool:
        """Whether all ended utterances are transcribed and no request is running in the engine."""
        return self._decoder.running is None and (
            not self._utterances or self._utterances[0].end is None
        )

    @property
    def buffered_samples(self) -> int:
        """Number of samples held in memory."""
        return self._audio.buffered_samples

    def feed(self, samples: NDArray[np.float32]) -> None:
        """Feed the stream's next samples, mono float32 ``[samples]`` at 16 kHz."""
        self._audio.append(samples)
        for probability in self._detector.feed(samples).tolist():
            self._frames.add(probability)
            boundary = self._endpointer.feed(probability)
            if boundary is not None:
                self._start_or_end_speech(boundary)
            elif self._divided is not None:
                self._continue_turn(self._divided)
            elif self._open is not None:
                self._follow_pause(self._open)
        self._drop_audio()

    def end_after(self, turn: int, silence_ms: int) -> None:
        """End a turn that has paused once its silence has lasted long enough, unless speech continues.

        Args:
            turn: the number of the turn. Without a pause in it, nothing happens.
            silence_ms: length of the silence in milliseconds.
        """
        if self._paused and self._options.pauses and self._turn.number == turn:
            self._endpointer.enough_ms = silence_ms
            boundary = self._endpointer.boundary()
            if boundary is not None:
                self._start_or_end_speech(boundary)

    def commit(self) -> None:
        """End the turn at the current position, even during speech.

        Raises:
            RequestError: the turn has less than 100 ms of audio.
        """
        now = self._audio.end
        if not self.has_turn:
            raise RequestError(
                f"only {(now - self._turn.start) // SAMPLES_PER_MS} ms of audio since the last "
                f"turn; a turn needs at least {_MIN_COMMIT // SAMPLES_PER_MS} ms",
                code="input_audio_buffer_commit_empty",
            )
        if self._open is not None:
            self._open.speech_end, self._open.end = self._endpointer.silence_start or now, now
            self._open = None
        self._endpointer.reset(now)
        self._end_turn(now)

    def clear(self) -> None:
        """Discard the audio and the text of the turn that is not committed yet."""
        if self._paused:
            self._resume()
        self._drop(self._turn)
        self._turns.pop()
        self._open = None
        self._endpointer.reset(self._audio.end)
        self._begin_turn(self._audio.end)

    def request(self) -> EngineRequest | None:
        """Return the next engine request; None if one is running or there is nothing to decode yet."""
        decoding = self._next_decoding() if self._decoder.running is None else None
        if decoding is None:
            return None
        if decoding.purpose == "partial":
            decoding.utterance.decoded_to = decoding.end
        samples = self._audio.read(decoding.start, decoding.end)
        previous = self._prompt + self._text.before(decoding.utterance, self._options)
        return self._decoder.start(decoding, samples, self.language or "", previous, self._options)

    def take(self, output: Output) -> None:
        """Process an engine output for the session's request; ignore outputs of other requests."""
        decoding = self._decoder.take(output)
        if decoding is None:
            return
        if output.finish_reason in ("error", "abort"):
            message = output.error or "the engine gave up the request"
            self._fail(decoding.utterance.turn, message)
        elif decoding.purpose == "language":
            self.language = self.language or self._tokens.language(decoding.answer.tokens[0])
        elif decoding.utterance in self._utterances:
            self._use(decoding)
        self._complete()
        self._drop_audio()

    def events(self) -> list[LiveEvent]:
        """Return the events since the last call, in order."""
        self._complete()
        return self._text.events()

    # Starts and ends of turns and utterances.

    def _start_or_end_speech(self, boundary: Boundary) -> None:
        now = self._endpointer.position
        if isinstance(boundary, Onset):
            settle = self._options.settle_ms * SAMPLES_PER_MS
            self._open = Utterance(self._turn, boundary.at, settle, decoded_to=now)
            if not self._turn.failed:
                self._utterances.append(self._open)
            if self._options.commit_turns:
                self._turn.start = boundary.at
                started = SpeechStarted(self._turn.number, boundary.at // SAMPLES_PER_MS)
                self._text.add(started)
        elif self._open is not None or self._divided is not None:
            if self._open is not None:
                self._close(self._open, speech_end=boundary.at, end=now)
            self._divided, self._paused = None, False
            if self._options.commit_turns:
                at_ms, spoken_to_ms = now // SAMPLES_PER_MS, boundary.at // SAMPLES_PER_MS
                self._text.add(SpeechStopped(self._turn.number, at_ms, spoken_to_ms))
                self._end_turn(now)

    def _close(self, utterance: Utterance, *, speech_end: int, end: int) -> None:
        utterance.speech_end, utterance.end = speech_end, min(end, speech_end + utterance.settle)
        self._open = None

    def _follow_pause(self, utterance: Utterance) -> None:
        """End a pause in the open utterance when speech continues, or the utterance if it is long."""
        silence, now = self._endpointer.silence_start, self._endpointer.position
        if silence is None:
            if self._paused:
                self._resume()
        elif self._options.pauses and now - silence >= DIVIDES:
            self._close(utterance, speech_end=silence, end=now)
            self._divided = DividedTurn(utterance)

    def _continue_turn(self, divided: DividedTurn) -> None:
        """Begin the next utterance of a divided turn once enough is spoken."""
        if not divided.resumes(self._endpointer):
            # Its transcript may have come during a click, which was no silence.
            if divided.before not in self._utterances and not self._turn.failed:
                self._report_pause(divided.before, self._turn.text.rstrip())
            return
        self._divided = None
        self._open = divided.next_utterance(self._endpointer)
        if not self._turn.failed:
            self._utterances.append(self._open)
        if self._paused:
            self._resume()

    def _resume(self) -> None:
        self._paused = False
        self._text.add(Resumed(self._turn.number))

    def _end_turn(self, at: int) -> None:
        self._turn.end = at
        self._text.add(Committed(self._turn.number))
        self._begin_turn(at)

    def _begin_turn(self, at: int) -> None:
        self._divided, self._paused = None, False
        self._turn = Turn(self._turn.number + 1, at)
        self._turns.append(self._turn)

    def _drop(self, turn: Turn) -> None:
        if self._utterances and self._utterances[0].turn is turn:
            self._text.set_interim(turn, "")
        self._utterances = deque(one for one in self._utterances if one.turn is not turn)

    def _fail(self, turn: Turn, message: str) -> None:
        if turn in self._turns:
            turn.failed = True
            self._drop(turn)
            self._text.add(Failed(turn.number, message))

    def _complete(self) -> None:
        """Complete the utterances that need no further decoding, then the turns without open utterances."""
        while self._decoder.running is None and self._utterances:
            utterance = self._utterances[0]
            decoded = utterance.speech_end <= utterance.start or (
                utterance.settled and self._options.rules.beam_size == 1
            )
            if utterance.end is None or not decoded:
                break
            self._finish(utterance, utterance.partial or utterance.agreement.final)
        while (turn := self._turns[0]).end is not None:
            if any(utterance.turn is turn for utterance in self._utterances):
                break
            self._turns.popleft()
            if not turn.failed:
                seconds = (turn.end - turn.start) / SAMPLE_RATE
                self._text.add(Completed(turn.number, turn.text, seconds))

    def _drop_audio(self) -> None:
        """Drop the audio and the probabilities that no utterance needs any more."""
        needed = self._endpointer.needed_from
        if self._divided is not None:
            needed = min(needed, self._divided.start(self._endpointer))
        if self._utterances:
            needed = min(needed, self._utterances[0].start)
        self._audio.drop_before(needed)
        self._frames.drop_before(needed, self._endpointer.position)

    # Choice of the next decoding.

    def _next_decoding(self) -> Decoding | None:
        self._complete()
        if not self._utterances:
            return None
        utterance = self._utterances[0]
        start, prefix = utterance.start, utterance.agreement.final
        end = self._endpointer.position if utterance.end is None else utterance.end
        limit = self._features.chunk_samples
        if self.language is None:
            if utterance.end is None and end - start < _LANGUAGE_AFTER:
                return None
            return Decoding(utterance, start, min(end, start + limit), "language")
        if end - start > limit or self._is_long(prefix):
            utterance.cut_at = utterance.cut_at or self._cut_point(start, end)
            return Decoding(utterance, start, utterance.cut_at, "head")
        if utterance.end is not None:
            return Decoding(utterance, start, end, "final", prefix)
        silence = self._endpointer.silence_start
        if utterance.is_due(end, silence, self._options.interval_ms * SAMPLES_PER_MS):
            return Decoding(utterance, start, end, "partial", prefix)
        return None

    def _is_long(self, prefix: str) -> bool:
        """Return whether a prefix takes more than a quarter of the decoder's context."""
        return (
            len(self._decoder.encode(prefix)) > self._tokens.info.require_text().max_model_len // 4
        )

    def _cut_point(self, start: int, end: int) -> int:
        """Return the position at which to cut an utterance that is too long for the encoder."""
        end = min(end, start + self._features.chunk_samples)
        silence_below = self._options.turns.silence_below
        return self._frames.cut_point(start, end, self._endpointer.position, silence_below)

    # Results of decodings.

    def _use(self, decoding: Decoding) -> None:
        utterance, rules = decoding.utterance, self._options.rules
        attempt = self._decoder.attempt(decoding, rules.temperatures[len(utterance.attempts)])
        if not decoding.is_final:
            good = decoding.complete and attempt.is_good(rules) and not attempt.is_silence(rules)
            text = self._decoder.text(decoding.prefix, decoding.answer.tokens) if good else None
            self._take_partial(utterance, text)
            return
        utterance.attempts.append(attempt)
        best = choose(utterance.attempts, rules)
        if best is None:
            return  # the next decoding is at the next temperature
        utterance.attempts = []
        silence = best.is_silence(rules)
        text = decoding.prefix if silence else self._decoder.text(decoding.prefix, best.tokens)
        if decoding.purpose == "final":
            self._finish(utterance, text)
        else:
            self._spoken.cut(utterance, decoding.end, text, self.language or "")

    def _take_partial(self, utterance: Utterance, text: str | None) -> None:
        """Process a partial transcript of all the utterance's audio; None if the decoding was not good."""
        interim = self._spoken.take_partial(utterance, text, self.language or "")
        silence = self._endpointer.silence_start
        heard = silence is not None and utterance.decoded_to >= silence + utterance.settle
        if heard and text is not None:  # otherwise, the final transcript may be good
            self._report_pause(utterance, (utterance.turn.text + interim).rstrip())

    def _report_pause(self, utterance: Utterance, text: str) -> None:
        """Report that all of the speech before a silence is transcribed."""
        silence = self._endpointer.silence_start
        if not self._options.pauses or self._paused or silence is None:
            return
        if utterance is self._open or (self._divided and utterance is self._divided.before):
            self._paused = True
            at_ms = silence // SAMPLES_PER_MS
            self._text.add(Paused(utterance.turn.number, text, at_ms))

    def _finish(self, utterance: Utterance, text: str) -> None:
        """Complete the first utterance with the final transcript of all its audio."""
        self._spoken.finish(utterance, text, self.language or "")
        self._utterances.popleft()
        self._report_pause(utterance, utterance.turn.text.rstrip())

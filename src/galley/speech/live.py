"""Streaming transcription of one live stream: samples in, engine requests out, events with final text.

A :class:`LiveSession` does no waiting and no I/O. Its caller feeds samples while the session has room,
hands the session's request to an engine, and passes the engine's outputs back. At most one request is with
the engine; the next one covers all audio that arrived meanwhile. While somebody speaks, the utterance so
far is decoded again and again, and words that two consecutive partial transcripts agree on become final.
Silence is never decoded.
"""

import dataclasses
import itertools
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.errors import RequestError
from galley.speech.agreement import LocalAgreement, align_head, separator, split
from galley.speech.audio_buffer import AudioBuffer
from galley.speech.endpoint import Boundary, Endpointer, Onset
from galley.speech.fallback import choose
from galley.speech.features import SAMPLE_RATE, LogMel
from galley.speech.live_decoder import LiveDecoder
from galley.speech.live_events import (
    Committed,
    Completed,
    Delta,
    Failed,
    Interim,
    LiveEvent,
    SpeechStarted,
    SpeechStopped,
)
from galley.speech.options import LiveOptions
from galley.speech.segmenter import SAMPLES_PER_MS, VAD_FRAME, VadStream, longest_pause
from galley.speech.tokens import SpeechTokens
from galley.speech.utterance import SETTLED, Decoding, Turn, Utterance
from galley.types import EngineRequest, Output

_HELD_MS: Final = 5_000
"""Silence in a turn that the caller commits from which on it is not decoded with what is said."""
_BACKLOG: Final = 30 * SAMPLE_RATE
"""Samples beyond one encoder input that may wait for the engine."""
_MIN_COMMIT: Final = 100 * SAMPLES_PER_MS
"""Samples of audio that a committed turn has at least."""
_LANGUAGE_AFTER: Final = 1 * SAMPLE_RATE
"""Samples of an utterance from which the language can be detected."""


class LiveSession:
    """The state of one live stream.

    Args:
        tokens: the model's special tokens.
        features: makes the model's encoder inputs.
        detector: voice activity detection of this stream alone.
        options: what the caller wants; see :meth:`configure`.
        request_id: unique; prefix of the ids of the engine requests.
        cache_salt: the tenant; requests of another tenant never reuse this stream's encoded audio.

    Raises:
        RequestError: the model does not know the language.
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
        self._probabilities: deque[float] = deque()
        """Speech probabilities of the latest frames, up to the endpointer's position."""
        self._turn = Turn(0, 0)
        self._turns: deque[Turn] = deque([self._turn])
        self._utterances: deque[Utterance] = deque()
        self._open: Utterance | None = None
        """The last utterance, while somebody speaks."""
        self._context: list[int] = []
        """Tokens of final text that condition the next decoding."""
        self._interim = ""
        """The text of the last Interim event."""
        self._events: list[LiveEvent] = []
        self._options = options
        self.language = self._language_of(options)
        """The spoken language as a code; None until it is detected."""
        self.configure(options)

    def configure(self, options: LiveOptions) -> None:
        """Replaces the options from here on.

        Raises:
            RequestError: the model does not know the language.
        """
        self._tokens.check(options.language, "transcribe")
        if options.language != self._options.language:
            self.language = self._language_of(options)
        self._options = options
        # Whoever commits turns pauses within them: only a long silence is left out of an utterance.
        held = dataclasses.replace(options.turns, silence_duration_ms=_HELD_MS)
        self._endpointer.options = options.turns if options.commit_turns else held
        prompt = options.prompt.strip()
        self._prompt = self._decoder.encode(" " + prompt if prompt else "")

    def _language_of(self, options: LiveOptions) -> str | None:
        return options.language if options.language or self._tokens.detects_language else "en"

    @property
    def has_room(self) -> bool:
        """Whether :meth:`feed` may be called with some more seconds of audio."""
        first = self._utterances[0].start if self._utterances else self._audio.end
        return self._audio.end - first < self._features.chunk_samples + _BACKLOG

    @property
    def idle(self) -> bool:
        """Whether all utterances that have ended are transcribed, and no request is with the engine."""
        return self._decoder.running is None and (
            not self._utterances or self._utterances[0].end is None
        )

    @property
    def buffered_samples(self) -> int:
        """Samples held in memory."""
        return self._audio.buffered_samples

    def feed(self, samples: NDArray[np.float32]) -> None:
        """Takes the stream's next samples, mono float32 ``[samples]`` at 16 kHz."""
        self._audio.append(samples)
        for probability in self._detector.feed(samples).tolist():
            self._probabilities.append(probability)
            boundary = self._endpointer.feed(probability)
            if boundary is not None:
                self._start_or_end_speech(boundary)
        self._drop_audio()

    def commit(self) -> None:
        """Ends the turn here, even while somebody speaks.

        Raises:
            RequestError: the turn has less than 100 ms of audio.
        """
        now = self._audio.end
        if now - self._turn.start < _MIN_COMMIT:
            raise RequestError(
                f"there are {(now - self._turn.start) // SAMPLES_PER_MS} ms of audio since the last "
                f"turn; a turn needs at least {_MIN_COMMIT // SAMPLES_PER_MS}",
                code="input_audio_buffer_commit_empty",
            )
        if self._open is not None:
            self._close(self._open, speech_end=self._endpointer.silence_start or now, end=now)
        self._endpointer.reset(now)
        self._end_turn(now)

    def clear(self) -> None:
        """Discards the turn that is not committed yet: its audio and its text."""
        self._drop(self._turn)
        self._turns.pop()
        self._open = None
        self._endpointer.reset(self._audio.end)
        self._begin_turn(self._audio.end)

    def request(self) -> EngineRequest | None:
        """The next request for the engine; None if one is running or there is nothing to decode yet."""
        decoding = self._next_decoding() if self._decoder.running is None else None
        if decoding is None:
            return None
        if decoding.purpose == "partial":
            decoding.utterance.decoded_to = decoding.end
        samples = self._audio.read(decoding.start, decoding.end)
        previous = self._prompt + self._text_before(decoding.utterance)
        return self._decoder.start(decoding, samples, self.language or "", previous, self._options)

    def take(self, output: Output) -> None:
        """Takes the engine's output for the session's request; outputs of other requests are ignored."""
        decoding = self._decoder.take(output)
        if decoding is None:
            return
        if output.finish_reason in ("error", "abort"):
            message = output.error or "the engine gave the request up"
            self._fail(decoding.utterance.turn, message)
        elif decoding.purpose == "language":
            self.language = self.language or self._tokens.language(decoding.answer.tokens[0])
        elif decoding.utterance in self._utterances:
            self._use(decoding)
        self._complete()
        self._drop_audio()

    def events(self) -> list[LiveEvent]:
        """The events since the last call, in order."""
        self._complete()
        events, self._events = self._events, []
        return events

    # Where turns and utterances begin and end.

    def _start_or_end_speech(self, boundary: Boundary) -> None:
        now = self._endpointer.position
        if isinstance(boundary, Onset):
            self._open = Utterance(self._turn, start=boundary.at, decoded_to=now)
            if not self._turn.failed:
                self._utterances.append(self._open)
            if self._options.commit_turns:
                self._turn.start = boundary.at
                started = SpeechStarted(self._turn.number, boundary.at // SAMPLES_PER_MS)
                self._events.append(started)
        elif self._open is not None:
            self._close(self._open, speech_end=boundary.at, end=min(now, boundary.at + SETTLED))
            if self._options.commit_turns:
                self._events.append(SpeechStopped(self._turn.number, now // SAMPLES_PER_MS))
                self._end_turn(now)

    def _close(self, utterance: Utterance, *, speech_end: int, end: int) -> None:
        utterance.speech_end, utterance.end = speech_end, end
        self._open = None

    def _end_turn(self, at: int) -> None:
        self._turn.end = at
        self._events.append(Committed(self._turn.number))
        self._begin_turn(at)

    def _begin_turn(self, at: int) -> None:
        self._turn = Turn(self._turn.number + 1, at)
        self._turns.append(self._turn)

    def _drop(self, turn: Turn) -> None:
        if self._utterances and self._utterances[0].turn is turn:
            self._tell_interim(turn, "")
        self._utterances = deque(one for one in self._utterances if one.turn is not turn)

    def _fail(self, turn: Turn, message: str) -> None:
        if turn in self._turns:
            turn.failed = True
            self._drop(turn)
            self._events.append(Failed(turn.number, message))

    def _complete(self) -> None:
        """Completes the utterances that need no further decoding, then turns without open ones."""
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
                self._events.append(Completed(turn.number, turn.text, seconds))

    def _drop_audio(self) -> None:
        """Drops the audio, and its probabilities, that no utterance needs any more."""
        needed = self._endpointer.needed_from
        if self._utterances:
            needed = min(needed, self._utterances[0].start)
        self._audio.drop_before(needed)
        while (
            self._probabilities
            and self._endpointer.position - (len(self._probabilities) - 1) * VAD_FRAME <= needed
        ):
            self._probabilities.popleft()

    # What is decoded, and when.

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
        if self._is_due(utterance, end):
            return Decoding(utterance, start, end, "partial", prefix)
        return None

    def _is_due(self, utterance: Utterance, end: int) -> bool:
        """Whether the next partial transcript is due.

        While somebody speaks, one is due every ``interval_ms``; in a silence only one, when the last word
        before the silence is complete.
        """
        silence = self._endpointer.silence_start
        if silence is None:
            return end - utterance.decoded_to >= self._options.interval_ms * SAMPLES_PER_MS
        return end - silence >= SETTLED and utterance.decoded_to < silence + SETTLED

    def _is_long(self, prefix: str) -> bool:
        """Whether a prefix takes more than a quarter of the decoder's context."""
        return len(self._decoder.encode(prefix)) > self._tokens.info.max_model_len // 4

    def _cut_point(self, start: int, end: int) -> int:
        """Where to cut an utterance that is too long: in the longest pause of the second half of the audio
        that fits the encoder, or else in the frame with the lowest speech probability there.
        """
        end = min(end, start + self._features.chunk_samples)
        oldest = self._endpointer.position // VAD_FRAME - len(self._probabilities)
        first = max(oldest, -(-(start + end) // (2 * VAD_FRAME)))
        frames = list(
            itertools.islice(self._probabilities, first - oldest, end // VAD_FRAME - oldest)
        )
        if not frames:
            return end
        pause = longest_pause(frames, self._options.turns.silence_below)
        if pause is None:
            pause = frames.index(min(frames)) * VAD_FRAME + VAD_FRAME // 2
        return first * VAD_FRAME + pause

    # What a decoding brings.

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
            self._cut(utterance, decoding.end, text)

    def _take_partial(self, utterance: Utterance, text: str | None) -> None:
        """Takes a partial transcript of all the utterance's audio; None: the decoding was not good."""
        agreement = utterance.agreement
        first = not agreement.final
        utterance.partial = text
        if text is None:
            agreement.reject()
        else:
            self._tell_final(utterance, agreement.update(text, self.language or ""), first=first)
        interim = self._spaced(utterance, agreement.interim, first=not agreement.final)
        self._tell_interim(utterance.turn, interim)

    def _finish(self, utterance: Utterance, text: str) -> None:
        """Completes the first utterance with the final transcript of all its audio."""
        first = not utterance.agreement.final
        self._tell_final(utterance, utterance.agreement.finish(text), first=first)
        self._tell_interim(utterance.turn, "")
        self._add_context(utterance.turn, utterance.agreement.final)
        self._utterances.popleft()

    def _cut(self, utterance: Utterance, at: int, head: str) -> None:
        """Removes the utterance's audio before ``at``, whose final transcript is ``head``.

        Final words beyond ``at`` stay the prefix of what is left.
        """
        language, agreement = self.language or "", utterance.agreement
        words, final = split(head, language), split(agreement.final, language)
        in_head, told = align_head(words, final) if words else (len(final), 0)
        rest = "".join(final[in_head:])
        self._tell_final(utterance, "".join(words[told:]), first=not agreement.final)
        self._add_context(utterance.turn, head)
        if self._is_long(rest):
            rest = ""
        utterance.agreement = LocalAgreement(rest if head.startswith(" ") else rest.lstrip())
        utterance.start = utterance.decoded_to = at
        utterance.cut_at = utterance.partial = None
        self._tell_interim(utterance.turn, "")

    def _tell_final(self, utterance: Utterance, text: str, *, first: bool) -> None:
        text = self._spaced(utterance, text, first=first)
        if text:
            utterance.turn.text += text
            self._events.append(Delta(utterance.turn.number, text))

    def _tell_interim(self, turn: Turn, text: str) -> None:
        if text != self._interim:
            self._interim = text
            self._events.append(Interim(turn.number, text))

    def _spaced(self, utterance: Utterance, text: str, *, first: bool) -> str:
        """``text`` with the space that it needs after the turn's text.

        Args:
            first: no text of the utterance's present audio was final before this one.
        """
        if not utterance.turn.text:
            return text.lstrip()
        if not first or not text.strip():
            return text
        return separator(self.language or "") + text.lstrip()

    def _text_before(self, utterance: Utterance) -> list[int]:
        """Tokens of the text that conditions an utterance's: all, or of a turn that goes on until it is
        committed that turn's own.
        """
        if self._options.rules.condition_on_previous_text:
            return self._context
        return [] if self._options.commit_turns else utterance.turn.context

    def _add_context(self, turn: Turn, text: str) -> None:
        tokens = self._decoder.encode(text)
        for context in (self._context, turn.context):
            context += tokens
            del context[: -self._tokens.info.max_model_len]

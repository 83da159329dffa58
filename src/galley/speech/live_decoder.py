"""Engine requests of a live stream and the text of their answers."""

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from galley.service.speech_requests import transcribe_requests
from galley.speech.fallback import Attempt
from galley.speech.features import SAMPLE_RATE, LogMel, encoder_input
from galley.speech.options import LiveOptions
from galley.speech.tokens import Prompt, SpeechTokens, Wanted
from galley.speech.utterance import Decoding
from galley.speech.vad import leveled
from galley.types import LIVE_PRIORITY, EngineRequest, Output

_TOKENS_PER_SECOND: Final = 20
"""Maximum tokens per second of audio; speech is never faster, and this stops a looping decoder."""


class LiveDecoder:
    """Creates the engine requests of one live stream, one at a time, and collects the answers.

    Args:
        tokens: the model's special tokens.
        features: makes the model's encoder inputs.
        request_id: prefix of the requests' ids.
        cache_salt: the tenant.

    Attributes:
        running: the decoding that is running in the engine; None if there is none.
    """

    def __init__(
        self, tokens: SpeechTokens, features: LogMel, request_id: str, cache_salt: str
    ) -> None:
        self._tokens = tokens
        self._features = features
        self._request_id = request_id
        self._cache_salt = cache_salt
        self._numbers = itertools.count()
        self._running_id = ""
        self.running: Decoding | None = None

    def start(
        self,
        decoding: Decoding,
        samples: NDArray[np.float32],
        language: str,
        previous: list[int],
        options: LiveOptions,
    ) -> EngineRequest:
        """Return the engine request of a decoding, and make that decoding the running one.

        Args:
            decoding: the decoding to start.
            samples: its audio, mono float32 ``[samples]``.
            language: code of the spoken language; unused if the decoding is to detect it.
            previous: tokens of the text before the utterance, for the prompt.
            options: the stream's options, which set temperatures and beams.
        """
        if decoding.purpose == "language":
            wanted = self._tokens.detection()
        else:
            wanted = self._wanted(decoding, language, previous, options)
        [request] = transcribe_requests(
            wanted.prompt,
            wanted.sampling,
            self._tokens.info,
            request_id=f"{self._request_id}-{next(self._numbers)}",
            encoder_input=encoder_input(self._features(leveled(samples))),
            rules=wanted.rules,
            priority=LIVE_PRIORITY,
            cache_salt=self._cache_salt,
        )
        self.running, self._running_id = decoding, request.id
        return request

    def take(self, output: Output) -> Decoding | None:
        """Add an engine output to the running decoding; return that decoding once it has ended."""
        decoding = self.running
        if decoding is None or output.request_id != self._running_id:
            return None
        decoding.answer.add(output)
        if output.finish_reason is None:
            return None
        decoding.complete = output.finish_reason == "stop"
        self.running = None
        return decoding

    def attempt(self, decoding: Decoding, temperature: float) -> Attempt:
        """Return the transcript of an ended decoding as an attempt at ``temperature``."""
        text = self.text(decoding.prefix, decoding.answer.tokens)
        return decoding.answer.attempt(temperature, text)

    def text(self, prefix: str, tokens: Sequence[int]) -> str:
        """Return ``prefix`` followed by the text of the ``tokens`` that continue it."""
        before = self.encode(prefix)
        beyond = self._tokens.speech.timestamp_begin
        # The prompt turns timestamps off; a model can still generate some.
        words = [token for token in tokens if beyond is None or token < beyond]
        return prefix + self._tokens.text([*before, *words])[len(self._tokens.text(before)) :]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self._tokens.tokenizer.encode_plain(text) if text else []

    def _wanted(
        self, decoding: Decoding, language: str, previous: list[int], options: LiveOptions
    ) -> Wanted:
        """Return a request for the text that continues ``decoding.prefix``."""
        start = self._tokens.prompt(language, "transcribe", timestamps=False, previous=previous)
        prompt = Prompt(start.ids + self.encode(decoding.prefix), start.start)
        wanted = self._tokens.transcription(
            prompt,
            options.rules.temperatures[len(decoding.utterance.attempts)],
            timestamps=False,
            beam_size=options.rules.beam_size if decoding.is_final else 1,
        )
        most = 10 + _TOKENS_PER_SECOND * (decoding.end - decoding.start) // SAMPLE_RATE
        rules, params = wanted.rules, wanted.sampling
        if decoding.prefix:  # possibly no text follows it
            rules = msgspec.structs.replace(rules, begin_suppress_tokens=())
        params = msgspec.structs.replace(params, max_tokens=min(most, params.max_tokens or most))
        return Wanted(prompt.ids, params, rules)

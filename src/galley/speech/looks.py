"""Looks at a live window through the engine: what it is asked, and what its tokens say."""

import itertools
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from galley.audio import EncoderInput
from galley.service.requests import expand
from galley.speech.attempts import Attempt, compression_ratio
from galley.speech.features import SAMPLE_RATE, LogMel
from galley.speech.options import LiveOptions
from galley.speech.stretch import Look
from galley.speech.tokens import Prompt, SpeechTokens
from galley.types import LIVE_PRIORITY, EngineRequest, Output, SamplingParams

_MOST_TOKENS: Final = 20
"""For each second: nobody speaks faster, but a transcript that repeats itself would go on."""


class Looks:
    """One stream's, one at a time.

    Attributes:
        look: the one that the engine has.
    """

    def __init__(
        self, tokens: SpeechTokens, features: LogMel, request_id: str, cache_salt: str
    ) -> None:
        self._tokens = tokens
        self._features = features
        self._request_id = request_id
        self._cache_salt = cache_salt
        self._numbers = itertools.count()
        self._running = ""
        self.look: Look | None = None

    def start(
        self,
        look: Look,
        samples: NDArray[np.float32],
        language: str,
        previous: list[int],
        options: LiveOptions,
    ) -> EngineRequest:
        """What the engine is to be given.

        Args:
            look: has a language to find out, or is at text in ``language``.
            samples: of its window.
            previous: tokens before the window's.
            options: how it is to be judged.
        """
        ids, params = (
            self._tokens.detection()
            if look.purpose == "language"
            else self._asked(look, language, previous, options)
        )
        features = self._features(samples)
        frames, mels = features.shape
        data = np.ascontiguousarray(features, "<f4").tobytes()
        [request] = expand(
            ids,
            params,
            self._tokens.info,
            request_id=f"{self._request_id}-{next(self._numbers)}",
            encoder_input=EncoderInput(frames=frames, mels=mels, data=data),
            priority=LIVE_PRIORITY,
            cache_salt=self._cache_salt,
        )
        self.look, self._running = look, request.id
        return request

    def take(self, output: Output) -> Look | None:
        """What the engine says of it; the look, once that was all."""
        look = self.look
        if look is None or output.request_id != self._running:
            return None
        look.tokens += output.tokens
        look.scores += output.scores or ()
        if output.no_speech_prob is not None:
            look.no_speech_prob = output.no_speech_prob
        if output.finish_reason is None:
            return None
        look.complete = output.finish_reason == "stop"
        self.look = None
        return look

    def attempt(self, look: Look, temperature: float) -> Attempt:
        """Its transcript with what the rules judge it by."""
        return Attempt(
            tokens=tuple(look.tokens),
            scores=tuple(look.scores),
            temperature=temperature,
            compression_ratio=compression_ratio(self.text(look.given, look.tokens)),
            no_speech_prob=look.no_speech_prob,
        )

    def text(self, given: str, tokens: list[int] | tuple[int, ...]) -> str:
        """What is said, with what was given."""
        before = self.spelled(given)
        beyond = self._tokens.speech.timestamp_begin
        # It was told to give no times; now and then it does.
        words = [token for token in tokens if beyond is None or token < beyond]
        return given + self._tokens.text([*before, *words])[len(self._tokens.text(before)) :]

    def spelled(self, text: str) -> list[int]:
        """Tokens of it."""
        return self._tokens.tokenizer.encode_plain(text) if text else []

    def _asked(
        self, look: Look, language: str, previous: list[int], options: LiveOptions
    ) -> tuple[list[int], SamplingParams]:
        """Prompt and parameters of a transcript that goes on from the given text."""
        start = self._tokens.prompt(language, "transcribe", timestamps=False, previous=previous)
        prompt = Prompt(start.ids + self.spelled(look.given), start.start)
        params = self._tokens.sampling(
            prompt,
            options.rules.temperatures[len(look.stretch.attempts)],
            timestamps=False,
            beam_size=options.rules.beam_size if look.is_last else 1,
        )
        most = 10 + _MOST_TOKENS * (look.end - look.start) // SAMPLE_RATE
        return prompt.ids, msgspec.structs.replace(
            params,
            max_tokens=min(most, params.max_tokens or most),
            # After some text there may well be none.
            begin_suppress_tokens=() if look.given else params.begin_suppress_tokens,
        )

"""Whisper's special tokens: prompts, sampling parameters and segments from timestamp tokens."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from galley.errors import ModelError, RequestError
from galley.speech.features import HOP, SAMPLE_RATE
from galley.speech.languages import NAMES
from galley.speech.options import Task
from galley.text.tokenizer import Tokenizer
from galley.types import SamplingParams
from galley.types.audio import SpeechInfo, SpeechRules, TimestampRules
from galley.types.model_info import ModelInfo

_FRAME_SECONDS: Final = HOP / SAMPLE_RATE
LEAST_STEP: Final = 0.2
"""Minimum step in seconds when decoding continues from a timestamp."""
_SEED: Final = 0
"""Fixed seed, so that a recording gives the same text every time, even at temperatures above 0.

An engine without seeds draws anew.
"""


class Prompt(NamedTuple):
    """The token ids of a prompt, and the index of the token at which the requested part starts.

    That token is ``<|startoftranscript|>`` or, for alignment, the first token of the given text.
    """

    ids: list[int]
    start: int


class Wanted(NamedTuple):
    """The contents of a request for tokens, except its audio."""

    prompt: list[int]
    sampling: SamplingParams
    rules: SpeechRules


class DecodedSegment(NamedTuple):
    """A segment as the model wrote it.

    Attributes:
        start, end: times in the encoder input, in seconds.
        tokens: the text's tokens, without timestamps.
        scores: log-probability of each token.
    """

    start: float
    end: float
    tokens: tuple[int, ...]
    scores: tuple[float, ...]


class DecodedText(NamedTuple):
    """The parsed tokens of a transcript, as the model wrote it.

    Attributes:
        segments: the segments in order, each with at least one letter or digit.
        until: the last timestamp, in seconds of the encoder input; None if text follows it or there is no
            timestamp.
        goes_on: whether the speech continues: the last two tokens are timestamps, where one segment ends
            and another begins, or text after the last timestamp was dropped. A single timestamp at the end
            means that no speech follows.
    """

    segments: list[DecodedSegment]
    until: float | None
    goes_on: bool


class SpeechTokens:
    """One model's special tokens, together with its tokenizer.

    Raises:
        ModelError: the model is a text model.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer) -> None:
        if info.speech is None:
            raise ModelError(f"{info.name} is a text model; transcribing needs a speech model")
        self.speech = _completed(info.speech, tokenizer)
        self.tokenizer = tokenizer
        self.info = info
        self._languages = {
            name.strip("<|>"): token for name, token in self.speech.languages.items()
        }
        self._eos = frozenset(info.require_text().eos_token_ids)
        self._text_end = min(self._eos, default=self.speech.start_token - 1)

    @property
    def row_seconds(self) -> float:
        """Seconds per row of the encoder's output, which is also the step between timestamp tokens."""
        return self.speech.stride * _FRAME_SECONDS

    @property
    def detects_language(self) -> bool:
        """Whether the model supports several languages and so can detect the spoken one."""
        return len(self._languages) > 1

    def check(self, language: str | None, task: Task) -> None:
        """Raise RequestError if the model does not support the language or the task."""
        if language is not None and language not in (self._languages or ("en",)):
            raise RequestError(
                f"{self.info.name} does not support {NAMES[language]}; it supports "
                f"{', '.join(sorted(self._languages)) or 'en'}",
                param="language",
            )
        if task != "transcribe" and task not in self.speech.tasks:
            raise RequestError(f"{self.info.name} does not support the task {task!r}", param="task")

    def check_words(self) -> None:
        """Raise RequestError if the model does not support word timestamps."""
        if self.speech.alignment_heads:
            return
        reason = (
            f"engine {self.info.executor} does not report the attention that they are computed from; leave "
            "them out, or serve the model with engine native"
            if self.info.program is None
            else "its generation_config.json has no alignment_heads, and its decoder has too many heads to "
            "use all of them"
        )
        raise RequestError(
            f"{self.info.name} does not support word timestamps: {reason}",
            param="timestamp_granularities",
        )

    def detection(self) -> Wanted:
        """Return a request whose only output token is the spoken language's token."""
        params = SamplingParams(temperature=0.0, max_tokens=1)
        rules = SpeechRules(allowed_tokens=tuple(self._languages.values()))
        return Wanted([self.speech.start_token], params, rules)

    def language(self, token: int) -> str:
        """Return the language code of a language token."""
        return next(code for code, known in self._languages.items() if known == token)

    def prompt(
        self,
        language: str,
        task: Task,
        *,
        timestamps: bool,
        previous: Sequence[int],
        hotwords: Sequence[int] = (),
    ) -> Prompt:
        """Return the prompt of a transcript.

        ``hotwords`` and ``previous`` tokens together take at most half of the context. ``hotwords`` are
        truncated at the end to half of that; ``previous`` tokens are truncated at the front.
        """
        ids: list[int] = []
        if (previous or hotwords) and self.speech.previous_token is not None:
            room = self.info.require_text().max_model_len // 2 - 1
            first = list(hotwords[: room // 2])
            ids = [self.speech.previous_token, *first, *previous[len(first) - room :]]
        start = len(ids)
        ids.append(self.speech.start_token)
        if language in self._languages:
            ids.append(self._languages[language])
        if task in self.speech.tasks:
            ids.append(self.speech.tasks[task])
        if not timestamps and self.speech.no_timestamps_token is not None:
            ids.append(self.speech.no_timestamps_token)
        return Prompt(ids, start)

    def transcription(
        self,
        prompt: Prompt,
        temperature: float,
        *,
        timestamps: bool,
        beam_size: int,
        best_of: int = 1,
    ) -> Wanted:
        """Return a request for a transcript, with the parameters of the original Whisper release.

        ``beam_size`` is used only at temperature 0, ``best_of`` only above 0.
        """
        speech = self.speech
        begin, silence = speech.timestamp_begin, speech.no_speech_token
        times = None
        if timestamps and begin is not None:
            times = TimestampRules(
                begin=begin,
                text_end=self._text_end,
                max_initial=speech.max_initial_timestamp,
            )
        beams = 1 if temperature else beam_size
        room = self.info.max_beam_tokens(beams) - len(prompt.ids)
        params = SamplingParams(
            temperature=temperature,
            num_beams=beams,
            n=best_of if temperature else 1,
            top_p=1.0,
            top_k=-1,
            min_p=0.0,
            repetition_penalty=1.0,
            seed=None if "seed" in self.info.require_text().unsupported else _SEED,
            max_tokens=max(1, min(self.info.require_text().max_model_len // 2, room)),
            scores=True,
        )
        rules = SpeechRules(
            suppress_tokens=speech.suppress_tokens,
            begin_suppress_tokens=speech.begin_suppress_tokens,
            timestamps=times,
            no_speech=None if silence is None else (prompt.start, silence),
        )
        return Wanted(prompt.ids, params, rules)

    def alignment(self, language: str, task: Task, text: Sequence[int]) -> Prompt:
        """Return the prompt of a request that aligns a text's tokens with the audio.

        The prompt's ``start`` is the index of the text's first token; one end token follows the text.
        """
        ids = self.prompt(language, task, timestamps=False, previous=()).ids
        return Prompt([*ids, *text, self._text_end], len(ids))

    def transcript(
        self,
        tokens: Sequence[int],
        scores: Sequence[float],
        seconds: float,
        *,
        complete: bool = True,
        timed: bool = True,
    ) -> DecodedText:
        """Parse the tokens of a transcript.

        Text between two timestamps is a segment. A segment without a timestamp before it begins where the
        previous segment ended; a segment without one after it ends with the audio. Text that begins where
        the audio has ended is left out: the model invented it for the padding.

        Args:
            tokens: the transcript's tokens.
            scores: log-probability of each token.
            seconds: length of the audio.
            timed: whether timestamps were requested; those of a text without them mean nothing.
            complete: False if the text was cut off. The text after the last timestamp is then dropped if
                audio lies before that timestamp.
        """
        begin = self.speech.timestamp_begin
        segments: list[DecodedSegment] = []
        start, text = 0.0, list[tuple[int, float]]()
        until: float | None = None
        row: list[bool] = []
        for token, score in zip(tokens, scores, strict=True):
            if token in self._eos:
                continue
            row.append(begin is not None and token >= begin)
            if begin is None or token < begin:
                text.append((token, score))
                continue
            until = min(seconds, (token - begin) * self.row_seconds)
            if text and (start < seconds or not timed):
                segments.append(_segment(min(start, until), until, text))
            text = []
            start = until
        dropped = bool(text) and not complete and (until or 0.0) >= LEAST_STEP
        if text and not dropped and (start < seconds or not timed):
            segments.append(_segment(start, seconds, text))
            until = None
        kept = [segment for segment in segments if self._has_text(segment.tokens)]
        return DecodedText(kept, until, dropped or row[-2:] == [True, True])

    def _has_text(self, tokens: Sequence[int]) -> bool:
        """Return whether the text has a letter or a digit: a model may transcribe noise as a full stop."""
        return any(character.isalnum() for character in self.text(tokens))

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self.tokenizer.decode(tokens)


def _segment(start: float, end: float, text: Sequence[tuple[int, float]]) -> DecodedSegment:
    return DecodedSegment(start, end, *zip(*text, strict=True))


def _completed(speech: SpeechInfo, tokenizer: Tokenizer) -> SpeechInfo:
    """Return ``speech`` with the special tokens that early checkpoints omit, taken from the tokenizer."""
    named = {token.text: token.id for token in tokenizer.added_tokens}
    found = {
        field: named[name]
        for field, name in (
            ("no_timestamps_token", "<|notimestamps|>"),
            ("previous_token", "<|startofprev|>"),
        )
        if getattr(speech, field) is None and name in named
    }
    return msgspec.structs.replace(speech, **found)

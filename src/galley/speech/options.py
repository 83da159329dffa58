"""Options of speech detection, transcription and live transcription. Validated at construction."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from galley.errors import RequestError
from galley.speech.languages import language_code
from galley.types import MAX_BEAMS

Task = Literal["transcribe", "translate"]


def _between(name: str, value: float, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{name} must be a number, got {value!r}", param=name)
    # A whole number may be too long for math.isfinite.
    if not low <= value <= high or value in (math.inf, -math.inf):
        raise RequestError(
            f"{name} must be between {low:g} and {high:g}, got {value!r:.100}", param=name
        )


def _silence_below(threshold: float) -> float:
    """Silero's default ``neg_threshold``: below the onset threshold, so that speech does not flicker."""
    return max(threshold - 0.15, 0.01)


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """How speech segments are found in the detector's probabilities, one for each 32 ms (Silero VAD's
    names).

    Attributes:
        threshold: a segment begins at this probability.
        neg_threshold: a segment ends below this probability; default: ``threshold`` - 0.15.
        min_speech_ms: shorter segments are taken for noise.
        min_silence_ms: a shorter pause does not end a segment.
        pad_ms: audio kept before and after a segment, at most half of ``min_silence_ms``.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_ms: int = 100
    min_silence_ms: int = 800
    pad_ms: int = 400

    def __post_init__(self) -> None:
        _between("threshold", self.threshold, 0.0, 1.0)
        if self.neg_threshold is not None:
            _between("neg_threshold", self.neg_threshold, 0.0, self.threshold)
        for name in ("min_speech_ms", "min_silence_ms", "pad_ms"):
            _between(name, getattr(self, name), 0, 60_000)
        if 2 * self.pad_ms > self.min_silence_ms:
            raise RequestError(
                f"pad_ms ({self.pad_ms}) must be at most half of min_silence_ms "
                f"({self.min_silence_ms}): the padding of two neighbours must not meet",
                param="pad_ms",
            )

    @property
    def silence_below(self) -> float:
        """``neg_threshold``, or its default."""
        if self.neg_threshold is not None:
            return self.neg_threshold
        return _silence_below(self.threshold)


@dataclass(frozen=True, kw_only=True)
class QualityRules:
    """Beam search and temperature fallback (arXiv:2212.04356, 4.5): when a chunk's transcript is good, and
    what is tried if it is not.

    Attributes:
        beam_size: hypotheses of the beam search at temperature 0, 1 to 10; 1 is greedy.
        temperatures: tried in turn until a transcript is good; above 0 text is sampled.
        best_of: texts that are sampled at a temperature above 0, 1 to 10, of which the likeliest counts.
        compression_ratio_threshold: a transcript that zlib compresses more than this, and that was cut off
            or says a phrase three times or more in a row, is not good; None: no limit.
        log_prob_threshold: a transcript with a lower mean log-probability is not good; None: no limit.
        no_speech_threshold: a chunk that holds no speech with more than this probability has no text,
            unless its transcript passes ``log_prob_threshold``; None: no chunk is taken for silence.
        condition_on_previous_text: give the decoder each chunk's preceding text. The chunks of a recording
            are then transcribed one after another, and a mistake may carry over to the next chunk.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    beam_size: int = 5
    best_of: int = 5
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    log_prob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = False

    def __post_init__(self) -> None:
        for name in ("beam_size", "best_of"):
            if not isinstance(count := getattr(self, name), int):
                raise RequestError(f"{name} must be whole, got {count!r}", param=name)
            _between(name, count, 1, MAX_BEAMS)
        if not self.temperatures:
            raise RequestError("temperatures must name at least one", param="temperatures")
        for temperature in self.temperatures:
            _between("temperatures", temperature, 0.0, 100.0)
        for name, low, high in (
            ("compression_ratio_threshold", 0.0, math.inf),
            ("log_prob_threshold", -math.inf, 0.0),
            ("no_speech_threshold", 0.0, 1.0),
        ):
            if (value := getattr(self, name)) is not None:
                _between(name, value, low, high)


@dataclass(frozen=True, kw_only=True)
class TranscribeOptions:
    """What a caller wants of a transcription.

    Attributes:
        language: spoken language as a code or an English name; None: detected in the first chunk.
        task: "transcribe", or "translate" into English.
        prompt: text that the decoder takes for the text before the recording; sets spelling and style, of
            names for example.
        hotwords: names and terms that the decoder has in front of it for every chunk, ahead of other text.
        timestamps: have the model write segment timestamps; False: each chunk is one segment.
        word_timestamps: also find the times of each word, with one more request for each chunk.
        speech: how speech is found; None: all of the recording is speech.
        rules: when a transcript is good, and what is tried if it is not.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    language: str | None = None
    task: Task = "transcribe"
    prompt: str = ""
    hotwords: str = ""
    timestamps: bool = True
    word_timestamps: bool = False
    speech: SpeechOptions | None = SpeechOptions()
    rules: QualityRules = QualityRules()

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise RequestError(
                f"task must be one of {', '.join(get_args(Task))}, got {self.task!r}", param="task"
            )
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))


@dataclass(frozen=True, kw_only=True)
class TurnOptions:
    """Turn detection of a live stream; names and defaults are those of OpenAI's ``server_vad``.

    Attributes:
        threshold: speech begins at this probability, and ends 0.15 below.
        prefix_padding_ms: audio kept before speech.
        silence_duration_ms: silence that ends a turn.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500

    def __post_init__(self) -> None:
        _between("threshold", self.threshold, 0.0, 1.0)
        _between("prefix_padding_ms", self.prefix_padding_ms, 0, 5_000)
        _between("silence_duration_ms", self.silence_duration_ms, 100, 10_000)

    @property
    def silence_below(self) -> float:
        """A frame with a lower probability is silence."""
        return _silence_below(self.threshold)


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """What a caller wants of a live transcription.

    Attributes:
        language: spoken language as a code or an English name; None: detected in the first turn.
        prompt: text that the decoder takes for the text before the stream; sets spelling and style, of
            names for example.
        turns: how turns are detected.
        commit_turns: silence ends a turn; False: only the caller's commit does.
        interval_ms: new speech between two partial transcripts.
        rules: when a transcript is good. Beams and further temperatures are used for final text; partial
            transcripts are greedy.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    language: str | None = None
    prompt: str = ""
    turns: TurnOptions = TurnOptions()
    commit_turns: bool = True
    interval_ms: int = 500
    rules: QualityRules = QualityRules(beam_size=1, best_of=1)

    def __post_init__(self) -> None:
        _between("interval_ms", self.interval_ms, 100, 10_000)
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))

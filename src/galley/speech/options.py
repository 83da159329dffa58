"""What a caller may say about how speech is found, windowed and judged. Validated at construction."""

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
    if not math.isfinite(value) or not low <= value <= high:
        raise RequestError(
            f"{name} must be between {low:g} and {high:g}, got {value!r}", param=name
        )


def _silence_below(threshold: float) -> float:
    """Silero's: speech ends a little below where it begins, so that it does not flicker."""
    return max(threshold - 0.15, 0.01)


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """Where speech begins and ends, by the detector's probability of each 32 ms.

    Attributes:
        threshold: speech begins at this probability.
        neg_threshold: it ends below this one; default: ``threshold`` - 0.15.
        min_speech_ms: shorter speech is taken for noise.
        min_silence_ms: a shorter pause does not end speech.
        pad_ms: kept before and after speech, at most half of ``min_silence_ms``.

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
    """When a window's transcript is good, and what is tried if it is not (arXiv:2212.04356, 4.5).

    Attributes:
        beam_size: hypotheses that are searched at temperature 0, 1 to 10; 1 is greedy.
        temperatures: tried in turn until a transcript is good; above 0 it is sampled.
        compression_ratio_threshold: text that zlib shrinks more than this repeats itself; None: any goes.
        log_prob_threshold: a mean log-probability below this is a guess; None: any goes.
        no_speech_threshold: a window that is silence with more than this probability has no text, unless
            its text passes ``log_prob_threshold``; None: no window is taken for silence.
        condition_on_previous_text: give each window the text before it. Windows of one recording then
            wait for each other, and a mistake may go on from one to the next.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    beam_size: int = 5
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = 2.4
    log_prob_threshold: float | None = -1.0
    no_speech_threshold: float | None = 0.6
    condition_on_previous_text: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.beam_size, int):
            raise RequestError(
                f"beam_size must be whole, got {self.beam_size!r}", param="beam_size"
            )
        _between("beam_size", self.beam_size, 1, MAX_BEAMS)
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
    """What is wanted of a transcription.

    Attributes:
        language: spoken, as a code or an English name; None: detected in the first window.
        task: "transcribe", or "translate" into English.
        prompt: text before the recording's, in its spelling and style; names, for example.
        timestamps: let the model say when each segment begins and ends; else one segment is a window.
        word_timestamps: find out when each word is said, too, which takes another look at each window.
        speech: how speech is found; None: all of the recording is speech.
        rules: when a transcript is good.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    language: str | None = None
    task: Task = "transcribe"
    prompt: str = ""
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
    """Where a live stream's turns begin and end; names and defaults are OpenAI's ``server_vad``.

    Attributes:
        threshold: speech begins at this probability; it ends 0.15 below.
        prefix_padding_ms: kept before speech.
        silence_duration_ms: so much silence ends a turn.

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
        """What a frame of silence has."""
        return _silence_below(self.threshold)


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """What is wanted of a live transcription.

    Attributes:
        language: spoken, as a code or an English name; None: detected in the first turn.
        prompt: text before the stream's, in its spelling and style; names, for example.
        turns: where they begin and end.
        commit_turns: a turn ends with silence; False: only when the caller says so.
        interval_ms: so much new speech is worth another look at the window.
        rules: when a transcript is good. Beams and further temperatures count where a window ends; on the
            way there it is transcribed greedily.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    language: str | None = None
    prompt: str = ""
    turns: TurnOptions = TurnOptions()
    commit_turns: bool = True
    interval_ms: int = 500
    rules: QualityRules = QualityRules(beam_size=1)

    def __post_init__(self) -> None:
        _between("interval_ms", self.interval_ms, 100, 10_000)
        if self.language is not None:
            object.__setattr__(self, "language", language_code(self.language))

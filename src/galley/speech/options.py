"""Options of speech detection, transcription and live transcription, validated at construction."""

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
    # An integer can be too long for math.isfinite.
    if not low <= value <= high or value in (math.inf, -math.inf):
        raise RequestError(
            f"{name} must be between {low:g} and {high:g}, got {value!r:.100}", param=name
        )


def _silence_below(threshold: float) -> float:
    """Return Silero's default ``neg_threshold``: below the onset threshold, to avoid rapid switching."""
    return max(threshold - 0.15, 0.01)


def _given_language(language: str | None) -> str | None:
    """Return the code of a language; None if it is to be detected."""
    if language is None or language.strip().lower() == "auto":
        return None
    return language_code(language)


@dataclass(frozen=True, kw_only=True)
class SpeechOptions:
    """Options for finding speech segments in the detector's probabilities, one for each 32 ms.

    The names are those of Silero VAD.

    Attributes:
        threshold: a segment begins at this probability.
        neg_threshold: a segment ends below this probability; default: ``threshold`` - 0.15.
        min_speech_ms: shorter segments are treated as noise.
        min_silence_ms: a shorter pause does not end a segment.
        pad_ms: audio kept before and after a segment, at most half of ``min_silence_ms``.
        lead_ms: audio kept before a segment, if the previous one does not contain it; default: ``pad_ms``.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    threshold: float = 0.5
    neg_threshold: float | None = None
    min_speech_ms: int = 100
    min_silence_ms: int = 800
    pad_ms: int = 400
    lead_ms: int | None = None

    def __post_init__(self) -> None:
        _between("threshold", self.threshold, 0.0, 1.0)
        if self.neg_threshold is not None:
            _between("neg_threshold", self.neg_threshold, 0.0, self.threshold)
        for name in ("min_speech_ms", "min_silence_ms", "pad_ms"):
            _between(name, getattr(self, name), 0, 60_000)
        if 2 * self.pad_ms > self.min_silence_ms:
            raise RequestError(
                f"pad_ms ({self.pad_ms}) must be at most half of min_silence_ms "
                f"({self.min_silence_ms}), so that the padding of two neighbors does not overlap",
                param="pad_ms",
            )
        if self.lead_ms is not None:
            _between("lead_ms", self.lead_ms, 0, 5_000)

    @property
    def silence_below(self) -> float:
        """``neg_threshold``, or its default."""
        if self.neg_threshold is not None:
            return self.neg_threshold
        return _silence_below(self.threshold)


@dataclass(frozen=True, kw_only=True)
class QualityRules:
    """Beam search and temperature fallback (arXiv:2212.04356, 4.5).

    The rules decide when a chunk's transcript is good, and what is tried if it is not.

    Attributes:
        beam_size: number of beams at temperature 0, 1 to 10; 1 is greedy.
        temperatures: temperatures tried in turn until a transcript is good; text is sampled above 0.
        best_of: number of texts sampled at a temperature above 0, 1 to 10; the likeliest is used.
        compression_ratio_threshold: a transcript that zlib compresses more than this is not good if it was
            cut off or repeats a phrase three or more times in a row; None: no limit.
        log_prob_threshold: a transcript with a lower mean log-probability is not good; None: no limit.
        no_speech_threshold: a chunk with a higher no-speech probability has no text, unless its transcript
            passes ``log_prob_threshold``; None: no chunk is treated as silence.
        condition_on_previous_text: pass each chunk's preceding text to the decoder. The chunks of a
            recording are then transcribed one after another, and an error may carry over to the next chunk.

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
            raise RequestError("temperatures must not be empty", param="temperatures")
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
    """Options of one transcription.

    Attributes:
        language: spoken language as a code or an English name; None or "auto": detected in the first chunk.
        multilingual: detect the language of each chunk, for recordings in several languages.
        task: "transcribe", or "translate" into English.
        prompt: text that the decoder treats as preceding the recording; sets spelling and style, for
            example of names.
        hotwords: names and terms that are put in the decoder's prompt for every chunk, before other text.
        timestamps: have the model write segment timestamps; False: each chunk is one segment.
        word_timestamps: also find the times of each word, with one more request for each chunk.
        hallucination_silence_threshold: leave out text that is likely invented and has more seconds of
            silence than this around it, and decode the audio from there again (openai/whisper). Takes one
            more request for each chunk, as word times do; None: keep all text.
        speech: options for finding speech; None: all of the recording is treated as speech.
        rules: rules for when a transcript is good, and what is tried if it is not.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    language: str | None = None
    multilingual: bool = False
    task: Task = "transcribe"
    prompt: str = ""
    hotwords: str = ""
    timestamps: bool = True
    word_timestamps: bool = False
    hallucination_silence_threshold: float | None = None
    speech: SpeechOptions | None = SpeechOptions()
    rules: QualityRules = QualityRules()

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise RequestError(
                f"task must be one of {', '.join(get_args(Task))}, got {self.task!r}", param="task"
            )
        object.__setattr__(self, "language", _given_language(self.language))
        if self.multilingual and self.language is not None:
            raise RequestError(
                f"multilingual detects the language of each chunk, but language is {self.language!r}; "
                "give one of them",
                param="multilingual",
            )
        if (limit := self.hallucination_silence_threshold) is not None:
            _between("hallucination_silence_threshold", limit, 0.0, 3_600.0)

    @property
    def aligns_words(self) -> bool:
        """Whether the times of words are needed."""
        return self.word_timestamps or self.hallucination_silence_threshold is not None


@dataclass(frozen=True, kw_only=True)
class TurnOptions:
    """Options for turn detection in a live stream, with the names and defaults of OpenAI's ``server_vad``.

    Attributes:
        threshold: speech begins at this probability, and ends 0.15 below it.
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
        """The probability below which a frame is silence."""
        return _silence_below(self.threshold)


@dataclass(frozen=True, kw_only=True)
class LiveOptions:
    """Options of one live transcription.

    Attributes:
        language: spoken language as a code or an English name; None or "auto": detected in the first turn.
        prompt: text that the decoder treats as preceding the stream; sets spelling and style, for example
            of names.
        turns: options for turn detection.
        commit_turns: silence ends a turn; False: only the caller's commit does.
        interval_ms: new speech between two partial transcripts, in milliseconds.
        settle_ms: silence after which the last word counts as complete, and is transcribed.
        pauses: report silences within a turn, with the transcript so far.
        rules: rules for when a transcript is good. Final text uses beam search and further temperatures;
            partial transcripts are greedy.

    Raises:
        RequestError: a value is out of range; ``param`` names it.
    """

    language: str | None = None
    prompt: str = ""
    turns: TurnOptions = TurnOptions()
    commit_turns: bool = True
    interval_ms: int = 500
    settle_ms: int = 192
    pauses: bool = False
    rules: QualityRules = QualityRules(beam_size=1, best_of=1)

    def __post_init__(self) -> None:
        _between("interval_ms", self.interval_ms, 100, 10_000)
        _between("settle_ms", self.settle_ms, 32, 1_000)
        object.__setattr__(self, "language", _given_language(self.language))

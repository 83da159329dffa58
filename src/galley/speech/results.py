"""What a transcription is made of. Times are seconds of the recording."""

import msgspec


class Word(msgspec.Struct, frozen=True):
    """One word as it stands in the text, with its leading space and its punctuation.

    ``probability`` is the mean of its tokens'; None where times are guessed from those of the segment.
    """

    text: str
    start: float
    end: float
    probability: float | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A sentence or what else the model takes for one.

    Attributes:
        id: counts from 0.
        tokens: of the text, without timestamps.
        temperature: that it was sampled at; above 0 only if lower ones gave nothing good.
        avg_logprob: mean log-probability of its window's tokens, in nats.
        compression_ratio: of its window's text; high if that repeats itself.
        no_speech_prob: how likely its window holds no speech.
        words: if word times were asked for.
    """

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] | None = None


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a recording as a whole once it is transcribed.

    Attributes:
        task: "transcribe" or "translate".
        language: spoken in it, as a code ("en").
        duration: seconds of it.
        warnings: damage that was passed over.
    """

    task: str
    language: str
    duration: float
    warnings: tuple[str, ...] = ()

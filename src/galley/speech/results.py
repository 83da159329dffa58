"""Results of a transcription. Times are seconds of the recording."""

import msgspec


class Word(msgspec.Struct, frozen=True):
    """One word as it stands in the text, with its leading space and its punctuation.

    Attributes:
        probability: mean of the word's token probabilities; None if the word's times were not aligned but
            interpolated in its segment.
    """

    text: str
    start: float
    end: float
    probability: float | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of text between two of the model's timestamps, about a sentence.

    Attributes:
        id: counts from 0.
        tokens: of the text, without timestamps.
        temperature: of the chunk's transcript; above 0 only if lower temperatures gave no good transcript.
        avg_logprob: mean log-probability of the tokens of the segment's chunk, in nats.
        compression_ratio: of the text of the segment's chunk; high if that text repeats itself.
        no_speech_prob: probability that the segment's chunk holds no speech.
        words: None unless word times were asked for.
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
    """What is known of a transcribed recording as a whole.

    Attributes:
        task: "transcribe" or "translate".
        language: spoken language as a code ("en").
        duration: of the recording, in seconds.
        warnings: damaged parts of the file that were skipped, and stretches that the model was unsure of.
    """

    task: str
    language: str
    duration: float
    warnings: tuple[str, ...] = ()

"""Results of a transcription. All times are in seconds of the recording."""

import msgspec


class Word(msgspec.Struct, frozen=True):
    """One word as written in the text, with its leading space and its punctuation.

    Attributes:
        probability: mean of the word's token probabilities; None if the word's times were interpolated in
            its segment instead of aligned.
    """

    text: str
    start: float
    end: float
    probability: float | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of text between two of the model's timestamps, about a sentence.

    Attributes:
        id: number of the segment, counted from 0.
        tokens: the text's tokens, without timestamps.
        temperature: temperature of the chunk's transcript; above 0 only if lower temperatures gave no good
            transcript.
        avg_logprob: mean log-probability of the tokens of the segment's chunk, in nats.
        compression_ratio: compression ratio of the chunk's text; high if that text repeats itself.
        no_speech_prob: probability that the segment's chunk contains no speech.
        words: the segment's words with times; None unless word times were requested.
        language: code of the chunk's language; None unless each chunk's language is detected.
        channel: the channel that the segment is from, counted from 1; None unless channels are transcribed
            one by one.
        speaker: name of the segment's speaker; None unless speakers were requested.
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
    language: str | None = None
    channel: int | None = None
    speaker: str | None = None


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """Information about a transcribed recording as a whole.

    Attributes:
        task: "transcribe" or "translate".
        language: code of the spoken language ("en").
        duration: duration of the recording, in seconds.
        warnings: warnings about damaged parts of the file that were skipped, and about passages that the
            model was unsure of.
    """

    task: str
    language: str
    duration: float
    warnings: tuple[str, ...] = ()

"""The transcript of a part: the segments and words that it has, and the speech that it leaves over."""

from collections.abc import Sequence

from galley.speech.alignment import token_times
from galley.speech.fallback import Attempt
from galley.speech.features import HOP, SAMPLE_RATE
from galley.speech.hallucination import find_invented
from galley.speech.options import TranscribeOptions
from galley.speech.part import ChunkJob, Part
from galley.speech.results import Segment, Word
from galley.speech.tokens import LEAST_STEP, DecodedText, SpeechTokens
from galley.speech.word_times import time_words
from galley.types.audio import Alignment


class PartReader:
    """Reads the chosen transcripts of the parts of one recording.

    Args:
        tokens: the model's special tokens.
        options: the caller's options.

    Attributes:
        timestamps: whether the model writes timestamps.
    """

    def __init__(self, tokens: SpeechTokens, options: TranscribeOptions) -> None:
        self._tokens = tokens
        self._options = options
        self.timestamps = options.timestamps and tokens.speech.timestamp_begin is not None

    def read(self, job: ChunkJob, part: Part, best: Attempt) -> None:
        """Parse the chosen transcript, and find the speech in the chunk that it does not cover."""
        if self._is_silence(part, best):
            return
        transcript = self._tokens.transcript(
            best.tokens,
            best.scores,
            job.chunk.seconds - part.start,
            complete=best.complete or not self.timestamps,
            timed=self.timestamps,
        )
        part.decoded = transcript.segments
        part.rest = self._rest(job, part, transcript)

    def _rest(self, job: ChunkJob, part: Part, transcript: DecodedText) -> float | None:
        """Return the time in the chunk from which speech is left to transcribe; None if none is left.

        The speech detector decides this. If the whole recording counts as speech, the model's transcript
        decides it, as in openai/whisper.
        """
        if not self.timestamps or not transcript.segments or not transcript.until:
            return None
        if self._options.speech is None and not transcript.goes_on:
            return None
        rest = job.chunk.untranscribed_from(part.start + transcript.until)
        return None if rest is None or rest < part.start + LEAST_STEP else rest

    def _is_silence(self, part: Part, best: Attempt) -> bool:
        """Return whether a part is treated as silence.

        After earlier text, a high no-speech probability is enough: the model may transcribe a breath or an
        echo as a very likely phrase.
        """
        limit = self._options.rules.no_speech_threshold
        is_rest = part.start > 0 and limit is not None and best.no_speech_prob > limit
        return is_rest or best.is_silence(self._options.rules)

    def words(
        self, job: ChunkJob, part: Part, alignment: Alignment, language: str
    ) -> list[list[Word]]:
        """Return the words of each decoded segment, written in ``language``, with times in the part."""
        count = sum(len(segment.tokens) for segment in part.decoded)
        seconds = job.chunk.seconds - part.start
        times = token_times(alignment, count, seconds, self._tokens.row_seconds)
        return time_words(part.decoded, times, self._tokens.tokenizer, language)

    def without_invented(
        self, job: ChunkJob, part: Part, words: list[list[Word]]
    ) -> list[list[Word]]:
        """Remove invented segments from the part, and set where its audio is decoded again."""
        threshold = self._options.hallucination_silence_threshold
        assert threshold is not None
        cut = find_invented(
            words,
            seconds=job.chunk.seconds - part.start,
            window=part.encoder_input.frames * HOP / SAMPLE_RATE,
            silence=part.start - job.speech_end,
            threshold=threshold,
        )
        if cut is not None:
            words, part.decoded = words[: cut.kept], part.decoded[: cut.kept]
            part.rest = None
            if cut.resume is not None:
                resume = part.start + cut.resume
                rest = job.chunk.untranscribed_from(resume)
                part.rest = None if rest is None else max(rest, resume)
        if words:
            job.speech_end = part.start + words[-1][-1].end
        return words

    def segments(
        self, job: ChunkJob, part: Part, words: Sequence[Sequence[Word]] | None
    ) -> list[Segment]:
        """Return the part's segments with times in the recording, taken from ``words`` where given."""
        best = part.best
        assert best is not None
        segments = []
        by_segment = [None] * len(part.decoded) if words is None else words
        for decoded, timed in zip(part.decoded, by_segment, strict=True):
            placed = None if timed is None else tuple(job.place(part, word) for word in timed)
            segment = Segment(
                id=0,
                start=round(placed[0].start if placed else job.time(part, decoded.start), 3),
                end=round(placed[-1].end if placed else job.time(part, decoded.end, end=True), 3),
                text=self._tokens.text(decoded.tokens),
                tokens=decoded.tokens,
                temperature=best.temperature,
                avg_logprob=best.avg_logprob,
                compression_ratio=best.compression_ratio,
                no_speech_prob=best.no_speech_prob,
                words=placed if self._options.word_timestamps else None,
                language=job.language if self._options.multilingual else None,
            )
            segments.append(segment)
        return segments

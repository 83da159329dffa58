"""Runs a transcription session on chunks, with prepared engine answers."""

import numpy as np

from galley.speech.chunks import AudioChunk
from galley.speech.options import TranscribeOptions
from galley.speech.results import Segment
from galley.speech.segmenter import SpeechSegment
from galley.speech.session import Session
from galley.speech.tokens import SpeechTokens
from galley.text.tokenizer import Tokenizer
from galley.types import EngineRequest
from galley.types.model_info import ModelInfo
from tests.speech import tiny
from tests.speech.answers import RATE, Answer, model_info


class Driver:
    """A session, and an engine that returns ``answer`` for each request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        options: TranscribeOptions,
        answer: Answer,
        max_chunks: int = 8,
        info: ModelInfo | None = None,
    ) -> None:
        tokens = SpeechTokens(info or model_info(), tokenizer)
        self.session = Session(tokens, options, "r", max_chunks=max_chunks)
        self.answer = answer
        self.requests: list[EngineRequest] = []

    def run(self, chunks: list[AudioChunk]) -> list[Segment]:
        for chunk in chunks:
            mark = np.full((4, tiny.MELS), chunk.segments[0].start, np.float32)
            self.session.add(chunk, mark)
        self.session.end()
        segments = self.session.segments()
        while not self.session.idle:
            requests = self.session.requests()
            self.requests += requests
            # Answer the last one first: the session must restore the order.
            for request in reversed(requests):
                self.session.take(self.answer(request))
            segments += self.session.segments()
        return segments


def chunk(start: float, end: float, overlap: float = 0.0, speech: float = 1.0) -> AudioChunk:
    """Return a chunk with ``speech`` seconds of speech at its start, then silence."""
    tail = round((end - start - speech) * RATE)
    segment = SpeechSegment(
        round(start * RATE), round(end * RATE), round(overlap * RATE), tail=tail
    )
    return AudioChunk((segment,), np.zeros(segment.end - segment.start, np.float32))

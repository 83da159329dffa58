"""Speaks texts, for all protocols: piece by piece, the next one when the audio of the last is complete."""

import time
from collections.abc import AsyncGenerator, Sequence

from galley.errors import Draining, EngineError, RequestError
from galley.gateway.call import Call
from galley.gateway.call_stream import CallStream
from galley.gateway.lifecycle import RETRY_SECONDS
from galley.service.voice_requests import language_of, speak_request, voice_of
from galley.tts.normalize import normalized
from galley.types import Audio


class Speaking:
    """The speech of one text. Its creator must close it.

    Attributes:
        sample_rate: samples per second of the audio.
        characters: length of the pieces so far.
    """

    def __init__(
        self, call: Call, *, voice: str | None = None, speed: float = 1.0, priority: int = 0
    ) -> None:
        """Check the voice; nothing is submitted yet.

        Args:
            call: opened for the request.
            voice: name of a voice; None: the model's first.
            speed: pace, compared with the voice's own.
            priority: the request's priority.

        Raises:
            RequestError: the model has no such voice.
        """
        self._call = call
        self._voice = voice_of(voice, call.info)
        self._speed, self._priority = speed, priority
        info = call.info.voice
        assert info is not None
        self.sample_rate = info.sample_rate
        self.characters = 0
        self._language = language_of(self._voice, info)
        self._samples = self._pieces = 0
        self._began = 0.0
        self._reason = "cancelled"
        self._closed = False

    @property
    def seconds(self) -> float:
        """The length of the audio so far."""
        return self._samples / self.sample_rate

    async def all(self, pieces: Sequence[str]) -> AsyncGenerator[bytes, None]:
        """Yield the audio of a whole text, divided by :func:`galley.tts.pieces.pieces_of`.

        The audio is that of :class:`galley.types.Audio`.

        Raises:
            RequestError: the voice cannot speak a piece.
            EngineError: the model failed.
            Unavailable: the queue is full, or the server is stopping.
            DeadlineExceeded: the request's deadline has passed.
        """
        for piece in pieces:
            async for data in self.say(piece):
                yield data
        self.whole()

    async def say(self, piece: str) -> AsyncGenerator[bytes, None]:
        """Yield the audio of the next piece. Raises the errors of :meth:`all`."""
        text = normalized(piece, self._language)
        request = speak_request(
            text,
            self._call.info,
            request_id=f"{self._call.caller.request_id}-{self._pieces}",
            voice=self._voice,
            speed=self._speed,
            ahead=max(0.0, self._began + self.seconds - time.monotonic()),
            priority=self._priority,
        )
        first, self._pieces = not self._pieces, self._pieces + 1
        reserve = len(text) if first else 0
        [stream] = await self._call.submit([request], reserve=reserve, waits=not first)
        self.characters += len(text)
        self._call.prompts_taken(len(text))
        try:
            async for data in self._audio(stream):
                yield data
        finally:
            stream.cancel()

    def whole(self) -> None:
        """Record that all of the text has been spoken."""
        self._reason = "stop"

    def close(self) -> None:
        """Cancel what is being spoken, and settle the accounts. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._call.close()
        self._call.speech_ended(self.seconds, self._reason, characters=self.characters)

    async def _audio(self, stream: CallStream) -> AsyncGenerator[bytes, None]:
        async for output in stream:
            if output.finish_reason == "abort":
                raise Draining(
                    "The server stopped before the speech was complete", retry_after=RETRY_SECONDS
                )
            if output.finish_reason == "error":
                self._reason = "error"
                error = output.error or "The engine gave up the text"
                raise RequestError(error, param="input") if output.refused else EngineError(error)
            assert isinstance(output.result, Audio), output
            if not self._samples:
                self._began = time.monotonic()
                self._call.speech_begun()
            self._samples += output.result.samples
            yield output.result.data

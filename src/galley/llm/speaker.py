"""Speaks texts with an engine in the caller's process."""

from collections.abc import Iterator
from itertools import count

from galley.errors import EngineError, RequestError
from galley.llm.local import Closable, LocalEngine
from galley.service.voice_requests import language_of, speak_request, voice_of
from galley.settings.engine import EngineSettings
from galley.tts.normalize import normalized
from galley.tts.pieces import pieces_of
from galley.types import Audio


class Speaker(Closable):
    """A loaded voice. Use it as a context manager, or close it.

    Attributes:
        sample_rate: samples per second of its audio.
    """

    def __init__(self, settings: EngineSettings) -> None:
        """Load the voice.

        Raises:
            ModelError, SettingsError: it cannot be used.
            RequestError: the model does not speak.
        """
        self._engine = LocalEngine(settings)
        try:
            voice_of(None, self._engine.info)
        except RequestError:
            self._engine.close()
            raise
        voice = self._engine.info.voice
        assert voice is not None
        self._info = voice
        self.sample_rate = voice.sample_rate
        self._ids = count()

    def speak(self, text: str, *, voice: str | None = None, speed: float = 1.0) -> Iterator[bytes]:
        """Return the audio of a text in parts: 16-bit mono samples in little-endian order.

        Args:
            text: what to say.
            voice: name of a voice; None: the first.
            speed: pace, compared with the voice's own.

        Raises:
            RequestError: there is no such voice, or nothing to say.
            EngineError: the model failed.
        """
        name = voice_of(voice, self._engine.info)
        pieces = pieces_of(text, clause_first=not self._info.streams)
        if not pieces:
            raise RequestError(f"the text has no word to speak: {text[:100]!r}", param="text")
        return self._parts(pieces, name, speed)

    def close(self) -> None:
        """Free the voice."""
        self._engine.close()

    def _parts(self, pieces: list[str], voice: str, speed: float) -> Iterator[bytes]:
        for piece in pieces:
            request = speak_request(
                normalized(piece, language_of(voice, self._info)),
                self._engine.info,
                request_id=str(next(self._ids)),
                voice=voice,
                speed=speed,
            )
            for output in self._engine.run([request]):
                if output.finish_reason == "error":
                    error = output.error or "the engine gave up the text"
                    raise RequestError(error) if output.refused else EngineError(error)
                assert isinstance(output.result, Audio), output
                yield output.result.data

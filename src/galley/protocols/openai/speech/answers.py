"""Speech in the requested format: as one file, and as OpenAI's events."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final

from galley.gateway.call import Call, opened
from galley.gateway.caller import Caller
from galley.gateway.served import ServedModel
from galley.gateway.speaking import Speaking
from galley.protocols.openai.speech.schemas import SpeechRequest
from galley.protocols.openai.usage import receipt_fields
from galley.tts.encode import encoder

SPEECH: Final = "/v1/audio/speech"
_TOKENS_PER_SECOND: Final = 20
"""Tokens of audio, as OpenAI counts them: one for 50 ms."""


class Speech:
    """The answer to one request; read it once, either as a file or as events."""

    def __init__(self, call: Call, parsed: SpeechRequest) -> None:
        """Check the request; :meth:`start` calls this.

        Raises:
            RequestError: the model cannot honor it.
            SettingsError: the format needs a package that is not installed.
        """
        self._call = call
        voice = call.info.voice
        self._speaking = Speaking(
            call, voice=parsed.voice_name(), speed=parsed.speed, priority=parsed.priority or 0
        )
        self._pieces = parsed.pieces(streams=voice is not None and voice.streams)
        self._encoder = encoder(parsed.response_format, self._speaking.sample_rate)

    @classmethod
    def start(cls, served: ServedModel, parsed: SpeechRequest, caller: Caller) -> "Speech":
        """Open the call. Raises the errors of :class:`galley.gateway.call.Call` and of the request."""
        with opened(Call(served, SPEECH, caller)) as call:
            call.check_early(parsed.priority or 0)
            return cls(call, parsed)

    async def file(self) -> AsyncGenerator[bytes, None]:
        """Yield the file in parts, as the audio is made.

        Raises:
            GalleyError: see :meth:`galley.gateway.speaking.Speaking.all`.
        """
        async with aclosing(self._speaking.all(self._pieces)) as audio:
            async for samples in audio:
                # In a thread: encoding takes a hundredth of the audio's length.
                data = await asyncio.to_thread(self._encoder.encode, samples)
                if data:
                    yield data
        data = await asyncio.to_thread(self._encoder.finish)
        if data:
            yield data

    async def events(self) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield OpenAI's events. Raises the errors of :meth:`file`."""
        async with aclosing(self.file()) as parts:
            async for data in parts:
                yield {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}
        characters = self._speaking.characters
        audio = round(self._speaking.seconds * _TOKENS_PER_SECOND)
        usage = {
            "input_tokens": characters,
            "output_tokens": audio,
            "total_tokens": characters + audio,
            **receipt_fields(self._call.receipt),
        }
        yield {"type": "speech.audio.done", "usage": usage}

    def close(self) -> None:
        """Cancel any work still running. Idempotent."""
        self._speaking.close()

"""Checks a voice and a speed against a model that speaks, and converts texts to engine requests."""

import secrets
from typing import Final

from galley.errors import RequestError
from galley.service.requests import check_task
from galley.types import EngineRequest, Speak
from galley.types.model_info import ModelInfo, VoiceInfo

SLOWEST: Final = 0.25
FASTEST: Final = 4.0
"""Limits of ``speed``, as in OpenAI's API."""

_SHOWN: Final = 20
_MIXES: Final = "+,("
"""Characters with which other servers' names of several voices are joined to a mix."""


def voice_of(name: str | None, info: ModelInfo, *, param: str = "voice") -> str:
    """Return the model's name of a voice; without a name, its first.

    Raises:
        RequestError: the model does not speak, or has no such voice.
    """
    check_task(info, "speak")
    voice = info.voice
    assert voice is not None, "a model that speaks has voices"
    if name is None:
        return voice.voices[0]
    found = voice.aliases.get(name, name)
    if found in voice.voices:
        return found
    raise RequestError(_unknown(name[:100], voice, info.name), param=param)


def speak_request(
    text: str,
    info: ModelInfo,
    *,
    request_id: str,
    voice: str,
    speed: float = 1.0,
    ahead: float = 0.0,
    priority: int = 0,
) -> EngineRequest:
    """Return a request for the speech of one sentence or clause.

    Args:
        text: what to say, see :class:`galley.types.Speak`.
        info: description of the model.
        request_id: unique.
        voice: from :func:`voice_of`.
        speed: pace, compared with the voice's own.
        ahead: seconds of audio that the listener has yet to hear.
        priority: a lower value is scheduled sooner.

    Raises:
        RequestError: ``speed`` is out of range.
    """
    check_task(info, "speak")
    if not SLOWEST <= speed <= FASTEST:
        raise RequestError(f"speed is {speed}, expected {SLOWEST} to {FASTEST}", param="speed")
    payload = Speak(text=text, voice=voice, speed=speed, ahead=ahead, seed=secrets.randbits(32))
    return EngineRequest(id=request_id, payload=payload, priority=priority)


def _unknown(name: str, voice: VoiceInfo, model: str) -> str:
    known = [*voice.voices[:_SHOWN], *list(voice.aliases)[:_SHOWN]]
    more = len(voice.voices) + len(voice.aliases) - len(known)
    listed = ", ".join(known) + (f" and {more} more" if more else "")
    if any(mark in name for mark in _MIXES):
        return f"voice is {name!r}: mixing voices is not supported; take one of {listed}"
    return f"{model} has no voice {name!r}; it has {listed}"

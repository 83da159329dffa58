"""Checks a voice and a speed against a model that speaks, and converts texts to engine requests."""

import secrets
from typing import Final

from galley.errors import RequestError
from galley.service.requests import check_task
from galley.tts.mixes import MOST_VOICES, mix_name, parse_mix
from galley.types import EngineRequest, Speak
from galley.types.model_info import ModelInfo, VoiceInfo

SLOWEST: Final = 0.25
FASTEST: Final = 4.0
"""Limits of ``speed``, as in OpenAI's API."""

_SHOWN: Final = 20
_MIXES: Final = "+,("
"""Characters with which other servers' names of several voices are joined to a mix."""


def voice_of(name: str | None, info: ModelInfo, *, param: str = "voice") -> str:
    """Return the model's name of a voice or a mix; without a name, its first voice.

    Raises:
        RequestError: the model does not speak, has no such voice, or does not mix voices.
    """
    check_task(info, "speak")
    voice = info.voice
    assert voice is not None, "a model that speaks has voices"
    if name is None:
        return voice.voices[0]
    found = voice.aliases.get(name, name)
    if found in voice.voices:
        return found
    if voice.mixes and ("+" in name or "(" in name):
        return _mix(name, voice, info.name, param)
    raise RequestError(_unknown(name[:100], voice, info.name), param=param)


def language_of(voice: str, info: VoiceInfo) -> str:
    """Return the language of a voice, or of the first voice of a mix, as a BCP 47 tag; empty: unknown."""
    if voice not in info.voices and (mix := parse_mix(voice)):
        voice = mix[0][0]
    return info.voice_languages.get(voice, info.language)


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


def _mix(name: str, voice: VoiceInfo, model: str, param: str) -> str:
    """Return the name of a mix with the model's names of its voices."""
    mix = parse_mix(name)
    if mix is None:
        raise RequestError(
            f"voice is {name[:100]!r}, which is neither a voice nor a mix of up to {MOST_VOICES} "
            f"voices such as {'+'.join(voice.voices[:2])} or {voice.voices[0]}(2)+{voice.voices[-1]}(1)",
            param=param,
        )
    for one, _ in mix:
        if voice.aliases.get(one, one) not in voice.voices:
            raise RequestError(_unknown(one[:100], voice, model), param=param)
    return mix_name((voice.aliases.get(one, one), weight) for one, weight in mix)


def _unknown(name: str, voice: VoiceInfo, model: str) -> str:
    known = [*voice.voices[:_SHOWN], *list(voice.aliases)[:_SHOWN]]
    more = len(voice.voices) + len(voice.aliases) - len(known)
    listed = ", ".join(known) + (f" and {more} more" if more else "")
    if any(mark in name for mark in _MIXES):
        return f"voice is {name!r}: mixing voices is not supported; take one of {listed}"
    return f"{model} has no voice {name!r}; it has {listed}"

"""Galley: an inference stack that plans, quantizes, serves and measures models."""

from typing import TYPE_CHECKING, Any

from galley.errors import (
    AudioError,
    AudioTooLong,
    CheckpointError,
    Conflict,
    ContextExceeded,
    DamagedWeights,
    DeadlineExceeded,
    Draining,
    EngineError,
    EngineFailed,
    EngineNotReady,
    GalleyError,
    MemoryPressure,
    ModelError,
    ModelNotFound,
    NotEnoughMemory,
    NotStored,
    QueueFull,
    RankKilled,
    RateLimited,
    RequestError,
    SettingsError,
    SlowReader,
    Unavailable,
    UnknownModel,
    UnsupportedModel,
)
from galley.types import Grammar, SamplingParams

if TYPE_CHECKING:
    from galley.llm.llm import LLM
    from galley.llm.outputs import RequestOutput
    from galley.speech.options import (
        LiveOptions,
        QualityRules,
        SpeechOptions,
        TranscribeOptions,
        TurnOptions,
    )
    from galley.speech.transcribe import Transcriber

__all__ = [
    "AudioError",
    "AudioTooLong",
    "CheckpointError",
    "Conflict",
    "ContextExceeded",
    "DamagedWeights",
    "DeadlineExceeded",
    "Draining",
    "EngineError",
    "EngineFailed",
    "EngineNotReady",
    "GalleyError",
    "Grammar",
    "LLM",
    "LiveOptions",
    "MemoryPressure",
    "ModelError",
    "ModelNotFound",
    "NotEnoughMemory",
    "NotStored",
    "QualityRules",
    "QueueFull",
    "RankKilled",
    "RateLimited",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "SettingsError",
    "SlowReader",
    "SpeechOptions",
    "TranscribeOptions",
    "Transcriber",
    "TurnOptions",
    "Unavailable",
    "UnknownModel",
    "UnsupportedModel",
    "__version__",
]

__version__ = "0.1.0"

_SPEECH_OPTIONS = frozenset(
    {"LiveOptions", "QualityRules", "SpeechOptions", "TranscribeOptions", "TurnOptions"}
)


def __getattr__(name: str) -> Any:
    # galley.llm pulls numpy and tokenizers; `galley --help` must not wait for them.
    if name == "LLM":
        from galley.llm.llm import LLM

        return LLM
    if name == "RequestOutput":
        from galley.llm.outputs import RequestOutput

        return RequestOutput
    if name in _SPEECH_OPTIONS:
        from galley.speech import options

        return getattr(options, name)
    if name == "Transcriber":
        from galley.speech import require_extra

        require_extra()
        from galley.speech.transcribe import Transcriber

        return Transcriber
    raise AttributeError(f"module 'galley' has no attribute {name!r}")

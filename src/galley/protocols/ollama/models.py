"""Ollama's API: lists and descriptions of models."""

import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NotRequired, TypedDict

import msgspec

from galley.formats.gguf_file import is_gguf
from galley.gateway.derived import Derived
from galley.gateway.registry import Registry
from galley.gateway.served import ServedModel
from galley.types.model_info import ModelInfo

_STARTED: Final = int(time.time())


class OllamaDetails(TypedDict):
    """Format, family and size of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict, total=False):
    """One model of a list. ``size`` is that of its weights in memory, in bytes."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaModels(TypedDict):
    """The served models."""

    models: list[OllamaModel]


class OllamaShown(TypedDict):
    """Details of a model."""

    modified_at: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    parameters: str
    system: NotRequired[str]


def _details(served: ServedModel) -> OllamaDetails:
    info = served.backend().engine.info
    parameters = info.ledger.parameters if info.ledger is not None else 0
    return {
        "parent_model": "",
        "format": "gguf" if is_gguf(Path(info.path)) else "safetensors",
        "family": info.family,
        "families": [info.family],
        "parameter_size": _size(parameters),
        "quantization_level": _kind(info),
    }


def _kind(info: ModelInfo) -> str:
    """Return the types of a model's weights; empty if its engine does not report them."""
    if info.weights is not None:
        return info.weights.kind
    return "" if info.program is None else info.program.weight_dtype


def works_with_text(served: ServedModel) -> bool:
    """Return whether Ollama's clients can use the model, as far as known before it is loaded."""
    return served.info is None or served.info.text is not None


def listed(served: ServedModel) -> OllamaModel:
    """Return a served model's entry in lists."""
    if served.on_request and not served.is_loaded:
        return _unloaded(served)
    backend = served.backend()
    ledger = backend.engine.info.ledger
    return {
        "name": served.name,
        "model": served.name,
        "modified_at": time_text(backend.created),
        "size": ledger.weights if ledger is not None else 0,
        "digest": hashlib.sha256(backend.files.encode()).hexdigest(),
        "details": _details(served),
    }


def listed_as(derived: Derived, models: Registry) -> OllamaModel:
    """Return the list entry of an additional name of a model."""
    base = listed(models.served(derived.base))
    details: OllamaDetails = {**base["details"], "parent_model": derived.base}
    digest = hashlib.sha256(repr(derived).encode()).hexdigest()
    return {
        **base,
        "name": derived.name,
        "model": derived.name,
        "digest": digest,
        "details": details,
    }


def _unloaded(served: ServedModel) -> OllamaModel:
    """Return the list entry of a model not loaded yet, of which only the name is known."""
    details: OllamaDetails = {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }
    return {
        "name": served.name,
        "model": served.name,
        "modified_at": time_text(_STARTED),
        "size": 0,
        "digest": hashlib.sha256(served.name.encode()).hexdigest(),
        "details": details,
    }


def shown(served: ServedModel, derived: Derived | None) -> OllamaShown:
    """Return the details of a model, and of the additional name under which it was requested.

    Raises:
        RequestError: the model does not work with text, so that Ollama's clients cannot use it.
    """
    backend = served.backend()
    info, parts = backend.engine.info, backend.require_text()
    chat_format, text = parts.format, info.require_text()
    known: dict[str, str | int] = {
        "general.architecture": info.family,
        f"{info.family}.context_length": text.max_model_len,
        f"{info.family}.vocab_size": text.vocab_size,
    }
    if info.ledger is not None:
        known["general.parameter_count"] = info.ledger.parameters
    names = {"generate": "completion", "embed": "embedding"}
    capabilities = [names[task] for task in info.tasks if task in names]
    if chat_format.calls is not None and chat_format.writes_tools:
        capabilities.append("tools")
    if chat_format.thinking is not None:
        capabilities.append("thinking")
    sampling = msgspec.structs.asdict(text.defaults) | dict(derived.sampling if derived else {})
    answer: OllamaShown = {
        "modified_at": time_text(backend.created),
        "details": _details(served),
        "model_info": known,
        "capabilities": capabilities,
        "parameters": "\n".join(
            f"{name} {value}" for name, value in sampling.items() if value is not None
        ),
    }
    system = (derived.system_prompt if derived else "") or parts.system_prompt
    return {**answer, "system": system} if system else answer


def _size(parameters: int) -> str:
    """Format a parameter count as Ollama does: ``1.2B``, ``25.3M``."""
    for letter, unit in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{letter}"
    return str(parameters)


def time_text(unix: int) -> str:
    """Format a Unix time as Ollama does."""
    return datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")

"""Short names of models, as Ollama's users know them, and the hub ids that they stand for.

Each id has weights as safetensors, of a family in :mod:`galley.models.registry`, in the type in which its
authors published it: ``--weight-dtype int4`` makes it as small as Ollama's default.
"""

import re
from collections.abc import Mapping
from typing import Final

ALIASES: Final[Mapping[str, str]] = {
    "deepseek-r1": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "deepseek-r1:7b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "deepseek-r1:8b": "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-r1:14b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
    "distil-whisper": "distil-whisper/distil-large-v3",
    "llama3": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3.1": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3.2": "meta-llama/Llama-3.2-3B-Instruct",
    "llama3.2:1b": "meta-llama/Llama-3.2-1B-Instruct",
    "llama3.2:3b": "meta-llama/Llama-3.2-3B-Instruct",
    "llama3.3": "meta-llama/Llama-3.3-70B-Instruct",
    "mistral": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral-nemo": "mistralai/Mistral-Nemo-Instruct-2407",
    "qwen2.5": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5:0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5:1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5:3b": "Qwen/Qwen2.5-3B-Instruct",
    "qwen2.5:7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5:14b": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2.5:32b": "Qwen/Qwen2.5-32B-Instruct",
    "qwen2.5-coder": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "qwen2.5-coder:0.5b": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
    "qwen2.5-coder:1.5b": "Qwen/Qwen2.5-Coder-1.5B-Instruct",
    "qwen2.5-coder:7b": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "qwen2.5-coder:32b": "Qwen/Qwen2.5-Coder-32B-Instruct",
    "qwen3": "Qwen/Qwen3-8B",
    "qwen3:0.6b": "Qwen/Qwen3-0.6B",
    "qwen3:1.7b": "Qwen/Qwen3-1.7B",
    "qwen3:4b": "Qwen/Qwen3-4B",
    "qwen3:8b": "Qwen/Qwen3-8B",
    "qwen3:14b": "Qwen/Qwen3-14B",
    "qwen3:32b": "Qwen/Qwen3-32B",
    "qwq": "Qwen/QwQ-32B",
    "smollm2": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "smollm2:135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm2:360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2:1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "tinyllama": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "whisper": "openai/whisper-small",
    "whisper:tiny": "openai/whisper-tiny",
    "whisper:base": "openai/whisper-base",
    "whisper:small": "openai/whisper-small",
    "whisper:medium": "openai/whisper-medium",
    "whisper:large": "openai/whisper-large-v3",
    "whisper:turbo": "openai/whisper-large-v3-turbo",
}
"""``name`` or ``name:tag``, in lower case; ``name`` is what ``name:latest`` refers to."""

_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*(:[A-Za-z0-9._-]+)?", re.ASCII)
_LONGEST: Final = 96
_LETTERS: Final = re.compile(r"[a-z]+")
_FAMILIES: Final = frozenset(
    letters[0] for name in ALIASES if (letters := _LETTERS.match(name)) is not None
)


def hub_id_of(name: str) -> str | None:
    """Return the hub id that a short name stands for; None if there is none."""
    return ALIASES.get(name.lower().removesuffix(":latest"))


def aliases_of(hub_id: str) -> list[str]:
    """Return the short names of a hub id."""
    return [name for name, meant in ALIASES.items() if meant == hub_id]


def looks_like_name(text: str) -> bool:
    """Return whether one word of a command line was meant as a short name, of a model that may not exist.

    Such a word has a tag (``phi:mini``), a number (``gpt-4o``, ``gemma2``), or begins as a known name does.
    """
    if len(text) > _LONGEST or not _WORD.fullmatch(text):
        return False
    begin = _LETTERS.match(text.lower())
    known = begin is not None and begin[0] in _FAMILIES
    return ":" in text or any(map(str.isdigit, text)) or known

"""Mapping from texts to token ids, for callers that need no tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.formats.gguf_file import is_gguf, read_gguf
from galley.formats.gguf_metadata import Metadata
from galley.formats.json_file import read_json

_TOKENIZER_FILE: Final = "tokenizer.json"
_ROLE_FILES: Final = ("tokenizer_config.json", "special_tokens_map.json")
_ADDED_TOKENS_FILE: Final = "added_tokens.json"


def first_difference(one: Path, other: Path) -> str | None:
    """Describe a token that has different ids in the two checkpoints; None if there is none.

    Tokens that only one of them has do not count, and a checkpoint without a tokenizer has no difference.

    Raises:
        CheckpointError: a tokenizer is damaged.
    """
    known = _ids(one)
    for text, token in _ids(other).items():
        if known.get(text, token) != token:
            return f"{json.dumps(text)} is token {token} in one and {known[text]} in the other"
    return None


def end_of_text(folder: Path) -> int | None:
    """Return the id of the ``eos_token`` of a folder's tokenizer; None if it has none.

    Raises:
        CheckpointError: a file of the tokenizer is damaged.
    """
    said = [read_json(folder / name) for name in _ROLE_FILES if (folder / name).exists()]
    named = [text for file in said if (text := _content(file.get("eos_token")))]
    return _added(folder, said).get(named[0], _ids(folder).get(named[0])) if named else None


def _added(folder: Path, said: list[dict[str, Any]]) -> dict[str, int]:
    """Return text -> id of tokens outside the vocabulary; those of ``tokenizer.json`` take precedence."""
    found: dict[Any, Any] = {}
    if (folder / _ADDED_TOKENS_FILE).exists():
        found |= read_json(folder / _ADDED_TOKENS_FILE)
    for file in said:
        decoder = file.get("added_tokens_decoder")
        listed = decoder.items() if isinstance(decoder, dict) else ()
        found |= {_content(token): int(key) for key, token in listed if key.isdecimal()}
    path = folder / _TOKENIZER_FILE
    tokens = read_json(path).get("added_tokens") if path.exists() else None
    for token in tokens if isinstance(tokens, list) else ():
        if isinstance(token, dict):
            found[_content(token)] = token.get("id")
    return {t: i for t, i in found.items() if isinstance(t, str) and type(i) is int and i >= 0}


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _ids(path: Path) -> Mapping[str, int]:
    if is_gguf(path):
        file = read_gguf(path)
        tokens = Metadata(file.metadata, str(path)).strings("tokenizer.ggml.tokens") or ()
        return {text: i for i, text in enumerate(tokens)}
    file_path = path / _TOKENIZER_FILE
    if not file_path.exists():
        return {}
    content: dict[str, Any] = read_json(file_path)
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        return {text: i for text, i in vocab.items() if isinstance(i, int)}
    if isinstance(vocab, list):  # tokens and their scores
        pieces = (entry[0] for entry in vocab if isinstance(entry, list) and entry)
        return {text: i for i, text in enumerate(pieces) if isinstance(text, str)}
    return {}

"""Which token id stands for which text, to tell whether two checkpoints speak of the same tokens."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from galley.formats.gguf_file import is_gguf, read_gguf
from galley.formats.gguf_metadata import Metadata
from galley.formats.json_file import read_json

_TOKENIZER_FILE: Final = "tokenizer.json"


def first_difference(one: Path, other: Path) -> str | None:
    """A token that both checkpoints know under different ids, in words; None if there is none.

    Tokens that only one of them knows are no difference, and a checkpoint without a tokenizer has none.

    Raises:
        CheckpointError: a tokenizer is damaged.
    """
    known = _ids(one)
    for text, token in _ids(other).items():
        if known.get(text, token) != token:
            return f"{json.dumps(text)} is token {token} there and {known[text]} here"
    return None


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
    if isinstance(vocab, list):  # pieces with their scores
        pieces = (entry[0] for entry in vocab if isinstance(entry, list) and entry)
        return {text: i for i, text in enumerate(pieces) if isinstance(text, str)}
    return {}

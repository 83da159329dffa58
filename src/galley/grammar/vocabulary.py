"""A checkpoint's vocabulary as llguidance takes it: the bytes of each token, and which ones are special."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from llguidance import LLTokenizer

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.gguf_file import is_gguf
from galley.formats.json_file import read_file, read_json

_TOKENIZER_FILE: Final = "tokenizer.json"
_ROLE_FILES: Final = ("special_tokens_map.json", "tokenizer_config.json")


def load_vocabulary(
    folder: Path, *, vocab_size: int | None = None, eos_token_ids: Collection[int] = ()
) -> LLTokenizer:
    """The vocabulary of ``tokenizer.json``, or of a GGUF file. Takes 0.7 s and 100 MB for 128,000 tokens.

    Args:
        folder: the checkpoint's, or the GGUF file.
        vocab_size: rows of the embedding, which may be more than the tokenizer has; None: as many.
        eos_token_ids: any of them ends a text; none: what the tokenizer's names suggest.

    Raises:
        CheckpointError: the file is missing or damaged.
        UnsupportedModel: llguidance cannot read such a tokenizer.
    """
    text = _of_gguf(folder) if is_gguf(folder) else _of_folder(folder)
    eos = sorted(eos_token_ids) or None
    try:
        return LLTokenizer(text, n_vocab=vocab_size, eos_token=eos)
    except Exception as error:  # the Rust library raises bare ones
        raise UnsupportedModel(
            f"{folder}: grammars cannot be used with this tokenizer: {error}"
        ) from error


def _of_gguf(path: Path) -> str:
    """A GGUF file's tokenizer as ``tokenizer.json`` would have it."""
    from galley.text.gguf_tokenizer import read_text  # engines of other checkpoints do without

    read = read_text(path)
    read.inner.add_special_tokens(list(read.special_tokens.values()))
    text: str = read.inner.to_str()
    return text


def _of_folder(folder: Path) -> str:
    path = folder / _TOKENIZER_FILE
    if not path.exists():
        raise CheckpointError("does not exist; a grammar needs the tokenizer", file=str(path))
    return _with_roles(read_file(path).decode("utf-8", "replace"), folder)


def _with_roles(text: str, folder: Path) -> str:
    """``tokenizer.json`` in which tokens that the other files name for a role are special."""
    names: set[str] = set()
    for file in _ROLE_FILES:
        if (folder / file).exists():
            names |= {
                name for value in read_json(folder / file).values() if (name := _content(value))
            }
    content: dict[str, Any] = json.loads(text)
    added = [token for token in content.get("added_tokens", []) if token.get("content") in names]
    if all(token.get("special") for token in added):
        return text
    for token in added:
        token["special"] = True
    return json.dumps(content)


def _content(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None

"""Read a checkpoint's tokenizer: from ``tokenizer.json`` and the files next to it, or from a GGUF file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import normalizers

from galley.errors import CheckpointError, UnsupportedModel
from galley.formats.gguf_file import is_gguf
from galley.formats.json_file import is_there, read_file
from galley.formats.sentence_config import read_sentence_config
from galley.text.declared_tokens import Declared, read_declared
from galley.text.gguf_tokenizer import HUGGINGFACE_KEY, named_tokens, read_metadata, read_text
from galley.text.tokenizer_library import declare_special, is_library_error
from galley.text.tokenizer_steps import Steps

TOKENIZER_FILE: Final = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class TokenizerParts:
    """A tokenizer as its files describe it.

    Attributes:
        inner: the library's tokenizer.
        decoder_steps: types of the steps of its decoder.
        special_tokens: role -> text.
        not_streamable: why generated text cannot be streamed; empty if it can.
        own_steps: see ``own`` of :class:`galley.text.tokenizer_steps.Steps`.
        types_pairs: whether the second text of a pair may have tokens of type 1.
    """

    inner: tokenizers.Tokenizer
    decoder_steps: Sequence[str]
    special_tokens: Mapping[str, str]
    not_streamable: str = ""
    own_steps: tuple[str, ...] = ()
    types_pairs: bool = True


def read_tokenizer(folder: Path) -> TokenizerParts:
    """Read the tokenizer of a checkpoint's folder, or of a GGUF file's metadata.

    Raises:
        CheckpointError: ``tokenizer.json`` is missing, or one of the files is damaged.
        UnsupportedModel: a GGUF file's tokenizer is of an unsupported type.
    """
    if is_gguf(folder):
        return _of_gguf(folder)
    path = folder / TOKENIZER_FILE
    if not is_there(path):
        raise CheckpointError(
            "does not exist; Galley needs the file of the fast tokenizer", file=str(path)
        )
    declared = read_declared(folder)
    parts = _of_json(read_file(path), declared, path)
    if read_sentence_config(folder).lower:
        _lower(parts.inner)
    inputs = declared.config.get("model_input_names")
    typed = not isinstance(inputs, list) or "token_type_ids" in inputs
    return replace(parts, types_pairs=typed)


def _lower(inner: tokenizers.Tokenizer) -> None:
    """Convert texts to lower case before all else, unless the normalizer does so."""
    given = inner.normalizer
    several: Any = given if isinstance(given, normalizers.Sequence) else (given,)
    steps = [*several]
    if not any(isinstance(step, normalizers.Lowercase) for step in steps):
        first = normalizers.Lowercase()
        inner.normalizer = normalizers.Sequence([first] if given is None else [first, given])


def _of_json(data: bytes, declared: Declared, path: Path) -> TokenizerParts:
    try:
        steps = Steps.read(data)
        inner = tokenizers.Tokenizer.from_buffer(data)
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise CheckpointError(f"is not a tokenizer: {error}", file=str(path)) from error
    inner.no_truncation()
    inner.no_padding()
    declared.declare(inner)
    declare_special(inner, declared.roles.values())
    return TokenizerParts(
        inner=inner,
        decoder_steps=steps.decoder,
        special_tokens=declared.roles,
        not_streamable=f"{path}: {steps.not_streamable}" if steps.not_streamable else "",
        own_steps=steps.own,
    )


def _of_gguf(path: Path) -> TokenizerParts:
    metadata = read_metadata(path)
    whole = metadata.raw.get(HUGGINGFACE_KEY)
    if isinstance(whole, str):
        return _of_json(whole.encode(), Declared({}, named_tokens(metadata)), path)
    try:
        read = read_text(path)
    except (CheckpointError, UnsupportedModel):
        raise
    except Exception as error:  # the Rust library raises bare Exception
        raise CheckpointError(f"is not a valid tokenizer: {error}", file=str(path)) from error
    declare_special(read.inner, read.special_tokens.values())
    return TokenizerParts(
        inner=read.inner, decoder_steps=read.decoder_steps, special_tokens=read.special_tokens
    )

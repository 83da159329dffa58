"""Adapts the tokenizers library: errors of Galley's own kind, texts that it can encode."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import tokenizers

from galley.errors import RequestError

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


_LONGEST_REASON: Final = 200


def replace_surrogates(text: str) -> str:
    """Return ``text`` with lone surrogates, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def is_library_error(error: BaseException) -> bool:
    """Return whether the Rust library raised the error.

    It raises bare exceptions, or panics, which are not subclasses of Exception.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


@contextmanager
def library_errors() -> Iterator[None]:
    """Turn errors of the library into RequestError, because its steps are the checkpoint's."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, MemoryError) or not is_library_error(error):
            raise
        raise RequestError(
            f"the model's tokenizer failed on this text: {str(error)[:_LONGEST_REASON]}"
        ) from error


def declare_special(inner: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Make tokens that have roles special where a file lists them as ordinary ones."""
    special = {t.content for t in inner.get_added_tokens_decoder().values() if t.special}
    for text in texts:
        if text not in special and inner.token_to_id(text) is not None:
            inner.add_special_tokens([text])

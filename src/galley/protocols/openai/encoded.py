"""Parts of an answer that are stored already encoded as JSON."""

from typing import TypeVar, cast

import msgspec

T = TypeVar("T")


def encoded(value: T) -> T:
    """Encode ``value`` as JSON that :func:`msgspec.json.encode` copies into the enclosing value.

    A token with twenty candidates is 60 objects, and 2 KB as JSON. Collecting many of them for
    one answer unencoded would take ten times the memory, and encode all of them at once at the
    end. The return type is nominal: only the encoder may read the result.
    """
    return cast(T, msgspec.Raw(msgspec.json.encode(value)))

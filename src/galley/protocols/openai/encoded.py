"""Parts of an answer that are kept as the JSON they will be."""

from typing import TypeVar, cast

import msgspec

T = TypeVar("T")


def encoded(value: T) -> T:
    """``value`` as JSON, for :func:`msgspec.json.encode` to copy into what it is a part of.

    A token with twenty candidates is 60 objects, and 2 KB as JSON. Whoever collects many of them for one
    answer would hold ten times the memory, and encode all of them at a stroke in the end. The type is a
    fiction: only the encoder may look at the result.
    """
    return cast(T, msgspec.Raw(msgspec.json.encode(value)))

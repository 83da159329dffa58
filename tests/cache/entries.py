"""Entries to store."""

import time
from typing import Any

from galley.cache.entry import Entry


def entry(number: int = 1, *, size: int = 100, seconds: float = 60.0, **fields: Any) -> Entry:
    """Return an entry whose key and body depend on a number."""
    now = time.time()
    defaults = {
        "key": number.to_bytes(16, "big"),
        "kind": "text",
        "model": "tiny",
        "created": now,
        "expires": now + seconds,
        "body": (number % 251).to_bytes(1, "big") * size,
    }
    return Entry(**{**defaults, **fields})

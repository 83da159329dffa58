"""Summaries in compaction items: opaque to clients, and not secret.

A summary is of the client's own conversation, and a client could as well write it as a message. So the
content is encoded, not encrypted, and any server can read it.
"""

import base64
import binascii
from typing import Final

from galley.errors import RequestError

_PREFIX: Final = "galley-summary-1."


def content_of(summary: str) -> str:
    """Return the ``encrypted_content`` of a compaction item."""
    return _PREFIX + base64.urlsafe_b64encode(summary.encode()).decode()


def summary_of(content: str) -> str:
    """Return the summary in the ``encrypted_content`` of a compaction item.

    Raises:
        RequestError: it was not written by :func:`content_of`.
    """
    try:
        if content.startswith(_PREFIX):
            return base64.b64decode(content.removeprefix(_PREFIX), b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        pass
    raise RequestError(
        "encrypted_content: this compaction was not written by /v1/responses/compact of a server like this "
        "one; send the conversation's own items instead",
        param="encrypted_content",
    )

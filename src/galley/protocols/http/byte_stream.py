"""A file that is sent while it is made."""

import logging

from galley.protocols.http.sse import PartStream

log = logging.getLogger("galley.server")


class ByteStream(PartStream[bytes]):
    """A file in parts.

    An error midway cuts the connection, so that no client takes what it has for the whole file.
    """

    def encoded(self, part: bytes) -> bytes:
        """Return the part as it is."""
        return part

    def cut_short(self, error: Exception, request_id: str) -> bytes:
        """See :class:`PartStream`."""
        log.warning("the file of request %s ends early: %s", request_id, error)
        raise error

"""Which server an engine belongs to, so that a machine can tell a server's next engine from another's."""

import os
from functools import cache
from typing import Final

VARIABLE: Final = "GALLEY_SERVER_ID"
"""Variable by which a server passes its identifier on to its engines."""

OWNER_BYTES: Final = 16

NOBODY: Final = bytes(OWNER_BYTES)


def new_owner() -> str:
    """Return a new identifier of a server, as the value of :data:`VARIABLE`."""
    return os.urandom(OWNER_BYTES).hex()


@cache
def own_owner() -> bytes:
    """Return the identifier of the server of this process; without a server, one of this process alone."""
    given = bytes.fromhex(os.environ.get(VARIABLE) or new_owner())
    return given[:OWNER_BYTES].ljust(OWNER_BYTES, b"\0")

"""Sizes and types that every package shares."""

from collections.abc import Callable
from typing import Final, TypeAlias

BLOCK_TOKENS: Final = 16
"""Tokens in one KV block. Also the row tile of the reference executor (see ``ops/tiles.py``)."""

MAX_COUNT: Final = 2**31 - 1
"""Bound of plain counts: far above any practical value, and small enough for every encoding."""

OnPhase: TypeAlias = Callable[[str, float], None]
"""Called with the name and the seconds of each start-up phase as it ends."""


def blocks_for(positions: int) -> int:
    """Return the number of KV blocks that ``positions`` tokens or encoder rows take."""
    return -(-positions // BLOCK_TOKENS)

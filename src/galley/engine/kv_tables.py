"""The block tables that a request holds, or would take."""

from array import array
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

Table: TypeAlias = "array[int]"
"""Block ids; each step copies their bytes."""


class Claim(NamedTuple):
    """The resources that opening a request's tables would take.

    Attributes:
        tokens: number of leading tokens whose keys and values are already in the cache.
        found: for each group, the blocks of these tokens; None for those that have left the window.
        fresh: for each group, the number of blocks to be taken from the pool.
        state: slot of the kept state from which recurrent layers continue, if there is one.
    """

    tokens: int
    found: tuple[list[int | None], ...]
    fresh: tuple[int, ...]
    state: int | None = None

    @property
    def shared(self) -> list[int]:
        """Blocks that get one more reference."""
        return [block for blocks in self.found for block in blocks if block is not None]


@dataclass(slots=True)
class Tables:
    """The blocks of a running request.

    Attributes:
        hypotheses: for each beam-search hypothesis, or the only one, its table in each KV group.
        first: for each group, the index of the first block that is held; earlier entries have left the
            window.
        registered: number of leading blocks that other requests can find.
    """

    hypotheses: list[tuple[Table, ...]]
    first: list[int]
    registered: int

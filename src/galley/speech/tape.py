"""The last samples of a recording or a stream, by their place in it."""

from collections import deque

import numpy as np
from numpy.typing import NDArray


class Tape:
    """Blocks that came, until they are forgotten.

    Attributes:
        end: samples that came so far.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, NDArray[np.float32]]] = deque()
        self.end = 0

    def append(self, samples: NDArray[np.float32]) -> None:
        """The next block."""
        if len(samples):
            self._blocks.append((self.end, samples))
            self.end += len(samples)

    def forget(self, before: int) -> None:
        """Drops the blocks that hold nothing at or after sample ``before``."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= before:
            self._blocks.popleft()

    def cut(self, start: int, end: int) -> NDArray[np.float32]:
        """A copy of samples that were not forgotten."""
        return np.concatenate(
            [
                samples[max(0, start - first) : max(0, end - first)]
                for first, samples in self._blocks
            ]
        )

    @property
    def held(self) -> int:
        """Samples that are kept."""
        return sum(len(samples) for _, samples in self._blocks)

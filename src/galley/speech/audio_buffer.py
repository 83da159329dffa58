"""The latest samples of a recording or stream, addressed by their position since its start."""

from collections import deque

import numpy as np
from numpy.typing import NDArray


class AudioBuffer:
    """Appended blocks of samples (float32, mono), kept until they are dropped.

    Attributes:
        end: samples appended so far, dropped ones included; the position of the next one.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, NDArray[np.float32]]] = deque()
        """(position of its first sample, block)"""
        self.end = 0

    def append(self, samples: NDArray[np.float32]) -> None:
        """Adds a block at the end. The buffer keeps the array itself, not a copy."""
        if len(samples):
            self._blocks.append((self.end, samples))
            self.end += len(samples)

    def drop_before(self, position: int) -> None:
        """Drops the blocks whose samples all lie before ``position``."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= position:
            self._blocks.popleft()

    def read(self, start: int, end: int) -> NDArray[np.float32]:
        """A copy of the samples from ``start`` up to ``end``, none of which may have been dropped."""
        return np.concatenate(
            [
                samples[max(0, start - first) : max(0, end - first)]
                for first, samples in self._blocks
            ]
        )

    @property
    def buffered_samples(self) -> int:
        """Samples held in memory."""
        return sum(len(samples) for _, samples in self._blocks)

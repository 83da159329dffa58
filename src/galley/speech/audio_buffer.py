"""The latest samples of a recording or stream, addressed by their position from its start."""

from collections import deque

import numpy as np
from numpy.typing import NDArray


class AudioBuffer:
    """Appended blocks of samples (float32, mono), kept until they are dropped.

    Attributes:
        end: number of samples appended so far, including dropped ones; the position of the next sample.
    """

    def __init__(self) -> None:
        self._blocks: deque[tuple[int, NDArray[np.float32]]] = deque()
        """The blocks, each as (position of its first sample, block)."""
        self.end = 0

    def append(self, samples: NDArray[np.float32]) -> None:
        """Append a block. The buffer keeps the array itself, not a copy."""
        if len(samples):
            self._blocks.append((self.end, samples))
            self.end += len(samples)

    def drop_before(self, position: int) -> None:
        """Drop the blocks whose samples all lie before ``position``."""
        while self._blocks and self._blocks[0][0] + len(self._blocks[0][1]) <= position:
            self._blocks.popleft()

    def read(self, start: int, end: int) -> NDArray[np.float32]:
        """Return a copy of the samples from ``start`` to ``end``, none of which may have been dropped."""
        return np.concatenate(
            [
                samples[max(0, start - first) : max(0, end - first)]
                for first, samples in self._blocks
            ]
        )

    @property
    def buffered_samples(self) -> int:
        """Number of samples held in memory."""
        return sum(len(samples) for _, samples in self._blocks)

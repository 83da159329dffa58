"""Clustering of voices: average linkage, up to a distance or to a number of speakers."""

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MOST: Final = 1500
"""Voices that are clustered; of more, the longest in each stretch are, and the others join them."""
_SMALL_SECONDS: Final = 4.0
_SMALL_SHARE: Final = 0.1
"""A cluster with fewer seconds, or with a smaller share of all, does not count as a speaker."""


def merges(distances: NDArray[np.float32]) -> list[tuple[int, int, float]]:
    """Return the merges of average linkage, nearest first: (cluster, cluster, distance).

    A cluster has the number of its first member. Time and memory grow with the square of the count
    (nearest-neighbor chains; Murtagh, 1983).

    Args:
        distances: symmetric, float32 ``[voices, voices]``; overwritten.
    """
    count = len(distances)
    np.fill_diagonal(distances, np.inf)
    sizes = np.ones(count)
    alive = np.ones(count, bool)
    found: list[tuple[int, int, float]] = []
    chain: list[int] = []
    while len(found) < count - 1:
        if not chain:
            chain.append(int(np.argmax(alive)))
        while True:
            last = chain[-1]
            nearest = int(np.argmin(distances[last]))
            before = chain[-2] if len(chain) > 1 else -1
            # A tie must go back along the chain, or it would never end.
            if before >= 0 and distances[last, before] <= distances[last, nearest]:
                break
            chain.append(nearest)
        one, other = sorted((chain.pop(), chain.pop()))
        found.append((one, other, float(distances[one, other])))
        total = sizes[one] + sizes[other]
        row = (sizes[one] * distances[one] + sizes[other] * distances[other]) / total
        distances[one] = distances[:, one] = row
        distances[one, one] = np.inf
        distances[other] = distances[:, other] = np.inf
        sizes[one], alive[other] = total, False
    return sorted(found, key=lambda merge: merge[2])


def centroids(
    voices: NDArray[np.float32],
    seconds: NDArray[np.float32],
    *,
    threshold: float,
    least: int = 1,
    most: int | None = None,
) -> NDArray[np.float32]:
    """Return the mean voice of each speaker as a unit vector, float32 ``[speakers, width]``.

    Args:
        voices: unit vectors, float32 ``[voices, width]``.
        seconds: how long each was heard.
        threshold: clusters that are farther apart are different speakers.
        least, most: bounds of the number of speakers; fewer are found if there are fewer voices.
    """
    if len(voices) > _MOST:
        # The longest of each stretch, so that a speaker of a few minutes is among them.
        edges = np.linspace(0, len(voices), _MOST + 1).astype(int)
        kept = [a + int(np.argmax(seconds[a:b])) for a, b in pairwise(edges)]
        voices, seconds = voices[kept], seconds[kept]
    distances = 1.0 - voices @ voices.T
    members = _cut(merges(distances), seconds, threshold, least, most)
    means = np.stack([(voices[m] * seconds[m, None]).sum(axis=0) for m in members])
    unit: NDArray[np.float32] = means / np.linalg.norm(means, axis=1, keepdims=True).clip(1e-9)
    return unit.astype(np.float32)


def _cut(
    merged: list[tuple[int, int, float]],
    seconds: NDArray[np.float32],
    threshold: float,
    least: int,
    most: int | None,
) -> list[list[int]]:
    """Return the members of each speaker's cluster.

    Small clusters are mistakes of the segmentation, and no speakers.
    """
    small = min(_SMALL_SECONDS, _SMALL_SHARE * float(seconds.sum()))
    clusters = {number: [number] for number in range(len(seconds))}
    lengths: dict[int, float] = dict(enumerate(seconds.tolist()))

    def speakers() -> list[list[int]]:
        return [members for number, members in clusters.items() if lengths[number] >= small]

    best = speakers()
    for one, other, distance in merged:
        if distance > threshold and (most is None or len(best) <= most):
            break
        clusters[one] = clusters[one] + clusters.pop(other)
        lengths[one] += lengths.pop(other)
        now = speakers()
        # Fewer than the least are taken only until there are enough.
        if len(now) >= least or len(now) >= len(best):
            best = now
        elif len(best) >= least:
            break
    return best or list(clusters.values())

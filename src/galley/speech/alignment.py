"""Forced alignment: the time of each token of a text, from the decoder's cross-attention.

The method is openai/whisper's (``timing.py``). The cross-attention weights of the alignment heads are
normalized over the tokens, smoothed and averaged over the heads; dynamic time warping (DTW) finds the best
monotonic path of tokens through the encoder's rows. A row is one position of the encoder's output, 20 ms of
audio in Whisper.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.types.audio import Alignment

_FILTER: Final = 7
"""Width of the median filter in rows; ``median_filter_width`` of Whisper's checkpoints."""
_BOTH, _TOKEN, _ROW = range(3)
"""Steps of the path: one token and one row, one token, or one row."""


def token_times(
    alignment: Alignment, tokens: int, seconds: float, row_seconds: float
) -> list[float]:
    """Return the start of each token of a text and the end of the last, in seconds of the encoder input.

    Args:
        alignment: alignment of a prompt that ends with the text and one more token.
        tokens: number of tokens in the text.
        seconds: seconds of audio in the encoder input; the rest is padding.
        row_seconds: seconds from one row to the next.

    Returns:
        ``tokens + 1`` times, ascending.
    """
    shape = (alignment.tokens, alignment.heads, alignment.rows)
    weights = np.frombuffer(alignment.data, "<f4").reshape(shape)
    matrix = affinity(weights[..., : max(1, int(seconds / row_seconds))])
    # The decoder attends to a token's audio while it reads the previous token.
    return [row * row_seconds for row in first_rows(matrix[-tokens - 2 : -1]).tolist()]


def affinity(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute how strongly each token is tied to each row, averaged over the heads.

    Args:
        weights: ``[tokens, heads, rows]``, as in :class:`galley.types.audio.Alignment`, for the rows
            that contain audio. Weights are normalized over all these tokens, including those of the prompt
            before the text.

    Returns:
        ``[tokens, rows]``: the number of standard deviations that a weight is above the mean of its row.
    """
    total = np.zeros(weights.shape[::2], np.float32)
    for head in range(weights.shape[1]):
        of_head = weights[:, head]
        deviation = of_head.std(axis=0)
        # A row with equal weights, for example zeros, has no information about tokens.
        scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
        total += _smooth((of_head - of_head.mean(axis=0)) * scale)
    total /= weights.shape[1]
    return total


def _smooth(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Apply a median filter along the last axis, whose ends are mirrored."""
    half, count = _FILTER // 2, values.shape[-1]
    if count <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    shifted = [padded[..., i : i + count] for i in range(_FILTER)]
    # Median by elimination: among one more than half of the values, neither the smallest nor the largest
    # can be the median. Both are dropped and the next value is added, until one is left. This is faster
    # than sorting whole arrays.
    kept, others = shifted[: half + 1], shifted[half + 1 :]
    for other in others:
        kept.append(other)
        for i in range(1, len(kept)):
            kept[0], kept[i] = np.minimum(kept[0], kept[i]), np.maximum(kept[0], kept[i])
        for i in range(1, len(kept) - 1):
            kept[-1], kept[i] = np.maximum(kept[-1], kept[i]), np.minimum(kept[-1], kept[i])
        kept = kept[1:-1]
    return kept[0]


def first_rows(matrix: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the first row of each token on the DTW path with the greatest sum.

    The path leads from the first token and row to the last ones; each step advances by a token, a row or
    both. Of equally good paths, it is the one that openai/whisper and transformers choose.

    Args:
        matrix: ``[tokens, rows]``, finite; see :func:`affinity`.

    Returns:
        ``[tokens]``, ascending.
    """
    steps = _steps(matrix)
    first = np.empty(len(matrix), np.int64)
    token, row = len(matrix) - 1, matrix.shape[1] - 1
    while token >= 0:
        first[token] = row
        step = steps[token + row, token]
        token -= step != _ROW
        row -= step != _TOKEN
    return first


def _steps(matrix: NDArray[np.float32]) -> NDArray[np.int8]:
    """Return the last step of the best path to each (token, row).

    Cells of an anti-diagonal depend only on the two previous ones, so numpy computes each at once.

    Returns:
        ``[tokens + rows - 1, tokens]``; the step to (token, row) is at ``[token + row, token]``.
    """
    tokens, rows = matrix.shape
    # Each token's costs are shifted by a column from the previous token's: columns are anti-diagonals.
    costs = np.full((tokens, tokens + rows), np.inf, np.float32)
    costs[:, :rows] = -matrix
    width = tokens + rows - 1
    costs = np.ascontiguousarray(costs.reshape(-1)[: tokens * width].reshape(tokens, width).T)
    steps = np.empty((width, tokens), np.int8)
    # Costs of the best paths to the last anti-diagonal and the one before it; none lead to "token -1".
    last, before = (np.full(tokens + 1, np.inf, np.float32) for _ in range(2))
    before[0] = 0.0
    for diagonal, step in zip(costs, steps, strict=True):
        both, by_token, by_row = before[:-1], last[:-1], last[1:]
        best = np.minimum(by_token, by_row)
        step[:] = np.where(by_token < np.minimum(both, by_row), _TOKEN, _ROW)
        step[both < best] = _BOTH
        paths = np.choose(step, (both, by_token, by_row))
        before, last = last, np.concatenate(([np.float32(np.inf)], diagonal + paths))
    return steps

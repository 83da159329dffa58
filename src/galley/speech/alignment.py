"""When each token of a text is said: the likeliest way of the decoder's attention through the window.

The method is openai/whisper's (``timing.py``): what is peculiar to a token in the weights of the heads that
follow the speech, smoothed, and dynamic time warping over it.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from galley.audio import Alignment

_FILTER: Final = 7
"""Rows of the median filter; ``median_filter_width`` of Whisper's checkpoints."""
_BOTH, _TOKEN, _ROW = range(3)
"""What a step of the way goes on by."""


def token_times(
    alignment: Alignment, tokens: int, seconds: float, row_seconds: float
) -> list[float]:
    """Where each token of a text begins and where the last one ends, in seconds of the window.

    Args:
        alignment: of a prompt that ends in the text and one token after it.
        tokens: of the text.
        seconds: of sound in the window; what is beyond is padding.
        row_seconds: from one row to the next.
    """
    shape = (alignment.tokens, alignment.heads, alignment.rows)
    weights = np.frombuffer(alignment.data, "<f4").reshape(shape)
    belongs = affinity(weights[..., : max(1, int(seconds / row_seconds))])
    # The decoder looks where a token is said when it reads the one before.
    return [row * row_seconds for row in first_rows(belongs[-tokens - 2 : -1]).tolist()]


def affinity(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """How much each token belongs to each row of the window, all heads taken together.

    Args:
        weights: [tokens, heads, rows], as :class:`galley.audio.Alignment` has them, of the rows that hold
            sound. Tokens of the prompt that take part are those that a weight is judged against.

    Returns:
        [tokens, rows]; the mean over the heads of how far a weight is above those of the other tokens, in
        standard deviations.
    """
    total = np.zeros(weights.shape[::2], np.float32)
    for head in range(weights.shape[1]):
        of_head = weights[:, head]
        deviation = of_head.std(axis=0)
        # Where all tokens are alike, as those are that get nothing, the row says nothing.
        scale = np.divide(1, deviation, out=np.zeros_like(deviation), where=deviation > 0)
        total += _smooth((of_head - of_head.mean(axis=0)) * scale)
    total /= weights.shape[1]
    return total


def _smooth(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The median of each value and its neighbours along the last axis, whose ends are mirrored."""
    half, count = _FILTER // 2, values.shape[-1]
    if count <= half:
        return values
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(half, half)], mode="reflect")
    shifted = [padded[..., i : i + count] for i in range(_FILTER)]
    # Of one value more than half of them, neither the least nor the greatest can be the median: they make
    # room for the next, until one is left. On whole arrays that is faster than sorting.
    kept, others = shifted[: half + 1], shifted[half + 1 :]
    for other in others:
        kept.append(other)
        for i in range(1, len(kept)):
            kept[0], kept[i] = np.minimum(kept[0], kept[i]), np.maximum(kept[0], kept[i])
        for i in range(1, len(kept) - 1):
            kept[-1], kept[i] = np.maximum(kept[-1], kept[i]), np.minimum(kept[-1], kept[i])
        kept = kept[1:-1]
    return kept[0]


def first_rows(belongs: NDArray[np.float32]) -> NDArray[np.int64]:
    """Where each token begins on the way from the first token and row to the last that belongs best.

    A step goes on by a token, a row or both. Of ways that are equally good it takes the one that
    openai/whisper and transformers take.

    Args:
        belongs: [tokens, rows], finite.

    Returns:
        [tokens] rows, ascending.
    """
    steps = _steps(belongs)
    first = np.empty(len(belongs), np.int64)
    token, row = len(belongs) - 1, belongs.shape[1] - 1
    while token >= 0:
        first[token] = row
        step = steps[token + row, token]
        token -= step != _ROW
        row -= step != _TOKEN
    return first


def _steps(belongs: NDArray[np.float32]) -> NDArray[np.int8]:
    """[tokens + rows - 1, tokens]: the last step of the best way to (token, row), at (token + row, token).

    Cells of one anti-diagonal depend on the two before it alone, so numpy takes each at once.
    """
    tokens, rows = belongs.shape
    # Each token's costs begin one column after those of the token before: columns are anti-diagonals.
    costs = np.full((tokens, tokens + rows), np.inf, np.float32)
    costs[:, :rows] = -belongs
    width = tokens + rows - 1
    costs = np.ascontiguousarray(costs.reshape(-1)[: tokens * width].reshape(tokens, width).T)
    steps = np.empty((width, tokens), np.int8)
    # Of ways that end on the anti-diagonal, and on the one before; in front of the first token are none.
    last, before = (np.full(tokens + 1, np.inf, np.float32) for _ in range(2))
    before[0] = 0.0
    for diagonal, step in zip(costs, steps, strict=True):
        both, by_token, by_row = before[:-1], last[:-1], last[1:]
        best = np.minimum(by_token, by_row)
        step[:] = np.where(by_token < np.minimum(both, by_row), _TOKEN, _ROW)
        step[both < best] = _BOTH
        ways = np.choose(step, (both, by_token, by_row))
        before, last = last, np.concatenate(([np.float32(np.inf)], diagonal + ways))
    return steps

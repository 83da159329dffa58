"""Models whose texts are known in advance, with prompts that predict them to a chosen degree.

Attention and feed-forward layers add next to nothing to a chain model's embeddings, and row ``n`` of its
head is the embedding of the token before ``n`` in a cycle. So the model generates the cycle's tokens in
order, regardless of quantization, at the cost of any model of its shape. A prompt that contains a stretch
of the cycle, with errors, suits prompt lookup: the errors set how often its draft tokens are right.
"""

import random
from typing import Final

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
"""Bits of bfloat16 values."""

STRIDE: Final = 7919
"""Step from a token to the next. A prime visits all of a vocabulary that it does not divide."""
FIRST: Final = 300
"""Lower ids are bytes and special tokens."""


FAINT: Final = np.float32(1e-3)
"""Factor of the layers that add to the embeddings."""


def head_of(embedding: Bits) -> Bits:
    """Return [vocabulary, width]: the row that selects a token is the embedding of the preceding token."""
    return np.roll(embedding, STRIDE, axis=0)


def faint(bits: Bits) -> Bits:
    """Return a layer's weights, which contribute next to nothing."""
    values = (bits.astype(np.uint32) << 16).view(np.float32) * FAINT
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def next_token(token: int, vocab_size: int) -> int:
    """Return the token that a chain model generates after a token."""
    return (token + STRIDE) % vocab_size


def stretch(first: int, count: int, vocab_size: int) -> list[int]:
    """Return ``count`` tokens of the cycle, starting with ``first``."""
    return [(first + i * STRIDE) % vocab_size for i in range(count)]


def predicting_prompt(
    count: int, rate: float, vocab_size: int, seed: int
) -> tuple[list[int], list[int]]:
    """Return a prompt and the ``count`` tokens that follow it.

    The prompt is some tokens of the cycle, then their successors, each replaced with probability
    ``1 - rate`` by a token from elsewhere, then the first ones again, which a lookup finds.
    """
    rng = random.Random(seed)
    start = rng.randrange(FIRST, vocab_size)
    lead = stretch(start, 8, vocab_size)
    text = stretch(next_token(lead[-1], vocab_size), count, vocab_size)
    known = {*lead, *text}
    others = [token for token in range(FIRST, vocab_size) if token not in known]
    wrong = rng.sample(others, count + 1)
    copied = [token if rng.random() < rate else wrong.pop() for token in text]
    return [*lead, *copied, wrong.pop(), *lead], text

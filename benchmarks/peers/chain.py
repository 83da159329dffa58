"""Models whose texts are known beforehand, and prompts that foretell them as well as is wanted.

Attention and feed-forward layers add next to nothing to a chain model's embeddings, and row ``n`` of its
head is the embedding of the token before ``n`` in a cycle. So it says one token after another of that
cycle, whatever its weights are rounded to, at the cost of any model of its shape. A prompt that holds a
stretch of the cycle, with errors, is what prompt lookup lives on: how often its guesses are right is set by
the errors.
"""

import random
from typing import Final

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
"""Of bfloat16."""

STRIDE: Final = 7919
"""From a token to the next one. A prime: all of a vocabulary that it does not divide is visited."""
FIRST: Final = 300
"""Below are bytes and special tokens."""


FAINT: Final = np.float32(1e-3)
"""What the layers that add to the embeddings are multiplied by."""


def head_of(embedding: Bits) -> Bits:
    """[vocabulary, width]: the row that a token is drawn by is the embedding of the one before it."""
    return np.roll(embedding, STRIDE, axis=0)


def faint(bits: Bits) -> Bits:
    """A layer's weights that add next to nothing."""
    values = (bits.astype(np.uint32) << 16).view(np.float32) * FAINT
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def next_token(token: int, vocab_size: int) -> int:
    """What a chain model says after a token."""
    return (token + STRIDE) % vocab_size


def stretch(first: int, count: int, vocab_size: int) -> list[int]:
    """So many tokens of the cycle from ``first`` on."""
    return [(first + i * STRIDE) % vocab_size for i in range(count)]


def foretelling(count: int, rate: float, vocab_size: int, seed: int) -> tuple[list[int], list[int]]:
    """A prompt, and the ``count`` tokens that follow it.

    The prompt is some tokens of the cycle, those that follow them, each with the probability ``1 - rate``
    replaced by a token from elsewhere, and the first ones again, which a lookup finds.
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

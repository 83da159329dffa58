"""How another library is to draw tokens: a request's parameters within the ranges that libraries take."""

from typing import Final, NamedTuple

from galley.types import SamplingParams

_LEAST_TEMPERATURE: Final = 1e-30
"""Libraries divide by it in float32, where logits divided by less can be infinite."""


class Drawing(NamedTuple):
    """How a token is drawn. A ``top_k`` of 0 keeps all tokens, and a ``top_p`` of 1 does."""

    temperature: float
    top_k: int
    top_p: float


LIKELIEST: Final = Drawing(1.0, 1, 1.0)
"""Parameters with which the likeliest token is always drawn."""


def drawing(sampling: SamplingParams, vocab_size: int) -> Drawing:
    """Return how a request's tokens are drawn; :data:`LIKELIEST` if its parameters leave one token.

    Libraries refuse a ``top_k`` above the size of the vocabulary, which keeps all tokens.
    """
    temperature, top_k, top_p = sampling.temperature, sampling.top_k or 0, sampling.top_p
    if not temperature or top_p == 0 or top_k == 1 or sampling.min_p == 1:
        return LIKELIEST
    return Drawing(
        max(temperature, _LEAST_TEMPERATURE),
        top_k if 0 < top_k < vocab_size else 0,
        1.0 if top_p is None else top_p,
    )

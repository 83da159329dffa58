"""Names of mixed voices, as servers of Kokoro have them: ``af_bella+af_sky``, ``af_bella(2)+af_sky``."""

import re
from collections.abc import Iterable
from typing import Final

MOST_VOICES: Final = 8
"""Most voices of a mix."""

_PART: Final = re.compile(r"\s*([^+()\s]+)\s*(?:\(\s*(\d{1,6}(?:\.\d{1,6})?)\s*\))?\s*")


def parse_mix(name: str) -> list[tuple[str, float]] | None:
    """Return the voices of a mix and their weights, which are 1 where none is given; None: it is not a mix.

    Weights that sum to zero, and more than :data:`MOST_VOICES` voices, are not a mix.
    """
    texts = name.split("+", MOST_VOICES)
    if len(texts) > MOST_VOICES:
        return None
    parts = [_PART.fullmatch(text) for text in texts]
    mix = [(part[1], float(part[2] or 1)) for part in parts if part is not None]
    if len(mix) < len(parts) or not sum(weight for _, weight in mix):
        return None
    return mix


def mix_name(mix: Iterable[tuple[str, float]]) -> str:
    """Return the name of a mix, which :func:`parse_mix` reads."""
    return "+".join(voice if weight == 1 else f"{voice}({weight:f})" for voice, weight in mix)

"""Headers that state a time."""

import math
from collections.abc import Mapping
from typing import Final

from galley.errors import RequestError

_MOST_CHARACTERS: Final = 32


def time_in(
    headers: Mapping[str, str], name: str, default: float, *, unit: str, most: float
) -> float:
    """Return the number in a header.

    Args:
        headers: those of the request, by lower-case name.
        name: the header's name.
        default: what applies without the header.
        unit: the unit of the number, for the error.
        most: the largest number that is valid.

    Raises:
        RequestError: the header is not a number above 0 and at most ``most``.
    """
    given = headers.get(name)
    if given is None:
        return default
    try:
        number = float(given) if len(given) < _MOST_CHARACTERS else math.nan
    except ValueError:
        number = math.nan
    if not 0 < number <= most:
        raise RequestError(
            f"The header {name} is {given[:_MOST_CHARACTERS]!r}; expected {unit}, above 0 and at most "
            f"{most:.0f}",
            param=name,
        )
    return number

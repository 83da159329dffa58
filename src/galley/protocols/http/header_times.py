"""Headers that state a time."""

import math
import re
from collections.abc import Mapping
from typing import Final

from galley.errors import RequestError

_MOST_CHARACTERS: Final = 32

_NUMBER: Final = re.compile(r"(?:[0-9]{1,16}\.?[0-9]{0,16}|\.[0-9]{1,16})(?:[eE][+-]?[0-9]{1,3})?")
"""Not all that Python takes for a number: neither ``1_0`` nor digits of other scripts."""


def time_in(
    headers: Mapping[str, str], name: str, default: float, *, unit: str, most: float
) -> float:
    """Return the number in a header.

    Args:
        headers: those of the request, by lower-case name.
        name: the header's name, in lower case.
        default: what applies without the header.
        unit: the unit of the number, for the error.
        most: the largest number that is valid.

    Raises:
        RequestError: the header is not a number above 0 and at most ``most``.
    """
    given = headers.get(name)
    if given is None:
        return default
    number = float(given) if _NUMBER.fullmatch(given.strip(" \t")) else math.nan
    if not 0 < number <= most:
        raise RequestError(
            f"The header {name} is {given[:_MOST_CHARACTERS]!r}; expected {unit}, above 0 and at most "
            f"{most:.0f}",
            param=name,
        )
    return number

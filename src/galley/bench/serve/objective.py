"""Service level objectives as text."""

import re
from typing import Final

from galley.errors import SettingsError

NAMES: Final = ("ttft", "tpot", "latency")
UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LIMIT: Final = re.compile(r"(\w+)\s*=\s*(\d+(?:\.\d+)?)\s*(us|ms|s)")


def parse_objective(text: str) -> dict[str, float]:
    """Parse ``ttft=1s,tpot=50ms``: metric -> most seconds; empty text means no objective.

    Raises:
        SettingsError: a part is of another form or names another metric.
    """
    objective = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _LIMIT.fullmatch(part)
        if match is None or match[1] not in NAMES:
            raise SettingsError(
                f"--slo: {part!r} is not METRIC=TIME; metrics are {', '.join(NAMES)}, "
                "times have a unit: ttft=1s,tpot=50ms"
            )
        objective[match[1]] = float(match[2]) * UNITS[match[3]]
    return objective

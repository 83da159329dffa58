"""The setting ``quality_gate``: how much quality a quantized model may lose and still be served."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from galley.errors import SettingsError

_LIMITS: Final[Mapping[str, str]] = {
    "kl": "mean KL divergence at most",
    "kl99": "99 % KL divergence at most",
    "top1": "same likeliest token at least",
}
"""Name of a limit -> its meaning; see :class:`galley.calibration.measures.Loss`."""


@dataclass(frozen=True, slots=True)
class QualityGate:
    """Limits that a served model must meet, compared with the checkpoint's own weights.

    Attributes:
        limits: maximum of ``kl`` and ``kl99`` (nats), minimum of ``top1`` (a share, 0 to 1).
    """

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str, *, against: str = "") -> Self:
        """Parse limits such as ``kl=0.02,top1=0.97``; an empty text sets no limit.

        Args:
            text: limits by name.
            against: the setting ``quality_gate_against``, which has no use without limits.

        Raises:
            SettingsError: a name is unknown or given twice, a number is out of range, or ``against`` is
                given without limits.
        """
        limits: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, number = part.partition("=")
            name = name.strip()
            if name not in _LIMITS or name in limits:
                raise SettingsError(
                    f"quality_gate {text!r}: {name!r} is {'given twice' if name in limits else 'unknown'}; "
                    f"known: {', '.join(_LIMITS)}, as in kl=0.02,top1=0.97"
                )
            limits[name] = _number(text, name, number)
        if against and not limits:
            raise SettingsError(
                f"quality_gate_against is {against}, but quality_gate sets no limits"
            )
        return cls(limits)

    def misses(self, figures: Mapping[str, float]) -> list[str]:
        """Return a description of each limit that the figures do not meet, matched by name."""
        return [
            f"{name} is {figures[name]:.3g}, {_LIMITS[name]} {limit:g}"
            for name, limit in self.limits.items()
            if not (figures[name] >= limit if name == "top1" else figures[name] <= limit)
        ]

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads."""
        return ",".join(f"{name}={limit:g}" for name, limit in self.limits.items())


def _number(text: str, name: str, number: str) -> float:
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    most = 1.0 if name == "top1" else math.inf
    if not (math.isfinite(limit) and 0 <= limit <= most):
        wanted = "a share from 0 to 1" if name == "top1" else "nats, at least 0"
        raise SettingsError(f"quality_gate {text!r}: {name} is {number!r}, expected {wanted}")
    return limit

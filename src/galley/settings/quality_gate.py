"""The setting ``quality_gate``: how much a quantised model may lose before it is not served."""

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
"""Name of a limit -> what it limits; see :class:`galley.calibration.measures.Loss`."""


@dataclass(frozen=True, slots=True)
class QualityGate:
    """What a served model must keep to, beside the checkpoint's own weights.

    Attributes:
        limits: of ``kl`` and ``kl99`` (nats) the most, of ``top1`` (a share, 0 to 1) the least.
    """

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str, *, against: str = "") -> Self:
        """Of ``kl=0.02,top1=0.97``; no limit for an empty text.

        Args:
            text: limits by their names.
            against: the setting ``quality_gate_against``, which is for nothing without limits.

        Raises:
            SettingsError: a name is unknown or given twice, a number out of range, or there are no limits
                for what is named to compare with.
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
        """The limits that figures of these names do not keep, in words."""
        return [
            f"{name} is {figures[name]:.3g}, {_LIMITS[name]} {limit:g}"
            for name, limit in self.limits.items()
            if not (figures[name] >= limit if name == "top1" else figures[name] <= limit)
        ]

    def __str__(self) -> str:
        """As :meth:`parse` reads it."""
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

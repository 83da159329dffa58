"""Distributions of prompt and answer lengths."""

import re
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np

from galley.errors import SettingsError

_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_FORMS: Final = {
    "fixed": re.compile(r"(\d+)"),
    "uniform": re.compile(r"(\d+)-(\d+)"),
    "normal": re.compile(rf"normal:{_NUMBER},{_NUMBER}"),
    "lognormal": re.compile(rf"lognormal:{_NUMBER},{_NUMBER}"),
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens, at least 1.

    Attributes:
        kind: "fixed", "uniform" over [first, second], "normal" or "lognormal".
        first: the length, the least length, the mean, or the median.
        second: the greatest length, the standard deviation, or the standard deviation of the logarithm.
    """

    kind: Literal["fixed", "uniform", "normal", "lognormal"]
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Parse ``512``, ``64-256``, ``normal:512,128`` (mean, deviation) or ``lognormal:256,0.8``.

        Args:
            text: the distribution; a log-normal one is given by median and deviation of the logarithm.
            name: name of the option, for the error.

        Raises:
            SettingsError: the text is none of these forms, or a length would be 0.
        """
        for kind, form in _FORMS.items():
            if match := form.fullmatch(text.strip()):
                numbers = [float(group) for group in match.groups()]
                if numbers[0] >= 1 and (kind != "uniform" or numbers[0] <= numbers[1]):
                    return cls(kind, *numbers)  # type: ignore[arg-type]  # keys are the kinds
        raise SettingsError(
            f"{name} is {text!r}; expected a length of at least 1 (512), a range (64-256), "
            "normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA"
        )

    def draw(self, random: np.random.Generator) -> int:
        """Return one random length."""
        match self.kind:
            case "fixed":
                return int(self.first)
            case "uniform":
                return int(random.integers(int(self.first), int(self.second), endpoint=True))
            case "normal":
                drawn = random.normal(self.first, self.second)
            case "lognormal":
                drawn = self.first * random.lognormal(0.0, self.second)
        return max(1, round(float(drawn)))

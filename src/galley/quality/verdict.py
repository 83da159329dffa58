"""Advice on a measured loss, in a sentence."""

from typing import Final

from galley.calibration.gate import figures_of
from galley.quality.compare import Measured
from galley.settings.quality_gate import QualityGate
from galley.types.weight_dtypes import INTEGERS

LIMITS: Final = QualityGate.parse("kl=0.02,top1=0.97")
"""The gate that the documentation suggests: above it, answers of small models change visibly."""


def verdict(measured: Measured) -> str:
    """Report whether the loss is within the suggested gate, and what to try where it is not."""
    side = measured.side
    misses = LIMITS.misses(figures_of(measured.loss))
    if not misses:
        return (
            f"{side.label}: within the suggested limits. Serve it, and hold it to them at each start with "
            f"--quality-gate {LIMITS}"
        )
    return f"{side.label}: outside the suggested limits ({'; '.join(misses)}). {_remedy(measured)}"


def _remedy(measured: Measured) -> str:
    side = measured.side
    if side.activations == "int8":
        return "Try --activations bfloat16 first: it costs speed in prefill but no memory"
    if (more := _next_wider(side.weights)) is not None:
        return f"Try weights of more bits (--weight-dtype {more}), or galley quantize --method gptq"
    return "Try weights of more bits, or serve the checkpoint as it is (--weight-dtype auto)"


def _next_wider(weights: str) -> str | None:
    """Return the integer type with the next more bits; None: there is none."""
    wider = INTEGERS[: INTEGERS.index(weights)] if weights in INTEGERS else ()
    return wider[-1] if wider else None

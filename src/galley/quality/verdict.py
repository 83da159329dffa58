"""Advice on a measured loss, in a sentence."""

from typing import Final

from galley.calibration.gate import figures_of
from galley.quality.compare import Measured
from galley.settings.quality_gate import QualityGate
from galley.types.weight_dtypes import INTEGERS, SIZES

LIMITS: Final = QualityGate.parse("kl=0.02,top1=0.97")
"""The gate that the documentation recommends: above it, answers of small models change visibly."""


def verdict(measured: Measured) -> str:
    """Report whether the loss is within the suggested gate, and what to try where it is not."""
    side = measured.side
    misses = LIMITS.misses(figures_of(measured.loss))
    if not misses:
        return (
            f"{side.label}: within the suggested limits. Serve it with --quality-gate {LIMITS} to check "
            "them at "
            f"each start"
        )
    return f"{side.label}: outside the suggested limits ({'; '.join(misses)}). {_remedy(measured)}"


def _remedy(measured: Measured) -> str:
    side = measured.side
    if side.activations == "int8":
        return "Try --activations bfloat16 first: it slows down prefill but costs no memory"
    if (more := _next_wider(side.weights)) is not None:
        return (
            f"Try weights with more bits (--weight-dtype {more}), or galley quantize --method gptq"
        )
    return "Try weights with more bits, or serve the checkpoint unquantized (--weight-dtype auto)"


def _next_wider(weights: str) -> str | None:
    """Return the integer type with the next more bits; None: there is none."""
    wider = INTEGERS[: INTEGERS.index(weights)] if weights in INTEGERS else ()
    return next((name for name in reversed(wider) if name in SIZES), None)

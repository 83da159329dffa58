"""Log which integers of a checkpoint no native kernel multiplies as they are, once, with the cost."""

import logging
from typing import Final

from galley.formats.weights import SUPER, WEIGHT_TYPES, WeightKind, Weights
from galley.graph.program import Program
from galley.machine import bytes_text
from galley.ops.kinds import own_kinds
from galley.ops.packing import packed_bytes

log: Final = logging.getLogger("galley.weights")


def log_converted(program: Program, weights: Weights) -> None:
    """Log which integer matrices of the checkpoint are converted to another type, and what that costs.

    Args:
        program: the program, with the weight types that its matrices are kept as.
        weights: the weights of the checkpoint.
    """
    converted: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for name, own in own_kinds(program, weights).items():
        kept = program.kinds[name]
        if kept != own:
            outputs, depth = weights.info(name).shape
            bytes_each = integer_bytes(own, outputs, depth), packed_bytes(kept, outputs, depth)
            converted.setdefault((str(own), str(kept)), []).append(bytes_each)
    for (was, becomes), sizes in converted.items():
        before, after = (bytes_text(sum(column)) for column in zip(*sizes, strict=True))
        cost = "no value changes" if becomes == "float32" else "values are rounded"
        log.info(
            "%d matrices are %s, for which there is no kernel: they are kept as %s (%s), %s "
            "instead of %s; set weight_dtype to choose another type",
            *(len(sizes), was, becomes, cost, after, before),
        )


def integer_bytes(kind: WeightKind, outputs: int, depth: int) -> int:
    """Return the bytes of a matrix of integers with scales, zero points and minima, without padding."""
    groups = outputs * -(-depth // (kind.group or depth))
    floats = 2 if kind.minima else 1
    bits = 4 if kind.name == "int4" else 8
    size = outputs * depth * bits // 8 + groups * kind.zeros
    if kind.scale_type == "F16xI8":
        return size + floats * (groups + 2 * outputs * -(-depth // SUPER))
    return size + floats * groups * WEIGHT_TYPES[kind.scale_type or "F32"]

"""The description of a served model's weights: their types, how they were made, and the loss."""

from collections.abc import Mapping
from typing import Any, Final

from galley.formats.quantization import QUANTIZED_KEY
from galley.formats.reader import CheckpointReader
from galley.formats.weights import Kinds, Weights
from galley.graph.program import Program
from galley.ops.executor import ExecutorOptions
from galley.ops.kinds import kinds_text, own_kinds, plan_kinds
from galley.types.model_info import WeightReceipt
from galley.types.weight_dtypes import INTEGERS

_OF_FILES: Final = ("F16", "F16xI8")
"""Scale types of integers in GGUF files; weights that are rounded while loading have others."""


def weight_receipt(checkpoint: CheckpointReader, program: Program, kinds: Kinds) -> WeightReceipt:
    """Return the receipt of a model whose matrices are kept as ``kinds``, with its loss if recorded."""
    own: Mapping[str, Any] = checkpoint.config.get(QUANTIZED_KEY) or {}
    names = {kind.name for kind in kinds.values()}
    rounded = "rtn" if names & set(INTEGERS) else "none"
    if any(kind.scale_type in _OF_FILES for kind in kinds.values()):
        rounded = "gguf"
    config = checkpoint.config.get("quantization_config") or {}
    method = own.get("method") or config.get("quant_method") or rounded
    return WeightReceipt(
        kind=kinds_text(program, kinds),
        method=str(method),
        calibration=str(own.get("calibration", "")),
        **{name: own[name] for name in ("kl", "kl99", "top1") if name in own},
    )


def held_kinds(
    executor: str, program: Program, weights: Weights, options: ExecutorOptions
) -> Kinds:
    """Return the weight type in which the executor of that name keeps each matrix."""
    own = own_kinds(program, weights)
    if executor == "cpu":
        from galley.ops.packing import has_kernel

        own = {name: kind for name, kind in own.items() if has_kernel(kind)}
    return plan_kinds(program, options.weight_dtype, own=own, chosen=options.kinds)

"""Choose the weight type of each matrix of a model, and the type that its inputs are rounded to."""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from galley.errors import SettingsError
from galley.formats.weights import Kinds, Weights, flat
from galley.graph.program import Program
from galley.quant.rtn import rounded_kind
from galley.types.weight_dtypes import INTEGERS, RUNNABLE, WEIGHT_DTYPES

_LEAST_SHARE: Final = 0.01
"""Smallest share of the parameters for which a weight type is reported."""

_MULTIPLY_BF16: Final = frozenset({"amx", "avx512"})
"""Instruction sets that multiply bfloat16; the others, such as ``avx512vnni``, widen it first."""


def plan_kinds(
    program: Program,
    weight_dtype: str,
    *,
    own: Kinds | None = None,
    chosen: Mapping[str, str] | None = None,
) -> Kinds:
    """Return the weight type of each matrix of the program and its encoder. No weights are needed.

    Args:
        program: the program that has the matrices.
        weight_dtype: weight type that dense matrices are converted to: "float32", "bf16", "f16", "int8" or
            "int4"; with the integer types, the routers of experts become bf16.
        own: matrices that are not dense in the checkpoint; they stay as they are.
        chosen: tensor name -> weight type, for dense matrices that are not converted to ``weight_dtype``.

    Raises:
        SettingsError: a name in ``chosen`` is not a matrix of the model.
    """
    own, chosen = own or {}, dict(chosen or {})
    for name in chosen:
        if name not in program.matrices:
            raise SettingsError(
                f"a weight type is given for {name}, which is not a matrix of the model"
            )
    if weight_dtype in INTEGERS:
        # A row that is routed to other experts gives a very different result, and routers are small.
        chosen = dict.fromkeys(program.routers, "bf16") | chosen
    shapes = program.all_shapes
    return {
        name: own.get(name) or rounded_kind(chosen.get(name, weight_dtype), flat(shapes[name])[1])
        for name in sorted(program.matrices)
    }


def own_kinds(program: Program, weights: Weights) -> Kinds:
    """Return the types of matrices that are not dense in the checkpoint, or are derived from such."""
    kinds = {name: weights.info(name).kind for name in program.matrices}
    return {n: k for n, k in kinds.items() if not k.is_dense or weights.is_rounded(n)}


def kinds_text(program: Program, kinds: Kinds) -> str:
    """Return a text such as ``int4 (group 128, BF16 scales) 80 %, bf16 20 %``.

    The share is left out if there is only one weight type.
    """
    parameters: Counter[str] = Counter()
    for name, kind in kinds.items():
        parameters[str(kind)] += math.prod(program.all_shapes[name])
    total = sum(parameters.values())
    reported = [(k, n / total) for k, n in parameters.most_common() if n / total >= _LEAST_SHARE]
    if len(reported) == 1:
        return reported[0][0]
    return ", ".join(f"{kind} {share:.0%}" for kind, share in reported)


def plan_activations(kinds: Kinds, weight_dtype: str, wanted: str, isa: str) -> Mapping[str, str]:
    """Return, for the name of each weight type that occurs, the input type on the native executor.

    A type without a kernel is left out: its matrices are rejected by name when they are packed. If
    several weight types are mixed, those that have no product with ``wanted`` are treated as with "auto".

    Args:
        kinds: weight types of all matrices.
        weight_dtype: the setting, for the error message.
        wanted: "float32", "bfloat16", "int8", or "auto" for the fastest type with ``isa``.
        isa: instruction set of the kernels.

    Raises:
        SettingsError: no matrix can be multiplied with ``wanted`` inputs.
    """
    names = {kind.name for kind in kinds.values()} & set(RUNNABLE) or {weight_dtype}
    if not takes_inputs(names, wanted):
        choose_activations(weight_dtype if weight_dtype in names else min(names), wanted, isa)
    return {
        name: choose_activations(
            name, wanted if wanted in WEIGHT_DTYPES[name].inputs else "auto", isa
        )
        for name in names
    }


def input_steps(program: Program, weights: Weights, wanted: str) -> Mapping[str, float]:
    """Return the checkpoint's static scales of the inputs of linear layers' matrices.

    There are none unless ``wanted`` is "auto": other settings say how to round inputs.
    """
    if wanted != "auto":
        return {}
    programs = [one for one in (program, program.encoder, program.aligner) if one is not None]
    linears = [op for one in programs for op in one.ops if op.name == "linear"]
    steps = {name: weights.input_step(name) for op in linears for name in op.weights["weight"]}
    return {name: step for name, step in steps.items() if step}


def takes_inputs(names: Collection[str], wanted: str) -> bool:
    """Return whether any weight type of these names can be multiplied with ``wanted`` inputs."""
    return wanted == "auto" or any(
        wanted in WEIGHT_DTYPES[name].inputs for name in names if name in RUNNABLE
    )


def main_activations(program: Program, activations: Mapping[str, str]) -> str:
    """Return the input type of most products of the program's linear layers; float32 if it has none."""
    products: Counter[str] = Counter()
    for op in program.ops:
        for role in op.signature.matrices if op.signature.multiplies else ():
            for name in op.weights[role]:
                size = op.for_a_row(math.prod(program.shapes[name]))
                products[activations[program.kinds[name].name]] += size
    return products.most_common(1)[0][0] if products else "float32"


def choose_activations(weight_dtype: str, wanted: str, isa: str) -> str:
    """Return the input type of linear layers: ``wanted``, or with "auto" the fastest with ``isa``.

    Raises:
        SettingsError: ``weight_dtype`` weights cannot be multiplied with ``wanted`` inputs.
    """
    choices = WEIGHT_DTYPES[weight_dtype].inputs
    if wanted == "auto":
        # Without bfloat16 instructions, values are widened first, so rounding them would be wasted work.
        widens = choices[0] == "bfloat16" and isa not in _MULTIPLY_BF16
        return "float32" if widens else choices[0]
    if wanted not in choices:
        raise SettingsError(
            f"activations is {wanted!r}, but executor 'cpu' multiplies {weight_dtype!r} weights only "
            f"with {' or '.join(choices)}; leave it out, or set weight_dtype to {_kinds_that_take(wanted)}"
        )
    return wanted


def _kinds_that_take(activations: str) -> str:
    types = (WEIGHT_DTYPES[name] for name in RUNNABLE)
    return " or ".join(one.name for one in types if activations in one.inputs and not one.layout)

"""Which kind each matrix of a model is kept as, and what its inputs become."""

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
"""Of the parameters; rarer kinds are not told."""

_MULTIPLY_BF16: Final = frozenset({"amx", "avx512"})
"""The instruction sets with products of bfloat16; the others, ``avx512vnni`` among them, widen it first."""


def plan_kinds(
    program: Program,
    quantize: str,
    *,
    own: Kinds | None = None,
    chosen: Mapping[str, str] | None = None,
) -> Kinds:
    """The kind of each matrix of the program and its encoder. No weights are needed.

    Args:
        program: whose matrices.
        quantize: what dense matrices become: "float32", "bf16", "f16", "int8" or "int4"; those that choose
            experts become bf16 beside integers.
        own: matrices that are not dense in the checkpoint; they stay as they are.
        chosen: tensor name -> as ``quantize``, for dense matrices that become something else.

    Raises:
        SettingsError: ``chosen`` names what is no matrix of the model.
    """
    own, chosen = own or {}, dict(chosen or {})
    for name in chosen:
        if name not in program.matrices:
            raise SettingsError(f"a kind is chosen for {name}, which is no matrix of the model")
    if quantize in INTEGERS:
        # A row whose experts are others is no longer near, and these matrices are small.
        chosen = dict.fromkeys(program.routers, "bf16") | chosen
    shapes = program.all_shapes
    return {
        name: own.get(name) or rounded_kind(chosen.get(name, quantize), flat(shapes[name])[1])
        for name in sorted(program.matrices)
    }


def own_kinds(program: Program, weights: Weights) -> Kinds:
    """The matrices that are not dense in the checkpoint, or stand for what is not."""
    kinds = {name: weights.info(name).kind for name in program.matrices}
    return {n: k for n, k in kinds.items() if not k.is_dense or weights.is_rounded(n)}


def kinds_text(program: Program, kinds: Kinds) -> str:
    """``int4 (group 128, BF16 scales) 80 %, bf16 20 %``; without a share if there is one kind."""
    parameters: Counter[str] = Counter()
    for name, kind in kinds.items():
        parameters[str(kind)] += math.prod(program.all_shapes[name])
    total = sum(parameters.values())
    told = [(k, n / total) for k, n in parameters.most_common() if n / total >= _LEAST_SHARE]
    if len(told) == 1:
        return told[0][0]
    return ", ".join(f"{kind} {share:.0%}" for kind, share in told)


def plan_activations(kinds: Kinds, quantize: str, wanted: str, isa: str) -> Mapping[str, str]:
    """Name of each kind that occurs -> what the inputs of such matrices become on the native executor.

    A kind without a kernel is left out: its matrices are refused by name when they are packed. Where
    several kinds are mixed, those that are not multiplied with what is ``wanted`` get what they would with
    "auto".

    Args:
        kinds: of all matrices.
        quantize: the setting, for the message.
        wanted: "float32", "bfloat16", "int8", or "auto": what ``isa`` is fastest with.
        isa: instruction set of the kernels.

    Raises:
        SettingsError: no matrix is multiplied with what is wanted.
    """
    names = {kind.name for kind in kinds.values()} & set(RUNNABLE) or {quantize}
    if not takes_inputs(names, wanted):
        choose_activations(quantize if quantize in names else min(names), wanted, isa)
    return {
        name: choose_activations(
            name, wanted if wanted in WEIGHT_DTYPES[name].inputs else "auto", isa
        )
        for name in names
    }


def takes_inputs(names: Collection[str], wanted: str) -> bool:
    """Return whether some kind of these names is multiplied with the wanted inputs."""
    return wanted == "auto" or any(
        wanted in WEIGHT_DTYPES[name].inputs for name in names if name in RUNNABLE
    )


def main_activations(program: Program, activations: Mapping[str, str]) -> str:
    """What most products of the program's linear layers are taken with; float32 if it has none."""
    products: Counter[str] = Counter()
    for op in program.ops:
        for role in op.signature.matrices if op.signature.multiplies else ():
            for name in op.weights[role]:
                size = op.for_a_row(math.prod(program.shapes[name]))
                products[activations[program.kinds[name].name]] += size
    return products.most_common(1)[0][0] if products else "float32"


def choose_activations(quantize: str, wanted: str, isa: str) -> str:
    """What the inputs of linear layers become: as ``wanted``, or with "auto" what ``isa`` is fastest with.

    Raises:
        SettingsError: there is no product of these with weights that are ``quantize``.
    """
    choices = WEIGHT_DTYPES[quantize].inputs
    if wanted == "auto":
        # Where no instruction multiplies bfloat16, it is widened first, and rounding to it wasted.
        widens = choices[0] == "bfloat16" and isa not in _MULTIPLY_BF16
        return "float32" if widens else choices[0]
    if wanted not in choices:
        raise SettingsError(
            f"activations is {wanted!r}, but executor 'cpu' multiplies weights that are {quantize!r} "
            f"with {' or '.join(choices)} alone: leave it out, or set weight_dtype to {_takers(wanted)}"
        )
    return wanted


def _takers(activations: str) -> str:
    return " or ".join(name for name in RUNNABLE if activations in WEIGHT_DTYPES[name].inputs)

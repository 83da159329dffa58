"""The tensors of safetensors files as typed weights: dense, or packed as the config specifies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from galley.errors import UnsupportedModel, shown
from galley.formats.awq import read_awq
from galley.formats.compressed_tensors import read_compressed_tensors
from galley.formats.fp8 import read_fp8
from galley.formats.gptq import read_gptq
from galley.formats.mxfp4 import read_mxfp4
from galley.formats.quantization import Section
from galley.formats.safetensors import StoredTensor
from galley.formats.stored import (
    BUFFERS,
    INPUT_SCALES,
    KV_SCALES,
    Matrix,
    Stored,
    UnpackedWeights,
    changes,
    read_floats,
)
from galley.formats.weights import Weights

ReadMatrices: TypeAlias = Callable[[Section, Stored], Mapping[str, Matrix]]

METHODS: Final[Mapping[str, ReadMatrices]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
    "mxfp4": read_mxfp4,
}
"""``quant_method`` -> the function that converts its tensors to the model's matrices."""


def typed_weights(
    quantization: Section | None,
    tensors: Mapping[str, StoredTensor],
    *,
    exact: bool = False,
    keeps_floats: bool = False,
) -> Weights:
    """Return the model's tensors, none of them unpacked yet.

    Args:
        quantization: the checkpoint's quantization; None if it has none.
        tensors: tensors of its files.
        exact: values that no kernel takes as they are stored (FP8) become float32, not the type of most of
            the dense tensors.
        keeps_floats: matrices of E4M3 and MXFP4 stay as they are stored, for an executor that multiplies
            them.

    Raises:
        CheckpointError: tensors contradict the quantization, or are neither floats nor part of it.
        UnsupportedModel: the quantization method is not supported.
    """
    stored = Stored(tensors, exact=exact, keeps_floats=keeps_floats)
    stored.take_matching(BUFFERS)
    notes = [*_kv_scales(stored)]
    matrices: Mapping[str, Matrix] = {}
    if quantization is not None:
        matrices = _method(quantization)(quantization, stored)
        matrices, of_inputs = _input_steps(stored, matrices)
        notes += of_inputs
    matrices = {**matrices, **stored.doubles()}
    notes += changes(matrices)
    return UnpackedWeights(stored.dense(), matrices, tuple(notes))


def _method(quantization: Section) -> ReadMatrices:
    name = quantization.word("quant_method", "")
    if name not in METHODS:
        raise UnsupportedModel(
            f"the checkpoint's quant_method is {shown(name)}, which is not supported; supported: "
            f"{', '.join(sorted(METHODS))}, and GGUF files"
        )
    return METHODS[name]


def _kv_scales(stored: Stored) -> list[str]:
    scales = stored.take_matching(KV_SCALES)
    if not scales:
        return []
    return [
        f"{len(scales)} scales of keys and values (such as {scales[0].name}) are not used: an int8 KV "
        "cache, the default for a kv_cache_scheme of 8 bits (kv_dtype auto), has a scale for each token "
        "and head"
    ]


def _input_steps(
    stored: Stored, matrices: Mapping[str, Matrix]
) -> tuple[Mapping[str, Matrix], list[str]]:
    """Return the matrices with the static scales of their inputs, and notes on what is done with these.

    Raises:
        CheckpointError: a scale is not one positive number.
    """
    made = dict(matrices)
    used: list[str] = []
    unused: list[str] = []
    for name, matrix in matrices.items():
        module = name.removesuffix(".weight")
        found = {kind: stored.take_any(f"{module}.{kind}") for kind in INPUT_SCALES}
        scale, zero = found.pop("input_scale"), found["input_zero_point"]
        middle = zero is None or not zero.data.any()
        if scale is not None and matrix.info.kind.name == "int8" and middle:
            made[name] = replace(matrix, input_step=_step(scale))
            used.append(scale.name)
        else:
            unused += [one.name for one in (scale, *found.values()) if one is not None]
    notes = []
    if used:
        notes.append(
            f"{len(used)} static scales of inputs (such as {used[0]}) are used where inputs are rounded to "
            "int8, unless activations is 'int8': then each token and group has its own scale"
        )
    if unused:
        notes.append(
            f"{len(unused)} static scales of inputs (such as {unused[0]}) are not used, as they have zero "
            "points, or weights that are not int8: if inputs are rounded to int8 (activations), each token "
            "has its own scale, so no value is clipped"
        )
    return made, notes


def _step(scale: StoredTensor) -> float:
    values = read_floats(scale)
    if values.size != 1 or not values.reshape(-1)[0] > 0:
        raise scale.wrong(
            f"has shape {list(scale.shape)}, expected one positive scale for all inputs"
        )
    return float(values.reshape(-1)[0])

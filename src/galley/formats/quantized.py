"""The tensors of safetensors files as typed weights: dense, or packed as the config specifies."""

from collections.abc import Callable, Mapping
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
    keeps_fp8: bool = False,
) -> Weights:
    """Return the model's tensors, none of them unpacked yet.

    Args:
        quantization: the checkpoint's quantization; None if it has none.
        tensors: tensors of its files.
        exact: values that no kernel takes as they are stored (FP8) become float32, not the type of most of
            the dense tensors.
        keeps_fp8: matrices of E4M3 stay as they are stored, for an executor that multiplies them.

    Raises:
        CheckpointError: tensors contradict the quantization, or are neither floats nor part of it.
        UnsupportedModel: the quantization method is not supported.
    """
    stored = Stored(tensors, exact=exact, keeps_fp8=keeps_fp8)
    stored.take_matching(BUFFERS)
    notes = [*_kv_scales(stored)]
    matrices: Mapping[str, Matrix] = {}
    if quantization is not None:
        matrices = _method(quantization)(quantization, stored)
        notes += _input_scales(stored, matrices)
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


def _input_scales(stored: Stored, matrices: Mapping[str, Matrix]) -> list[str]:
    modules = [name.removesuffix(".weight") for name in matrices]
    names = [f"{module}.{scale}" for module in modules for scale in INPUT_SCALES]
    found = [name for name in names if stored.take_any(name) is not None]
    if not found:
        return []
    return [
        f"{len(found)} static scales of inputs (such as {found[0]}) are not used: if inputs are rounded "
        "to int8 (activations), each token has its own scale, so no value is clipped"
    ]

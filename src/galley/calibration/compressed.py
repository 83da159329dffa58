"""Writer of compressed-tensors checkpoints, which vLLM and transformers read.

https://github.com/vllm-project/compressed-tensors. Where inputs stay floats the format is "pack-quantized":
a matrix of integers is several tensors, ``weight_packed`` (int32 words, first columns in the lowest bits,
offset so that no integer is negative), ``weight_scale``, ``weight_shape``, and with zero points
``weight_zero_point``, packed along the outputs. Where inputs are int8, too, it is "int-quantized":
``weight`` (int8) and ``weight_scale``, and with static scales of inputs ``input_scale``.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from galley.files import complete_or_absent
from galley.formats.json_file import parse_json
from galley.formats.safetensors import read_header
from galley.formats.values import bf16_bits
from galley.formats.weights import DenseWeight, IntWeight
from galley.quant.grid import Scheme

FLOAT_INPUTS: Final = "float"
DYNAMIC_INPUTS: Final = "dynamic"
"""Types of linear layers' inputs: unchanged, or with a separate scale for each token."""

INDEX_FILE: Final = "model.safetensors.index.json"
_SUFFIX: Final = ".weight"
_WORD: Final = 4


class Raw(NamedTuple):
    """A tensor in the form of safetensors.

    Attributes:
        dtype: safetensors' name of the element type.
        shape: row-major.
        data: the bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def tensors_of(weight: IntWeight | DenseWeight, *, packed: bool = True) -> dict[str, Raw]:
    """Return a file's tensors for a weight, by name; only integers of 8 bits are not packed."""
    if isinstance(weight, DenseWeight):
        return {weight.name: Raw(weight.dtype, weight.shape, weight.data)}
    module = module_of(weight.name)
    if not packed:
        integers = Raw("I8", weight.shape, _bytes(weight.q))
        return {weight.name: integers, f"{module}.weight_scale": _scales(weight)}
    offset = np.uint8(0x80 if weight.bits == 8 else 0)
    unsigned: npt.NDArray[np.uint8] = np.bitwise_xor(_bytes(weight.q), offset)
    found = {
        f"{module}.weight_packed": _words(unsigned.reshape(weight.shape), weight.bits),
        f"{module}.weight_scale": _scales(weight),
        f"{module}.weight_shape": Raw("I64", (2,), _bytes(np.array(weight.shape, np.int64))),
    }
    if weight.zeros is not None:
        across = _words(weight.zeros.T, weight.bits)
        words = across.data.view(np.int32).reshape(across.shape).T
        found[f"{module}.weight_zero_point"] = Raw("I32", words.shape, _bytes(words))
    return found


def module_of(name: str) -> str:
    """Return the name of the module that has this weight."""
    return name.removesuffix(_SUFFIX)


def write_tensors(path: Path, tensors: Mapping[str, Raw]) -> None:
    """Write a safetensors file, atomically.

    Raises:
        OSError: it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, raw in tensors.items():
        begin, end = end, end + raw.data.nbytes
        header[name] = {"dtype": raw.dtype, "shape": raw.shape, "data_offsets": (begin, end)}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with complete_or_absent(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for raw in tensors.values():
            file.write(raw.data.tobytes() if raw.data.ndim != 1 else raw.data.data)


def names_in(path: Path) -> list[str]:
    """Return the names of a safetensors file's tensors.

    Raises:
        CheckpointError: the file cannot be read, or its header is wrong.
    """
    header = parse_json(read_header(path), path, "header")
    return [name for name in header if name != "__metadata__"]


def quantization_config(
    schemes: Mapping[str, Scheme], ignored: Sequence[str], inputs: str = FLOAT_INPUTS
) -> dict[str, Any]:
    """Return ``quantization_config`` of ``config.json``.

    Args:
        schemes: tensor -> how it was quantized, whole rows where groups do not divide them.
        ignored: linear layers that were not.
        inputs: FLOAT_INPUTS, DYNAMIC_INPUTS, or the observer that found the static scale of each layer.
    """
    form = "pack-quantized" if inputs == FLOAT_INPUTS else "int-quantized"
    by_scheme: dict[Scheme, list[str]] = {}
    for name, scheme in schemes.items():
        by_scheme.setdefault(scheme, []).append(module_of(name))
    groups = {}
    for number, (scheme, modules) in enumerate(by_scheme.items()):
        targets = ["Linear"] if len(by_scheme) == 1 else modules
        groups[f"group_{number}"] = {
            "targets": targets,
            "weights": {
                "num_bits": scheme.bits,
                "type": "int",
                "symmetric": scheme.symmetric,
                "strategy": "group" if scheme.group else "channel",
                "group_size": scheme.group or None,
                "dynamic": False,
            },
            "input_activations": _inputs(inputs),
            "output_activations": None,
            "format": form,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": [module_of(name) for name in ignored],
        "kv_cache_scheme": None,
    }


def _inputs(inputs: str) -> dict[str, Any] | None:
    if inputs == FLOAT_INPUTS:
        return None
    dynamic = inputs == DYNAMIC_INPUTS
    return {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token" if dynamic else "tensor",
        "dynamic": dynamic,
    }


def input_scale(scale: float) -> Raw:
    """Return the tensor ``input_scale`` of a layer: the size of one step of its inputs."""
    return Raw("F32", (1,), _bytes(np.array([scale], np.float32)))


def _scales(weight: IntWeight) -> Raw:
    """Return the scales in their type: bfloat16, or float16, which GGUF files have."""
    assert weight.scale_type in ("BF16", "F16")
    if weight.scale_type == "F16":
        return Raw("F16", weight.scales.shape, _bytes(weight.scales.astype(np.float16)))
    return Raw("BF16", weight.scales.shape, _bytes(bf16_bits(weight.scales)))


def _words(unsigned: npt.NDArray[np.uint8], bits: int) -> Raw:
    """Pack [rows, columns] of integers of ``bits`` bits into int32 words along the columns."""
    per_word = 8 * _WORD // bits
    padded = np.pad(unsigned, ((0, 0), (0, -unsigned.shape[1] % per_word)))
    packed = padded if bits == 8 else padded[:, 0::2] | padded[:, 1::2] << 4
    return Raw("I32", (len(packed), packed.shape[1] // _WORD), _bytes(packed))


def _bytes(values: "np.ndarray[Any, Any]") -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)

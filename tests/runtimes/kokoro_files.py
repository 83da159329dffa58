"""Tiny models of the form of Kokoro's: phonemes, a style and a speed to samples, and files of voices."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

STYLE = 256
SAMPLES_OF_PHONEME = 960
LENGTHS = 510
NAMES = ("am_ada", "bf_bea", "zf_zoe", "af_heart")


def model(
    path: Path, *, tokens: str = "tokens", speed: Any = TensorProto.FLOAT, **metadata: str
) -> Path:
    """Write a model whose sample is the sine of phoneme times style, in a length by its speed.

    Args:
        path: of the ``.onnx`` file.
        tokens: name of the input with the phonemes.
        speed: type of the input with the speed.
        metadata: of the model.
    """
    draw = np.random.default_rng(7)
    weights = {
        "rows": draw.standard_normal((256, SAMPLES_OF_PHONEME)).astype("f4"),
        "flat": np.array([1, 1, -1], "i8"),
        "out": np.array([-1], "i8"),
        "head": np.array([1, 1], "f4"),
        "axes": np.array([1], "i8"),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["rows", tokens], ["sounds"]),
        node("Reshape", ["sounds", "flat"], ["line"]),
        node("ReduceMean", ["style", "axes"], ["mean"], keepdims=1),
        node("Mul", ["line", "mean"], ["said"]),
        node("Cast", ["speed"], ["pace"], to=TensorProto.FLOAT),
        node("Reciprocal", ["pace"], ["length"]),
        node("Concat", ["head", "length"], ["scales"], axis=0),
        node("Resize", ["said", "", "scales"], ["paced"], mode="nearest"),
        node("Sin", ["paced"], ["sine"]),
        node("Reshape", ["sine", "out"], ["audio"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "kokoro",
        [
            value(tokens, TensorProto.INT64, [1, "phonemes"]),
            value("style", TensorProto.FLOAT, [1, STYLE]),
            value("speed", speed, [1]),
        ],
        [value("audio", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(made, metadata)
    onnx.save(made, path)
    return path


def styles(names: Sequence[str] = NAMES) -> dict[str, Any]:
    """Return voices of different styles, as Kokoro has them."""
    draw = np.random.default_rng(3)
    return {
        name: (draw.standard_normal((LENGTHS, 1, STYLE)) + number + 1).astype("f4")
        for number, name in enumerate(names)
    }


def write_archive(path: Path, voices: Mapping[str, Any]) -> Path:
    """Write voices as kokoro-onnx publishes them: numpy's archive, whatever the suffix."""
    with path.open("wb") as file:
        np.savez(file, **voices)
    return path

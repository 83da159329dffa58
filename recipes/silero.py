"""Rearrange Silero VAD's graph, so that its convolutions are products of large matrices.

    pip download --no-deps silero-vad==6.2.3 && unzip silero_vad-6.2.3-*.whl
    python -m recipes.silero silero_vad/data/silero_vad_16k_sequence.onnx

Each convolution of the original has one to four columns for a frame, and onnxruntime computes them frame by
frame. Here the neighbors that a kernel covers are concatenated, and all frames of a call are rows of one
product. The weights are the original's; the last convolution sees one column, so only the middle of its
kernel is kept.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

ORIGINAL: Final = "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85"
TARGET: Final = Path(__file__).parents[1] / "src/galley/speech/silero/silero_vad_16k_sequence.onnx"
_BINS: Final = 129
_MOST: Final = 1e-5
"""Largest difference of a probability from the original's."""

Weights = dict[str, NDArray[np.float32]]


def main() -> None:
    """Read, rearrange, compare, write."""
    parser = argparse.ArgumentParser(
        prog="python -m recipes.silero",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("original", type=Path)
    parser.add_argument("--target", type=Path, default=TARGET)
    arguments = parser.parse_args()
    data = arguments.original.read_bytes()
    if (digest := hashlib.sha256(data).hexdigest()) != ORIGINAL:
        parser.error(f"{arguments.original} has the digest {digest}, not {ORIGINAL}")
    made = rearranged(onnx.load_model_from_string(data)).SerializeToString()
    if (most := _difference(data, made)) > _MOST:
        raise SystemExit(f"a probability differs by {most:.1e}")
    arguments.target.write_bytes(made)
    print(f"sha256  {hashlib.sha256(made).hexdigest()}; probabilities differ by at most {most:.1e}")


def rearranged(original: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with matrix products in place of convolutions; inputs and outputs are the same."""
    weights = {one.name: numpy_helper.to_array(one) for one in original.graph.initializer}
    graph = _Graph()
    # Four windows of 256 samples, one every 128.
    graph.node("Pad", ["input", graph.ints("pads", [0, 0, 0, 64])], "padded", mode="reflect")
    graph.reshape("padded", "steps", [-1, 5, 128])
    windows = graph.gathered("steps", [(0, 4, 1), (1, 5, 1)])
    spectrum = graph.product(windows, "stft", weights["stft.forward_basis_buffer"][:, 0].T)
    real, imaginary = (graph.part(spectrum, 2, first, first + _BINS, 1) for first in (0, _BINS))
    power = graph.node("Add", [graph.square(real), graph.square(imaginary)], "power")
    x = graph.node("Sqrt", [power], "magnitude")
    for number, columns in enumerate((4, 4, 2)):
        stride = 1 if number == 0 else 2
        padded = graph.node(
            "Pad", [x, graph.ints(f"around{number}", [0, 1, 0, 0, 1, 0])], f"padded{number}"
        )
        taps = [(tap, tap + columns, stride) for tap in range(3)]
        x = graph.layer(graph.gathered(padded, taps), weights, number, slice(None))
    x = graph.layer(x, weights, 3, slice(1, 2))  # one column, between two of zeros
    _recurrence(graph, x, weights)
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "silero_vad_16k_sequence",
            original.graph.input,
            original.graph.output,
            graph.weights,
        ),
        opset_imports=original.opset_import,
        ir_version=original.ir_version,
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def _recurrence(graph: "_Graph", x: str, weights: Weights) -> None:
    lstm = [graph.weight(f"lstm{i}", weights[f"onnx::LSTM_{209 + i}"]) for i in range(3)]
    graph.nodes.append(
        helper.make_node("LSTM", [x, *lstm, "", "h", "c"], ["states", "hn", "cn"], hidden_size=128)
    )
    hidden = graph.node("Relu", [graph.reshape("states", "rows", [-1, 128])], "hidden")
    out = graph.product(hidden, "output", weights["output.weight"][0])
    bias = graph.weight("output.bias", weights["output.bias"])
    speech = graph.node("Sigmoid", [graph.node("Add", [out, bias], "logits")], "speech")
    graph.reshape(speech, "speech_probs", [-1])


class _Graph:
    """Nodes and weights; each method returns the name of what its node makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def weight(self, name: str, values: NDArray[Any]) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def ints(self, name: str, values: list[int]) -> str:
        self.weights.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
        return name

    def reshape(self, x: str, output: str, shape: list[int]) -> str:
        return self.node("Reshape", [x, self.ints(f"{output}.shape", shape)], output)

    def part(self, x: str, axis: int, first: int, end: int, step: int) -> str:
        name = f"{x}.{first}"
        bounds = [
            self.ints(f"{name}.{bound}", [value])
            for bound, value in (("first", first), ("end", end), ("axis", axis), ("step", step))
        ]
        return self.node("Slice", [x, *bounds], name)

    def gathered(self, x: str, ranges: list[tuple[int, int, int]]) -> str:
        """Concatenate the channels of several ranges (first, end, step) of the columns."""
        parts = [self.part(x, 1, *one) for one in ranges]
        return self.node("Concat", parts, f"{x}.gathered", axis=2)

    def square(self, x: str) -> str:
        return self.node("Mul", [x, x], f"{x}.square")

    def product(self, x: str, name: str, matrix: NDArray[np.float32]) -> str:
        return self.node("MatMul", [x, self.weight(f"{name}.matrix", matrix)], f"{name}.product")

    def layer(self, x: str, weights: Weights, number: int, taps: slice) -> str:
        """Apply an encoder layer to channels that ``gathered`` has concatenated."""
        name = f"encoder.{number}"
        kernel = weights[f"{name}.weight"][:, :, taps]  # [out, in, taps]
        matrix = kernel.transpose(2, 1, 0).reshape(-1, len(kernel))
        bias = self.weight(f"{name}.bias", weights[f"{name}.bias"])
        summed = self.node("Add", [self.product(x, name, matrix), bias], f"{name}.sum")
        return self.node("Relu", [summed], f"{name}.out")


def _difference(original: bytes, made: bytes) -> float:
    """Return the largest difference of the probabilities for noise of several levels, and silence."""
    chance = np.random.default_rng(0)
    level = np.repeat([0.0, 1e-3, 0.03, 0.3], 50)[:, None]
    frames = (chance.normal(size=(200, 576)) * level).astype(np.float32)
    state = {name: np.zeros((1, 1, 128), np.float32) for name in ("h", "c")}
    before, after = (
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"]).run(
            ["speech_probs"], {"input": frames, **state}
        )[0]
        for one in (original, made)
    )
    return float(np.abs(before - after).max())


if __name__ == "__main__":
    main()

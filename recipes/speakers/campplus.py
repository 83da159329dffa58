"""3D-Speaker's CAM++ (arXiv:2303.00332) as ONNX, with the input that its own exporter gives it.

It was trained on Chinese and English. Its input is a filter bank of 80 bands without its mean, its output a
voice of 192 numbers.
"""

from typing import Any, Final

import numpy as np
import onnx

from recipes.speakers.graph import Graph, Weights

BLOCKS: Final = ((12, 1), (24, 2), (16, 2))
"""Layers and dilation of each block."""
_SEGMENT: Final = 100
"""Frames whose mean is the context of each of them."""
_EPSILON: Final = 1e-5


class _Net:
    """CAM++ as a graph."""

    def __init__(self, weights: Weights) -> None:
        self.graph, self._weights = Graph(), weights

    def conv(self, x: str, name: str, **attributes: Any) -> str:
        inputs = [x, self.graph.weight(f"{name}.w", self._weights[f"{name}.weight"])]
        if f"{name}.bias" in self._weights:
            inputs.append(self.graph.weight(f"{name}.b", self._weights[f"{name}.bias"]))
        return self.graph.add("Conv", *inputs, **attributes)

    def norm(self, x: str, name: str) -> str:
        mean = self._weights[f"{name}.running_mean"]
        ones, zeros = np.ones_like(mean), np.zeros_like(mean)
        values = (
            self._weights.get(f"{name}.weight", ones),
            self._weights.get(f"{name}.bias", zeros),
            mean,
            self._weights[f"{name}.running_var"],
        )
        return self.graph.add(
            "BatchNormalization", x, *map(self.graph.constant, values), epsilon=_EPSILON
        )

    def active(self, x: str, name: str) -> str:
        """Add a norm and a ReLU."""
        return self.graph.add("Relu", self.norm(x, name))

    def residual(self, x: str, name: str, stride: int) -> str:
        step: dict[str, Any] = {"strides": [stride, 1]}
        y = self.conv(x, f"{name}.conv1", pads=[1, 1, 1, 1], **step)
        y = self.conv(self.active(y, f"{name}.bn1"), f"{name}.conv2", pads=[1, 1, 1, 1])
        y = self.norm(y, f"{name}.bn2")
        if f"{name}.shortcut.0.weight" in self._weights:
            x = self.norm(self.conv(x, f"{name}.shortcut.0", **step), f"{name}.shortcut.1")
        return self.graph.add("Relu", self.graph.add("Add", y, x))

    def context(self, x: str) -> str:
        """Return the mean of all frames plus that of each segment, repeated for its frames."""
        add, constant = self.graph.add, self.graph.constant
        one, two = constant(np.array([1], np.int64)), constant(np.array([2], np.int64))
        pads = constant(np.array([0, 0, 0, 0, 0, _SEGMENT - 1], np.int64))
        pool: dict[str, Any] = {"kernel_shape": [_SEGMENT], "strides": [_SEGMENT]}
        length = add("Gather", add("Shape", x), two)
        ones = add("Expand", constant(np.ones(1, np.float32)), add("Shape", x))
        sums, counts = (add("AveragePool", add("Pad", y, pads), **pool) for y in (x, ones))
        means = add("Unsqueeze", add("Div", sums, counts), constant(np.array([3], np.int64)))
        shape = add(
            "Concat", add("Shape", means, start=0, end=3), constant(np.array([_SEGMENT])), axis=0
        )
        flat = constant(np.array([0, 0, -1], np.int64))
        spread = add("Reshape", add("Expand", means, shape), flat)
        zero = constant(np.array([0], np.int64))
        spread = add("Slice", spread, zero, length, two, one)
        return add("Add", spread, add("ReduceMean", x, axes=[2], keepdims=1))

    def dense(self, x: str, name: str, dilation: int) -> str:
        y = self.conv(self.active(x, f"{name}.nonlinear1.batchnorm"), f"{name}.linear1")
        y = self.active(y, f"{name}.nonlinear2.batchnorm")
        local = self.conv(
            y, f"{name}.cam_layer.linear_local", pads=[dilation] * 2, dilations=[dilation]
        )
        gate = self.graph.add("Relu", self.conv(self.context(y), f"{name}.cam_layer.linear1"))
        gate = self.graph.add("Sigmoid", self.conv(gate, f"{name}.cam_layer.linear2"))
        return self.graph.add("Concat", x, self.graph.add("Mul", local, gate), axis=1)

    def statistics(self, x: str) -> str:
        """Return mean and deviation over time, ``[batch, 2 channels]``."""
        add = self.graph.add
        mean = add("ReduceMean", x, axes=[2], keepdims=1)
        square = add("ReduceMean", add("Mul", *2 * (add("Sub", x, mean),)), axes=[2], keepdims=0)
        length = add("Cast", add("Gather", add("Shape", x), self.graph.constant(np.array(2))), to=1)
        less = add("Sub", length, self.graph.constant(np.array(1, np.float32)))
        deviation = add("Sqrt", add("Mul", square, add("Div", length, less)))
        flat = add("Squeeze", mean, self.graph.constant(np.array([2], np.int64)))
        return add("Concat", flat, deviation, axis=1)


def campplus(weights: Weights) -> onnx.ModelProto:
    """Return CAM++ as ONNX: filter banks ``[batch, frames, 80]`` to voices ``[batch, 192]``."""
    net = _Net(weights)
    graph = net.graph
    x = graph.add("Transpose", "feature", perm=[0, 2, 1])
    x = graph.add("Unsqueeze", x, graph.constant(np.array([1], np.int64)))
    x = net.active(net.conv(x, "head.conv1", pads=[1, 1, 1, 1]), "head.bn1")
    for layer in (1, 2):
        for number in (0, 1):
            x = net.residual(x, f"head.layer{layer}.{number}", 2 - number)
    x = net.active(net.conv(x, "head.conv2", pads=[1, 1, 1, 1], strides=[2, 1]), "head.bn2")
    channels = weights["xvector.tdnn.linear.weight"].shape[1]
    x = graph.add("Reshape", x, graph.constant(np.array([0, channels, -1], np.int64)))
    x = net.conv(x, "xvector.tdnn.linear", pads=[2, 2], strides=[2])
    x = net.active(x, "xvector.tdnn.nonlinear.batchnorm")
    for block, (layers, dilation) in enumerate(BLOCKS, 1):
        for layer in range(1, layers + 1):
            x = net.dense(x, f"xvector.block{block}.tdnnd{layer}", dilation)
        name = f"xvector.transit{block}"
        x = net.conv(net.active(x, f"{name}.nonlinear.batchnorm"), f"{name}.linear")
    x = net.statistics(net.active(x, "xvector.out_nonlinear.batchnorm"))
    dense = weights["xvector.dense.linear.weight"].squeeze(-1)
    x = graph.add("MatMul", x, graph.weight("dense", dense.T))
    y = net.norm(x, "xvector.dense.nonlinear.batchnorm")
    about = {
        "framework": "3d-speaker",
        "sample_rate": "16000",
        "feature_normalize_type": "global-mean",
        "license": "Apache-2.0",
    }
    return graph.model(("feature", ["batch", "frames", 80]), (y, ["batch", len(dense)]), about)

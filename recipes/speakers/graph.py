"""ONNX graphs that are built node by node from the weights of torch's layers."""

from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

_OPSET: Final = 17

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

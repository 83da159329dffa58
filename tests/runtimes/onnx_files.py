"""Small ONNX models, written by onnx."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
FEATURES = 30


def _value(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def _save(
    path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], *weights: Any
) -> Path:
    graph = helper.make_graph(nodes, path.stem, inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _weights(name: str, *shape: int, seed: int = 0) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def perceptron(path: Path, *, rows: int | str = "batch", hidden: int = 64) -> Path:
    """Write a model from ``x`` [rows, 30] to ``y`` [rows, 3] and ``label`` [rows]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
        helper.make_node("ArgMax", ["y"], ["label"], axis=1, keepdims=0),
    ]
    outputs = [_value("y", [rows, 3]), _value("label", [rows], TensorProto.INT64)]
    weights = _weights("w1", FEATURES, hidden), _weights("w2", hidden, 3, seed=1)
    return _save(path, nodes, [_value("x", [rows, FEATURES])], outputs, *weights)


def identities(path: Path, *, without: str = "") -> Path:
    """Write a model with an input and output of every data type: ``in_T`` and ``out_T``, [batch, any]."""
    types = {name: kind for name, kind in TYPES.items() if name != without}
    inputs = [_value(f"in_{name}", ["batch", f"n_{name}"], kind) for name, kind in types.items()]
    outputs = [_value(f"out_{name}", ["batch", f"n_{name}"], kind) for name, kind in types.items()]
    nodes = [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in types]
    return _save(path, nodes, inputs, outputs)


def identity(path: Path, name: str) -> Path:
    """Write a model from ``x`` to ``y``, of one data type, [batch, any]."""
    shape = ["batch", "n"]
    node = helper.make_node("Identity", ["x"], ["y"])
    return _save(path, [node], [_value("x", shape, TYPES[name])], [_value("y", shape, TYPES[name])])


def lookup(path: Path) -> Path:
    """Write a model from ``ids`` [batch, length] to the mean ``y`` [batch, 4] of 8 vectors; others fail."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["y"], axes=[1], keepdims=0),
    ]
    ids = _value("ids", ["batch", "length"], TensorProto.INT64)
    return _save(path, nodes, [ids], [_value("y", ["batch", 4])], _weights("table", 8, 4))


def masked(path: Path, *, ignores_mask: bool = False) -> Path:
    """Write a model of ``ids`` and ``mask`` [batch, length], of 8 vectors.

    Its outputs are ``vectors`` [batch, length, 4], and their mean ``y`` [batch, 4] where the mask is 1.
    """
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["vectors"]),
        helper.make_node("Cast", ["mask"], ["given"], to=TensorProto.FLOAT),
        helper.make_node("Pow", ["given", "power"], ["weights"]),
        helper.make_node("Unsqueeze", ["weights", "last"], ["columns"]),
        helper.make_node("Mul", ["vectors", "columns"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "second"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "second"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["y"]),
    ]
    shape = ["batch", "length"]
    inputs = [_value(name, shape, TensorProto.INT64) for name in ("ids", "mask")]
    outputs = [_value("y", ["batch", 4]), _value("vectors", [*shape, 4])]
    power = np.array(0 if ignores_mask else 1, np.float32)
    constants = {"last": np.array([2]), "second": np.array([1]), "power": power}
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return _save(path, nodes, inputs, outputs, _weights("table", 8, 4), *weights)


def centered(path: Path) -> Path:
    """Write a model of ``x`` [rows, 2] minus the mean of its rows, which are therefore not a batch."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "mean"], ["y"]),
    ]
    return _save(path, nodes, [_value("x", ["rows", 2])], [_value("y", ["rows", 2])])


def sum_of_two(path: Path) -> Path:
    """Write a model of ``a`` [2, any] + ``b`` [2, any] = ``sum``; the first axis is fixed."""
    inputs = [_value("a", [2, "n"]), _value("b", [2, "n"])]
    return _save(
        path, [helper.make_node("Add", ["a", "b"], ["sum"])], inputs, [_value("sum", [2, "n"])]
    )


def volumes(path: Path) -> Path:
    """``x`` [batch, channel, depth, height, width] to ``y``, by a convolution of 3 channels."""
    shape = ["batch", "channel", "depth", "height", "width"]
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    weights = _weights("w", 2, 3, 1, 1, 1)
    return _save(path, [node], [_value("x", shape)], [_value("y", ["batch", 2, *"dhw"])], weights)


def a_sequence(path: Path) -> Path:
    """Write a model with an output that is a sequence of tensors."""
    node = helper.make_node("SequenceConstruct", ["x"], ["all"])
    out = helper.make_tensor_sequence_value_info("all", TensorProto.FLOAT, None)
    return _save(path, [node], [_value("x", ["batch", 2])], [out])


def with_external_data(file: Path) -> Path:
    """Write a perceptron whose weights are in another file, ``m.data``."""
    model = onnx.load(perceptron(file, hidden=256))
    onnx.save(model, file, save_as_external_data=True, location="m.data", size_threshold=0)
    return file

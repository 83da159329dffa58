"""Parts of an ONNX graph as models of their own (package ``onnx``)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from galley.errors import CheckpointError
from galley.runtimes.library import import_library
from galley.settings.engine_choice import VOICE_ENGINE

_PREFIX: Final = "galley/noise/"
"""Begins the names of values that are added to a graph."""


class Graph:
    """The graph of an ONNX model.

    Attributes:
        inputs, outputs: names of its inputs and outputs.
    """

    def __init__(self, onnx: Any, model: Any) -> None:
        """Wrap a parsed model; :meth:`read` calls this."""
        self._onnx = onnx
        self._model = model
        self._weights = {weight.name: weight for weight in model.graph.initializer}
        constants = (node.output for node in model.graph.node if node.op_type == "Constant")
        self._fixed = self._weights.keys() | {name for names in constants for name in names}
        self.inputs = [one.name for one in model.graph.input if one.name not in self._weights]
        self.outputs = [one.name for one in model.graph.output]

    @classmethod
    def read(cls, file: Path) -> "Graph":
        """Read a file; its weights must be in it.

        Raises:
            CheckpointError: it is no ONNX model.
            SettingsError: onnx is not installed.
        """
        onnx = import_library("onnx", VOICE_ENGINE, "voice")
        try:
            model = onnx.load(str(file), load_external_data=False)
        except Exception as error:  # protobuf's errors depend on its version
            raise CheckpointError(f"this is not an ONNX model: {error}", file=str(file)) from error
        if any(weight.external_data for weight in model.graph.initializer):
            raise CheckpointError("its weights are in other files; save it as one", file=str(file))
        return cls(onnx, model)

    def with_seed(self, name: str, table: "np.ndarray[Any, np.dtype[np.float32]]") -> "Graph":
        """Return the graph with a further input, a seed, on which all of its noise depends.

        Each op that draws noise in the shape of a value takes it from a table instead, at places that
        follow from the seed, the op and the element. Ops that draw noise of another kind are left as they
        are.

        Args:
            name: of the input, an int64 without axes.
            table: float32 ``[count]``: normally distributed numbers.
        """
        helper, onnx = self._onnx.helper, self._onnx
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        graph, nodes = model.graph, list[Any]()
        drawn = 0
        for node in graph.node:
            if node.op_type != "RandomNormalLike" or not _is_standard(onnx, node):
                nodes.append(node)
                continue
            nodes += _from_table(helper, node, name, drawn)
            drawn += 1
        del graph.node[:]
        graph.node.extend(nodes)
        own = {"table": table, "count": len(table), "zero": 0, "one": 1}
        own |= {f"offset_{n}": n * len(table) // drawn for n in range(drawn)}
        for key, value in own.items():
            array = np.asarray(value, np.float32 if key == "table" else np.int64)
            graph.initializer.append(onnx.numpy_helper.from_array(array, _PREFIX + key))
        graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []))
        return Graph(onnx, model)

    def whole(self) -> bytes:
        """Return the model."""
        data: bytes = self._model.SerializeToString()
        return data

    def input_of_weight(self, weight: str) -> str | None:
        """Return the value that the first op with this weight is applied to; None: there is no such op."""
        for node in self._model.graph.node:
            if weight in node.input[1:]:
                return str(node.input[0])
        return None

    def first_input_of(self, prefix: str) -> str | None:
        """Return the value that enters the ops whose weights begin with ``prefix``; None: there are none.

        It is the one that is not made by an op of the same scope, which exporters name after the module.
        """
        scope = "/" + prefix.partition(".")[0] + "/"
        inside = [node for node in self._model.graph.node if scope in node.name]
        known = self._fixed.union(*(node.output for node in inside))
        entering = (n for node in inside for n in node.input if n and n not in known)
        return next(map(str, entering), None)

    def after(
        self, inputs: Collection[str], outputs: Collection[str], *, stop: str | None = None
    ) -> tuple[list[Any], list[str]]:
        """Return the ops that depend on ``inputs`` and that ``outputs`` need, and the values they take.

        Args:
            inputs: names of values.
            outputs: names of values.
            stop: ops that depend on this value are left out.
        """
        reached, beyond = set(inputs), {stop} if stop else set()
        nodes = []
        for node in self._model.graph.node:
            if beyond.intersection(node.input):
                beyond.update(node.output)
            elif reached.intersection(node.input) or not any(node.input):
                nodes.append(node)
                if any(node.input):
                    reached.update(node.output)
        needed, kept = set(outputs), []
        for node in reversed(nodes):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(node.input)
        kept.reverse()
        made = {name for node in kept for name in node.output}
        taken = dict.fromkeys(name for node in kept for name in node.input if name)
        return kept, [n for n in taken if n not in made and n not in self._weights]

    def part(self, nodes: Sequence[Any], inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        """Return a model of some of the ops.

        Args:
            nodes: from :meth:`after`.
            inputs, outputs: names of the part's inputs and outputs; the types of those that are not the
                model's own are inferred by onnxruntime.
        """
        helper, own = self._onnx.helper, self._model.graph
        known = {one.name: one for one in [*own.input, *own.output]}
        float32 = self._onnx.TensorProto.FLOAT

        def value(name: str) -> Any:
            return known.get(name) or helper.make_tensor_value_info(name, float32, None)

        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "part",
            [value(name) for name in inputs],
            [value(name) for name in outputs],
            [weight for name, weight in self._weights.items() if name in used],
        )
        model = helper.make_model(
            graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version
        )
        data: bytes = model.SerializeToString()
        return data


def _is_standard(onnx: Any, node: Any) -> bool:
    """Return whether an op draws float32 noise of mean 0 and deviation 1."""
    given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    kind = given.get("dtype", onnx.TensorProto.FLOAT)
    return (given.get("mean", 0.0), given.get("scale", 1.0), kind) == (
        0.0,
        1.0,
        onnx.TensorProto.FLOAT,
    )


def _from_table(helper: Any, node: Any, seed: str, number: int) -> list[Any]:
    """Return the ops that take from the table what ``node`` draws; ``number`` counts such nodes."""
    own = f"{_PREFIX}{number}/"

    def op(kind: str, inputs: list[str], output: str) -> Any:
        return helper.make_node(kind, inputs, [output])

    return [
        op("Size", [node.input[0]], own + "size"),
        op("Range", [_PREFIX + "zero", own + "size", _PREFIX + "one"], own + "elements"),
        op("Add", [own + "elements", seed], own + "seeded"),
        op("Add", [own + "seeded", f"{_PREFIX}offset_{number}"], own + "places"),
        op("Mod", [own + "places", _PREFIX + "count"], own + "wrapped"),
        op("Gather", [_PREFIX + "table", own + "wrapped"], own + "values"),
        op("Shape", [node.input[0]], own + "shape"),
        op("Reshape", [own + "values", own + "shape"], node.output[0]),
    ]

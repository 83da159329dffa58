"""Store the large float32 weights of an ONNX file in float16; they are computed in float32 as before.

python -m recipes.halve MODEL.onnx OUTPUT
"""

import sys
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LEAST_BYTES: Final = 4096


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its large weights in float16, each converted by a node of its own."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    casts, kept = [], []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.nbytes < _LEAST_BYTES:
            kept.append(weight)
            continue
        half = f"{weight.name}.half"
        kept.append(numpy_helper.from_array(values.astype(np.float16), half))
        casts.append(helper.make_node("Cast", [half], [weight.name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    for field, content in ((graph.initializer, kept), (graph.node, nodes)):
        copies = [type(one).FromString(one.SerializeToString()) for one in content]
        del field[:]
        field.extend(copies)
    onnx.checker.check_model(result)
    return result


if __name__ == "__main__":
    onnx.save(halved(onnx.load(sys.argv[1])), Path(sys.argv[2]))

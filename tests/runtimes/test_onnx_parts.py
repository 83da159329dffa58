"""Graphs whose noise depends on a seed."""

from pathlib import Path

import numpy as np
import pytest

from galley.runtimes.onnx_parts import Graph

onnx = pytest.importorskip("onnx", reason="extra voice")
runtime = pytest.importorskip("onnxruntime", reason="extra voice")

DRAWS = 3
TABLE = np.random.default_rng(0).standard_normal(60, np.float32)


def test_each_draw_of_a_graph_is_noise_of_its_own(tmp_path: Path) -> None:
    """Equal for equal seeds, and different at each draw."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    names = [f"y{number}" for number in range(DRAWS)]
    graph = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["x"], [name]) for name in names],
        "noise",
        [helper.make_tensor_value_info("x", kind, [2, 4])],
        [helper.make_tensor_value_info(name, kind, [2, 4]) for name in names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "noise.onnx")
    seeded = Graph.read(tmp_path / "noise.onnx").with_seed("seed", TABLE)
    session = runtime.InferenceSession(seeded.whole(), providers=["CPUExecutionProvider"])

    def drawn(seed: int) -> list[tuple[float, ...]]:
        given = {"x": np.zeros((2, 4), np.float32), "seed": np.array(seed, np.int64)}
        return [tuple(noise.ravel().tolist()) for noise in session.run(None, given)]

    assert drawn(1) == drawn(1)
    assert len({*drawn(1), *drawn(2)}) == 2 * DRAWS
    assert {number for noise in drawn(59) for number in noise} <= {*TABLE.tolist()}

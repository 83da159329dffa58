"""Several instances of a model: a batch is divided among them, and they compute at the same time."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from galley.errors import SettingsError
from galley.runtimes.arrays import to_array, to_tensor
from galley.runtimes.compute import Compute
from galley.runtimes.onnx import load
from galley.runtimes.tensor_engine import TensorEngine
from galley.service.tensor_requests import predict_request
from galley.settings.engine import EngineSettings
from galley.types import Output, Predict, Tensors, TensorSpec
from tests.runtimes import onnx_files

SECONDS = 30
"""Limit for an instance to wait for another; reached only if they do not run at the same time."""


def engine_of(path: Path, options: str) -> TensorEngine:
    return load(EngineSettings(model=str(path), threads=2, engine_options=options), path)


def answered(engine: TensorEngine, xs: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return the first output of each request, or None for an error, and the rows of each step."""
    for number, x in enumerate(xs):
        [spec] = engine.info.tensors.inputs if engine.info.tensors else ()
        tensor = to_tensor(spec.name, x)
        engine.add(predict_request([tensor], (), engine.info, request_id=str(number)))
    outputs: dict[str, Output] = {}
    rows = []
    while engine.has_work:
        outputs |= {output.request_id: output for output in engine.step()}
        rows.append(engine.stats.batch_tokens)
    found = [outputs[str(number)].result for number in range(len(xs))]
    arrays = [to_array(one.outputs[0]) if isinstance(one, Tensors) else None for one in found]
    return arrays, rows


def some_rows(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).random((count, onnx_files.FEATURES), np.float32)


def test_a_divided_batch_has_the_outputs_of_the_session(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    alone = onnxruntime.InferenceSession(path)
    xs = [some_rows(count, seed) for seed, count in enumerate((1, 2, 5, 40, 100, 1))]
    outputs, rows = answered(engine_of(path, '{"instances": 3}'), xs)
    assert rows == [48, 100, 1]
    for x, y in zip(xs, outputs, strict=True):
        np.testing.assert_allclose(y, alone.run(["y"], {"x": x})[0], rtol=1e-5)


def test_batches_of_a_fixed_size_keep_their_bits(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    xs = [some_rows(count, seed) for seed, count in enumerate((3, 20, 9))]
    options = '{"batch_invariant": true, "max_batch_size": 8, "instances": %d}'
    one, two = (answered(engine_of(path, options % n), xs)[0] for n in (1, 2))
    for ours, theirs in zip(two, one, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_a_bad_request_fails_alone(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.lookup(tmp_path / "lookup.onnx"), '{"instances": 2}')
    outputs, _ = answered(engine, [np.full((1, 3), value) for value in (1, 99, 2, 0)])
    assert [output is not None for output in outputs] == [True, False, True, True]


def test_requests_without_a_batch_axis_are_computed_side_by_side(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    engine = engine_of(path, '{"batch_axis": "none", "instances": 2}')
    xs = [some_rows(1, seed) for seed in range(5)]
    outputs, steps = answered(engine, xs)
    assert steps == [2, 2, 1]
    alone = onnxruntime.InferenceSession(path)
    for x, y in zip(xs, outputs, strict=True):
        np.testing.assert_allclose(y, alone.run(["y"], {"x": x})[0], rtol=1e-5)


class Meeting:
    """A model that computes only while another instance computes, too."""

    inputs = (TensorSpec(name="x", datatype="FP32", shape=(-1,)),)
    outputs = (TensorSpec(name="y", datatype="FP32", shape=(-1,)),)

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier
        self.closed = False

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        self._barrier.wait(SECONDS)
        return [2 * inputs["x"]]

    def close(self) -> None:
        self.closed = True


def payload(*values: float) -> Predict:
    x = np.array(values, np.float32)
    return Predict(inputs=(to_tensor("x", x),), rows=len(values))


@pytest.mark.parametrize("batched", [True, False])
def test_instances_compute_at_the_same_time(batched: bool) -> None:
    barrier = threading.Barrier(2)
    instances = [Meeting(barrier), Meeting(barrier)]
    compute = Compute(instances, batched=batched)
    results = compute.together([payload(1, 2, 3), payload(4)])
    assert [list(result["y"]) for result in results if isinstance(result, dict)] == [[2, 4, 6], [8]]
    if batched:  # one request, divided by its rows
        [result] = compute.together([payload(1, 2, 3, 4, 5)])
        assert isinstance(result, dict)
        assert list(result["y"]) == [2, 4, 6, 8, 10]
    compute.close()
    assert all(instance.closed for instance in instances)


def test_a_number_of_instances_out_of_range_is_refused(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    for wrong in ("0", "65", '"two"'):
        with pytest.raises(SettingsError, match="instances"):
            engine_of(path, f'{{"instances": {wrong}}}')

"""Levels of priority, and what a model computes before it is ready, as in configurations of Triton."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from galley.errors import CheckpointError, SettingsError
from galley.runtimes import onnx as engine
from galley.runtimes.tensor_engine import TensorEngine
from galley.settings.engine import EngineSettings
from galley.types import EngineRequest, Predict, Tensor
from tests.runtimes import onnx_files


def load(path: Path, options: str) -> TensorEngine:
    settings = EngineSettings(
        model=str(path), threads=1, engine_options=options, weight_cache=False, priority_steps=1
    )
    return engine.load(settings, path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_files.perceptron(tmp_path_factory.mktemp("models") / "model.onnx")


def row(name: str, priority: int) -> EngineRequest:
    data = np.ones((1, 30), np.float32).tobytes()
    x = Tensor(name="x", datatype="FP32", shape=(1, 30), data=data)
    return EngineRequest(id=name, payload=Predict(inputs=(x,)), priority=priority)


@pytest.mark.parametrize(
    ("options", "first"), [('"priority_levels": 2, "default_priority": 2', "urgent"), ("", "0")]
)
def test_levels_are_strict(path: Path, options: str, first: str) -> None:
    """Without them, a request that has waited long enough is computed before one of more priority."""
    given = ", ".join(part for part in ('"max_batch_size": 1', options) if part)
    made = load(path, f"{{{given}}}")
    for number in range(10):
        made.add(row(str(number), priority=2))
    made.add(row("urgent", priority=1))
    [output] = made.step()
    assert output.request_id == first
    made.close()


def test_requests_without_a_level_have_the_default_one(path: Path) -> None:
    made = load(path, '{"priority_levels": 3, "default_priority": 2, "timeout": 0.5}')
    tensors = made.info.require_tensors()
    assert [tensors.priority(given) for given in range(5)] == [2, 1, 2, 3, 2]
    assert tensors.timeout == 0.5
    made.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('"priority_levels": 2', "default_priority is 0, but priority_levels is 2"),
        ('"default_priority": 1', "default_priority is 1, but priority_levels is 0"),
        # The gateway bounds priorities, so further levels would be one.
        ('"priority_levels": 101, "default_priority": 1', "<= 100"),
    ],
)
def test_a_default_that_is_no_level_is_refused(path: Path, options: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load(path, f"{{{options}}}")


WARM_UPS = """{"warmup": [
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [7, 30], "random": true}], "count": 3},
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [%d, 30]}]}]}"""


def test_warm_ups_are_computed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[Any] = []
    run = engine.OnnxModel.run

    def spy(model: Any, inputs: Mapping[str, Any], outputs: Sequence[str]) -> list[Any]:
        computed.append(inputs["x"])
        return run(model, inputs, outputs)

    monkeypatch.setattr(engine.OnnxModel, "run", spy)
    load(path, WARM_UPS % 5).close()
    *random, zeros = (x for x in computed if x.shape[0] in (5, 7))
    assert [x.shape for x in random] == [(7, 30)] * 3
    assert all(x.any() for x in random)
    assert zeros.shape == (5, 30)
    assert not zeros.any()


def test_a_warm_up_that_fails_stops_the_start(path: Path) -> None:
    for wrong in ("31]", f"{2**50}]"):
        with pytest.raises(CheckpointError, match="warmup: cannot be computed"):
            load(path, (WARM_UPS % 5).replace("30]", wrong))

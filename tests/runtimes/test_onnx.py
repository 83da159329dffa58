"""ONNX models in the test's own process: batches, shapes, errors and options."""

import re
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

from galley.errors import CheckpointError, RequestError, SettingsError, UnsupportedModel
from galley.runtimes.arrays import to_array, to_tensor
from galley.service.tensor_requests import predict_request
from galley.speech import vad
from tests.runtimes import onnx_files
from tests.runtimes.onnx_engines import Arrays, add, arrays_of, engine_of, steps


def some_rows(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random((count, onnx_files.FEATURES), np.float32)


def test_requests_are_combined_and_answered_as_alone(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    engine, alone = engine_of(path), onnxruntime.InferenceSession(path)
    assert engine.info.tensors is not None
    assert engine.info.tensors.batched
    xs = {f"r{i}": some_rows(n, i) for i, n in enumerate((1, 2, 1, 5, 40, 30, 100))}
    for name, x in xs.items():
        add(engine, name, {"x": x})
    outputs, rows = steps(engine)
    # At most 64 rows, in the order of arrival; a larger request is computed alone.
    assert rows == [49, 30, 100]
    for name, x in xs.items():
        y, label = alone.run(None, {"x": x})
        got = arrays_of(outputs[name])
        assert got["y"].tobytes() == y.tobytes()
        assert (got["label"] == label).all()


def test_outputs_are_those_requested_in_their_order(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.perceptron(tmp_path / "mlp.onnx"))
    add(engine, "one", {"x": some_rows(1)}, "label")
    add(engine, "both", {"x": some_rows(1)}, "label", "y")
    add(engine, "all", {"x": some_rows(1)})
    outputs, rows = steps(engine)
    assert rows == [3]
    names = {name: list(arrays_of(output)) for name, output in outputs.items()}
    assert names == {"one": ["label"], "both": ["label", "y"], "all": ["y", "label"]}


def test_shapes_are_computed_apart(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.lookup(tmp_path / "lookup.onnx"))
    for i, length in enumerate((3, 5, 3, 5, 3)):
        add(engine, str(i), {"ids": np.full((1, length), i)})
    outputs, rows = steps(engine)
    assert rows == [3, 2]
    assert [bool(outputs[str(i)].result) for i in range(5)] == [True] * 5


def test_a_bad_request_fails_alone(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.lookup(tmp_path / "lookup.onnx"))
    for i, value in enumerate((1, 99, 2)):
        add(engine, str(i), {"ids": np.full((1, 3), value)})
    outputs, _ = steps(engine)
    assert [outputs[str(i)].finish_reason for i in range(3)] == ["stop", "error", "stop"]
    assert outputs["1"].refused
    assert "out of data bounds" in (outputs["1"].error or "")


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.identities(tmp_path / "types.onnx"))
    rng = np.random.default_rng(0)
    inputs: list[Arrays] = []
    for i in range(3):
        arrays: Arrays = {}
        for name in onnx_files.TYPES:
            if name == "BYTES":
                arrays[f"in_{name}"] = np.array([["", "naïve", "日本"]] * 2, object)
            else:
                spec = to_array(to_tensor("", np.zeros(1, _dtype(name)))).dtype
                arrays[f"in_{name}"] = rng.integers(0, 2 if name == "BOOL" else 120, (2, 3)).astype(
                    spec
                )
        inputs.append(arrays)
        add(engine, str(i), arrays)
    outputs, rows = steps(engine)
    assert rows == [6]
    for i, arrays in enumerate(inputs):
        got = arrays_of(outputs[str(i)])
        for name in onnx_files.TYPES:
            assert (got[f"out_{name}"] == arrays[f"in_{name}"]).all(), name


def _dtype(name: str) -> str:
    return {"BOOL": "?", "FP16": "f2", "FP32": "f4", "FP64": "f8"}.get(name, name.lower())


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (onnx_files.centered, "rows of output 'y' depend on each other"),
        (onnx_files.sum_of_two, r"'a' has shape \[2, -1\]"),
    ],
)
def test_what_is_no_batch_is_computed_one_by_one(
    tmp_path: Path, make: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine = engine_of(make(tmp_path / "m.onnx"))
    assert engine.info.tensors is not None
    assert not engine.info.tensors.batched
    assert any(re.search(reason, record.getMessage()) for record in caplog.records)
    spec = engine.info.tensors.inputs
    for i in range(3):
        add(engine, str(i), {one.name: np.ones((2, 2), np.float32) for one in spec})
    _, rows = steps(engine)
    assert rows == [1, 1, 1]


def test_a_trial_takes_no_inputs_of_billions_of_elements(tmp_path: Path) -> None:
    # No length of the trial is 3, and the greatest one would make 60 GB of an input.
    engine = engine_of(onnx_files.volumes(tmp_path / "model.onnx"))
    assert engine.info.tensors is not None
    assert not engine.info.tensors.batched
    x = np.ones((1, 3, 2, 2, 2), np.float32)
    add(engine, "a", {"x": x})
    outputs, _ = steps(engine)
    assert arrays_of(outputs["a"])["y"].shape == (1, 2, 2, 2, 2)


def test_tenants_take_turns_and_aborts_are_dropped(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.perceptron(tmp_path / "mlp.onnx"), '{"max_batch_size": 4}')
    for i in range(8):
        tensors = [to_tensor("x", some_rows(1))]
        request = predict_request(tensors, (), engine.info, request_id=f"many{i}")
        engine.add(msgspec.structs.replace(request, tenant="many"))
    request = predict_request([to_tensor("x", some_rows(1))], (), engine.info, request_id="few")
    engine.add(msgspec.structs.replace(request, tenant="few"))
    engine.abort(["many0", "many7"])
    first = [output.request_id for output in engine.step()]
    assert "few" in first
    assert len(first) == 4
    outputs, _ = steps(engine)
    assert sorted(outputs) == sorted({f"many{i}" for i in range(1, 7)} - set(first))


def test_batch_invariance_pads_every_batch(tmp_path: Path) -> None:
    """Bits of a row are the same alone, in full batches, and in a request larger than a batch."""
    path = onnx_files.perceptron(tmp_path / "mlp.onnx", hidden=256)
    engine = engine_of(path, '{"batch_invariant": true, "max_batch_size": 16}')
    x = some_rows(50)
    add(engine, "alone", {"x": x[:1]})
    alone, _ = steps(engine)
    add(engine, "whole", {"x": x})
    for i in range(50):
        add(engine, str(i), {"x": x[i : i + 1]})
    outputs, _ = steps(engine)
    whole = arrays_of(outputs["whole"])["y"]
    each = np.concatenate([arrays_of(outputs[str(i)])["y"] for i in range(50)])
    assert whole.tobytes() == each.tobytes()
    assert arrays_of(alone["alone"])["y"].tobytes() == whole[:1].tobytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ('{"execution_providers": ["tpu"]}', "'tpu' is not installed; installed: .*CPUExecutionProvider"),
        ('{"execution_providers": ["cuda"]}', "'cuda' is not installed; installed: "),
        ('{"provider_options": {"cuda": {}}}', "'cuda' is not among execution_providers"),
        ('{"graph_level": 1}', "engine 'onnx'.*`graph_level`"),
        ('{"max_batch_size": 0}', "max_batch_size"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_honored_are_refused(
    tmp_path: Path, options: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        engine_of(onnx_files.perceptron(tmp_path / "mlp.onnx"), options)


def test_session_options_reach_the_session(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    options = (
        '{"graph_optimization": "off", "inter_op_threads": 2, "memory_arena": false, '
        '"memory_pattern": false, "execution_providers": ["CPUExecutionProvider"]}'
    )
    engine = engine_of(path, options)
    made = engine._compute._instances[0]._session.get_session_options()  # type: ignore[attr-defined]
    assert (made.intra_op_num_threads, made.inter_op_num_threads) == (1, 2)
    assert made.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not made.enable_cpu_mem_arena
    assert not made.enable_mem_pattern
    add(engine, "r", {"x": some_rows(2)})
    assert arrays_of(engine.step()[0])["y"].shape == (2, 3)


def test_settings_of_language_models_are_refused(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    refused: dict[str, Any] = {
        "weight_dtype": "int8",
        "speculation": "prompt",
        "prefix_cache_dir": str(tmp_path),
        "disable_pass": ("fuse_norms",),
        "system_prompt": "Be brief.",
    }
    for name, value in refused.items():
        with pytest.raises(SettingsError, match=rf"{name} is .* a tensor model"):
            engine_of(path, **{name: value})
    assert engine_of(path, speculation="off").info.tensors is not None


def test_files_that_are_no_models_of_tensors(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"'all' is a seq\(tensor\(float\)\)"):
        engine_of(onnx_files.a_sequence(tmp_path / "sequence.onnx"))
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(CheckpointError, match=r"broken\.onnx.*cannot load it"):
        engine_of(broken)
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("a", "b"):
        onnx_files.perceptron(folder / f"{name}.onnx")
    with pytest.raises(CheckpointError, match=r"not one other such file: a\.onnx, b\.onnx"):
        engine_of(folder)


def test_external_data_stay_in_their_folder(tmp_path: Path) -> None:
    """A file that names another one outside of its folder as its data is refused."""
    (tmp_path / "secret").write_bytes(bytes(4 * 30 * 64))
    folder = tmp_path / "model"
    folder.mkdir()
    model = onnx.load(onnx_files.perceptron(folder / "m.onnx"))
    onnx.save(
        model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    engine_of(folder / "m.onnx")
    model = onnx.load(folder / "m.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret"
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(CheckpointError):
        engine_of(folder / "m.onnx")


def test_a_request_is_checked_against_the_model(tmp_path: Path) -> None:
    engine = engine_of(onnx_files.perceptron(tmp_path / "mlp.onnx"))
    with pytest.raises(RequestError, match="'x' has 0 rows; the model takes 1 to any number"):
        add(engine, "r", {"x": some_rows(0)})
    with pytest.raises(
        RequestError, match="there is no output 'z'; the model's outputs are 'y', 'label'"
    ):
        add(engine, "r", {"x": some_rows(1)}, "z")


def test_a_real_model_answers_as_alone() -> None:
    """Silero's speech detector has a recurrent state: its first axis is time, not a batch."""
    path = Path(vad.__file__).parent / "silero" / "silero_vad_16k_sequence.onnx"
    engine, alone = engine_of(path), onnxruntime.InferenceSession(path)
    assert engine.info.tensors is not None
    assert not engine.info.tensors.batched
    rng = np.random.default_rng(0)
    shapes = {"input": (5, 576), "h": (1, 1, 128), "c": (1, 1, 128)}
    given = [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(3)
    ]
    for i, arrays in enumerate(given):
        add(engine, str(i), arrays)
    outputs, rows = steps(engine)
    assert rows == [1, 1, 1]
    for i, arrays in enumerate(given):
        expected = alone.run(None, arrays)
        got = arrays_of(outputs[str(i)]).values()
        assert [one.tobytes() for one in got] == [one.tobytes() for one in expected]


def test_how_long_a_batch_waits(tmp_path: Path) -> None:
    path = onnx_files.perceptron(tmp_path / "mlp.onnx")
    for options, least, most in (
        ('{"batching": "off", "max_queue_delay": 5}', 0.0, 0.0),
        ('{"batching": "dynamic", "max_queue_delay": 5}', 0.0, 0.0),  # nothing is known yet
        ('{"batching": "static", "max_queue_delay": 5}', 4.0, 5.0),
        ('{"batching": "static", "max_queue_delay": 5, "max_batch_size": 1}', 0.0, 0.0),
    ):
        engine = engine_of(path, options)
        add(engine, "r", {"x": some_rows(1)})
        assert least <= engine.gather_seconds() <= most, options


def test_a_dynamic_batch_waits_once_that_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches take 50 ms, whatever their size, and requests arrive at once."""
    engine = engine_of(onnx_files.perceptron(tmp_path / "mlp.onnx"), '{"max_queue_delay": 0.02}')
    inner = engine._compute._instances[0].run

    def slow(inputs: Any, outputs: Any) -> Any:
        time.sleep(0.05)
        return inner(inputs, outputs)

    monkeypatch.setattr(engine._compute._instances[0], "run", slow)
    for size in (1, 3, 2, 5):
        for i in range(size):
            add(engine, f"{size}-{i}", {"x": some_rows(1)})
        steps(engine)
    for i in range(8):
        add(engine, str(i), {"x": some_rows(1)})
    assert 0.0 < engine.gather_seconds() <= 0.02
    add(engine, "other", {"x": some_rows(64)})
    assert engine.gather_seconds() == 0.0  # more than a batch waits


def test_a_missing_library_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SettingsError, match=r"pip install 'galley-inference\[onnx\]'"):
        engine_of(onnx_files.perceptron(tmp_path / "mlp.onnx"))

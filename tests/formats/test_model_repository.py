"""Model repositories in Triton's layout: versions, and the keys of config.pbtxt that are honored."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from galley.errors import CheckpointError, ModelNotFound, SettingsError, UnsupportedModel
from galley.formats.model_repository import read_model, read_repository, version_of
from galley.runtimes.onnx import OnnxOptions


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A model ``fraud`` with versions 1, 2 and 10; the reader does not open models."""
    for version in ("1", "2", "10", "notes", "0"):
        folder = tmp_path / "fraud" / version
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(b"")
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").write_text("models")
    return tmp_path


def configured(repository: Path, text: str) -> dict[str, Any]:
    (repository / "fraud" / "config.pbtxt").write_text(text)
    return dict(read_model(str(repository), "fraud"))


def test_versions_are_numbers_and_the_latest_is_served(repository: Path) -> None:
    path = repository / "fraud" / "10"
    assert read_repository(str(repository)) == {"fraud": {"model": str(path)}}
    assert version_of(str(repository), str(path)) == "10"
    assert version_of(str(repository), "/elsewhere/10/model.onnx") == "1"


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("", ["fraud"]),
        ("version_policy: { latest: { num_versions: 2 } }", ["fraud:2", "fraud"]),
        ("version_policy { all { } }", ["fraud:1", "fraud:2", "fraud"]),
        ("version_policy: { specific { versions: [1, 2] } }", ["fraud:1", "fraud"]),
    ],
)
def test_version_policies(repository: Path, policy: str, served: list[str]) -> None:
    assert list(configured(repository, policy)) == served


def test_a_configuration_as_triton_has_it(repository: Path) -> None:
    own = configured(
        repository,
        """
        # A comment.
        name: "fraud"
        platform: "onnxruntime_onnx"
        max_batch_size: 32
        input [ { name: "x" data_type: TYPE_FP32 dims: [ 30 ] } ]
        output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] },
                 { name: "label" data_type: TYPE_INT64 dims: [ ] } ]
        instance_group [ { count: 2 kind: KIND_CPU }, { } ]
        dynamic_batching {
          preferred_batch_size: [ 8, 16 ]
          max_queue_delay_microseconds: 500
          default_queue_policy { max_queue_size: 100 }
        }
        """,
    )["fraud"]
    assert (own["engine"], own["max_queue"]) == ("onnx", 100)
    assert json.loads(own["engine_options"]) == {
        "declared_inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 30]}],
        "declared_outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "label", "datatype": "INT64", "shape": [-1]},
        ],
        "batch_axis": "first",
        "max_batch_size": 32,
        "limit_rows": True,
        "max_queue_delay": 0.0005,
        "preferred_batch_size": [8, 16],
        "instances": 3,
    }


def test_queues_and_warm_ups(repository: Path) -> None:
    own = configured(
        repository,
        """
        max_batch_size: 8
        dynamic_batching {
          priority_levels: 3
          default_priority_level: 2
          default_queue_policy {
            timeout_action: REJECT
            default_timeout_microseconds: 250000
            allow_timeout_override: true
          }
        }
        model_warmup [
          { name: "a" batch_size: 4 count: 2
            inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 30 ] random_data: true } } },
          { name: "b" batch_size: 1
            inputs { key: "x" value: { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } } }
        ]
        """,
    )["fraud"]
    options = json.loads(own["engine_options"])
    names = ("priority_levels", "default_priority", "timeout", "warmup")
    first = {"name": "x", "datatype": "FP32", "shape": [4, 30], "random": True}
    second = {"name": "x", "datatype": "BYTES", "shape": [1, 1], "random": False}
    assert [options[name] for name in names] == [
        3,
        2,
        0.25,
        [{"inputs": [first], "count": 2}, {"inputs": [second], "count": 1}],
    ]
    msgspec.json.decode(own["engine_options"], type=OnnxOptions)


def test_without_a_batch_shapes_are_whole(repository: Path) -> None:
    own = configured(repository, 'input { name: "x" data_type: TYPE_STRING dims: [ -1, 2 ] }')
    options = json.loads(own["fraud"]["engine_options"])
    assert options["batch_axis"] == "none"
    assert options["declared_inputs"] == [{"name": "x", "datatype": "BYTES", "shape": [-1, 2]}]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("optimization { }", CheckpointError, 'no field named "optimization"'),
        ("dynamic_batching { preserve_ordering: true }", CheckpointError, '"preserve_ordering"'),
        ("response_cache { enable: true }", CheckpointError, '"response_cache"'),
        (
            "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
            CheckpointError,
            "default_priority_level: is 3, but priority_levels is 2",
        ),
        (
            "dynamic_batching { priority_levels: 2 }",
            CheckpointError,
            "default_priority_level: is 0, but priority_levels is 2: give a level from 1 to 2",
        ),
        (
            "dynamic_batching { default_priority_level: 1 }",
            CheckpointError,
            "default_priority_level: is 1, but priority_levels is 0: give priority_levels",
        ),
        (
            "dynamic_batching { default_queue_policy { timeout_action: DELAY } }",
            CheckpointError,
            "timeout_action: is DELAY",
        ),
        (
            "max_batch_size: 4 model_warmup { batch_size: 5 }",
            CheckpointError,
            "model_warmup.batch_size: is 5, but max_batch_size is 4: give 1 to 4",
        ),
        (
            "model_warmup { batch_size: 2 }",
            CheckpointError,
            "model_warmup.batch_size: is 2, but max_batch_size is 0: give 0 to 1",
        ),
        (
            'model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, -1 ] } } }',
            CheckpointError,
            "model_warmup.inputs.dims: are [2, -1] for 'x'",
        ),
        (
            'model_warmup { inputs { key: "x" value { input_data_file: "x.bin" } } }',
            CheckpointError,
            '"input_data_file"',
        ),
        ("sequence_batching { }", CheckpointError, '"sequence_batching"'),
        ("max_batch_size: many", CheckpointError, "1:17"),
        ("max_batch_size: -1", CheckpointError, "max_batch_size: is -1"),
        ("instance_group { kind: KIND_GPU }", CheckpointError, "instances run on CPU threads"),
        (
            'platform: "onnxruntime_onnx" backend: "fil"',
            CheckpointError,
            "backend: is 'fil', but platform is 'onnxruntime_onnx'",
        ),
        ('platform: "tensorrt_plan"', UnsupportedModel, "'tensorrt_plan' is not supported"),
        ('name: "other"', CheckpointError, "name: is 'other', but the folder is 'fraud'"),
        ("version_policy { specific { versions: 7 } }", CheckpointError, "there is no version 7"),
        ('default_model_filename: "../1/model.onnx"', CheckpointError, "default_model_filename"),
        ('input { name: "x" data_type: TYPE_BF16 }', CheckpointError, "'x' is TYPE_BF16"),
    ],
)
def test_unsupported_fields_are_refused_and_named(
    repository: Path, text: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as raised:
        configured(repository, text)
    assert says in str(raised.value)


def test_folders_that_are_no_repository(repository: Path, tmp_path: Path) -> None:
    for name in ("../fraud", "other", ".git"):
        with pytest.raises(ModelNotFound, match="has no model"):
            read_model(str(repository), name)
    (repository / "empty").mkdir()
    with pytest.raises(CheckpointError, match="has no folder 1, 2"):
        read_repository(str(repository))
    (repository / "empty" / "1").mkdir()
    with pytest.raises(CheckpointError, match=r"has no model: model\.onnx"):
        read_repository(str(repository))
    with pytest.raises(SettingsError, match="cannot be read"):
        read_repository(str(tmp_path / "missing"))
    (tmp_path / "none").mkdir()
    with pytest.raises(SettingsError, match="has no models"):
        read_repository(str(tmp_path / "none"))

"""Graphs that onnxruntime has optimized: kept, found again, and never used in doubt."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from galley.runtimes import onnx as engine
from galley.runtimes import optimized_graphs
from galley.runtimes.onnx import OnnxModel, OnnxOptions, load_model
from galley.runtimes.optimized_graphs import stored
from galley.runtimes.tensor_model import LoadSettings
from galley.speech import vad
from tests.runtimes import onnx_files

SAVES = optimized_graphs.saves
SILERO = Path(vad.__file__).parent / "silero" / "silero_vad_16k_sequence.onnx"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "cache"))
    # The models of these tests are too small to save time.
    monkeypatch.setattr(optimized_graphs, "saves", lambda *_: True)
    return tmp_path / "cache" / "packed"


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the files whose graphs onnxruntime optimizes from now on."""
    made: list[str] = []
    of_model = engine._Sessions.of_model

    def counted(self: Any, graph_to: str = "") -> Any:
        made.append(self.file.name)
        return of_model(self, graph_to)

    monkeypatch.setattr(engine._Sessions, "of_model", counted)
    return made


def load(file: Path, *, threads: int = 1, weight_cache: bool = True, **options: Any) -> OnnxModel:
    return load_model(file, OnnxOptions(**options), LoadSettings(threads, weight_cache))


def silero_inputs() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {"input": (5, 576), "h": (1, 1, 128), "c": (1, 1, 128)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def x_inputs() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((7, 30)).astype(np.float32)}


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (lambda path: onnx_files.perceptron(path, hidden=256), x_inputs),
        (onnx_files.with_external_data, x_inputs),
        (lambda _: SILERO, silero_inputs),
    ],
)
def test_a_kept_graph_returns_the_same_bits(
    tmp_path: Path,
    optimized: list[str],
    make: Callable[[Path], Path],
    inputs: Callable[[], dict[str, Any]],
    level: Any,
) -> None:
    file = make(tmp_path / "m.onnx")
    first = load(file, graph_optimization=level)
    assert [one.source for one in stored()] == [str(file)]
    second = load(file, graph_optimization=level)
    assert optimized == [file.name]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, engine._LEVELS[level]
    )
    options.intra_op_num_threads = 1
    alone = onnxruntime.InferenceSession(file, options)
    names = [spec.name for spec in first.outputs]
    expected = [one.tobytes() for one in alone.run(names, inputs())]
    assert (first.inputs, first.outputs) == (second.inputs, second.outputs)
    for model in (first, second):
        assert [one.tobytes() for one in model.run(inputs(), names)] == expected


def changed_weights(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the same size, and with the same times.
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    data = bytearray(file.read_bytes())
    place = data.index(onnx.load(file).graph.initializer[0].raw_data)
    data[place] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=times)


def changed_data(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_files.with_external_data(file)
    load(file)
    data = bytearray((file.parent / "m.data").read_bytes())
    data[0] ^= 1
    (file.parent / "m.data").write_bytes(data)


@pytest.mark.parametrize(
    "change",
    [
        changed_weights,
        changed_data,
        lambda _, patch: patch.setattr(onnxruntime, "__version__", "0.0"),
        lambda _, patch: patch.setattr(onnxruntime, "get_build_info", lambda: "another"),
        lambda _, patch: patch.setattr(optimized_graphs, "cpu_features", lambda: "sse2"),
        lambda _, patch: patch.setattr(optimized_graphs, "cpu_name", lambda: "another"),
    ],
)
def test_whatever_a_graph_follows_from_is_compared(
    tmp_path: Path,
    optimized: list[str],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    load(file)
    load(file)
    assert len(optimized) == 1
    change(file, monkeypatch)
    optimized.clear()
    load(file)
    assert len(optimized) == 1
    load(file)
    assert len(optimized) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"graph_optimization": "basic"},
        {"inter_op_threads": 2},
        {"memory_arena": False},
        {"memory_pattern": False},
        {"threads": 2},
        {"provider_options": {"cpu": {"use_arena": "0"}}},
    ],
)
def test_each_option_of_the_session_has_its_own_graph(
    tmp_path: Path, optimized: list[str], options: dict[str, Any]
) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    load(file)
    load(file, **options)
    assert len(optimized) == 2
    load(file, max_queue_delay=1.0)  # is none of the session
    assert len(optimized) == 2


@pytest.mark.parametrize("options", [{"weight_cache": False}, {"graph_optimization": "off"}])
def test_nothing_is_kept_if_the_settings_say_so(tmp_path: Path, options: dict[str, Any]) -> None:
    load(onnx_files.perceptron(tmp_path / "m.onnx"), **options)
    assert stored() == []


def test_a_damaged_graph_is_made_again(tmp_path: Path, optimized: list[str]) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    load(file)
    [kept] = stored()
    whole = kept.path.read_bytes()
    digest = whole.index(b'"digest"')
    for place in (
        0,
        9,
        whole.index(kept.path.stem.encode()),
        digest + 12,
        digest + 90,
        len(whole) - 1,
    ):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        kept.path.write_bytes(damaged)
        optimized.clear()
        load(file)
        assert optimized == ["m.onnx"]
        assert kept.path.read_bytes() == whole
    for size in (0, 5, 40, len(whole) - 1):
        kept.path.write_bytes(whole[:size])
        optimized.clear()
        load(file)
        assert optimized == ["m.onnx"]


def test_a_graph_that_saves_no_time_is_not_tried_again(
    tmp_path: Path, optimized: list[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(optimized_graphs, "saves", lambda *_: False)
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    load(file)
    assert stored() == []
    monkeypatch.setattr(optimized_graphs, "saves", lambda *_: True)
    load(file)
    assert stored() == []
    onnx_files.perceptron(file, hidden=32)
    load(file)
    assert [one.source for one in stored()] == [str(file)]


def test_the_time_that_a_graph_saves() -> None:
    assert SAVES(optimizing=1.0, loading=0.4, reading=0.1)
    assert not SAVES(optimizing=1.0, loading=0.4, reading=0.2)
    assert not SAVES(optimizing=0.4, loading=0.4, reading=0.0)


def test_a_graph_that_returns_other_bits_is_not_kept(tmp_path: Path, folder: Path) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    (tmp_path / "other").mkdir()
    other = onnx_files.perceptron(tmp_path / "other" / "m.onnx", hidden=63)
    place = optimized_graphs.OptimizedGraph(file, ())

    def optimize(path: str) -> OnnxModel:
        Path(path).write_bytes(b"a graph")
        return load(file, weight_cache=False)

    for wrong in (other, onnx_files.identities(tmp_path / "types.onnx")):
        model = place.make(optimize, lambda _, wrong=wrong: load(wrong, weight_cache=False))  # type: ignore[misc]
        assert model is not None
        assert stored() == []
        [refused] = folder.glob("*.measured")
        refused.unlink()
    assert place.make(optimize, lambda _: load(file, weight_cache=False)) is not None
    assert place.read() == b"a graph"


def test_a_file_that_changes_meanwhile_is_not_kept(tmp_path: Path) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    place = optimized_graphs.OptimizedGraph(file, ())

    def optimize(path: str) -> OnnxModel:
        Path(path).write_bytes(b"a graph")
        return load(onnx_files.perceptron(file, hidden=32), weight_cache=False)

    assert place.make(optimize, lambda _: load(file, weight_cache=False)) is not None
    assert stored() == []


def test_data_outside_of_the_folder_are_in_doubt(tmp_path: Path, optimized: list[str]) -> None:
    (tmp_path / "inner").mkdir()
    file = onnx_files.with_external_data(tmp_path / "inner" / "m.onnx")
    (tmp_path / "m.data").write_bytes((file.parent / "m.data").read_bytes())
    model = onnx.load(file, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../m.data"
    file.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="not in its folder"):
        optimized_graphs.OptimizedGraph(file, ())


def test_a_name_that_could_be_external_data_is_in_doubt(tmp_path: Path) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    model = onnx.load(file)
    model.doc_string = "location"
    onnx.save(model, file)
    with pytest.raises(ValueError, match="not in its folder"):
        optimized_graphs.OptimizedGraph(file, ())
    load(file)
    assert stored() == []


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path: Path, folder: Path) -> None:
    folder.parent.write_bytes(b"a file")
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    assert load(file).run(x_inputs(), ["y"])[0].shape == (7, 3)


def test_nothing_is_compared_without_the_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    monkeypatch.setattr(optimized_graphs, "available_memory", lambda: 6 * file.stat().st_size - 1)
    load(file)
    assert stored() == []


def test_graphs_of_an_earlier_file_are_removed_after_a_day(tmp_path: Path, folder: Path) -> None:
    file = onnx_files.perceptron(tmp_path / "m.onnx")
    other = onnx_files.perceptron(tmp_path / "other.onnx", hidden=16)
    load(file)
    load(other)
    onnx_files.perceptron(file, hidden=32)
    load(file)
    assert len(stored()) == 3
    past = time.time() - 90_000
    for kept in stored():
        os.utime(kept.path, (past, past))
    onnx_files.perceptron(file, hidden=48)
    load(file)
    assert sorted(Path(kept.source).name for kept in stored()) == ["m.onnx", "other.onnx"]
    assert sorted(path.suffix for path in folder.iterdir()) == [".graph", ".graph"]

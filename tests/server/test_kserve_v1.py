"""KServe's protocol, version 1, on a server of tree models and neural networks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest
import xgboost

from tests.runtimes import onnx_files
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("kserve_v1")

X = np.random.default_rng(0).random((40, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    trees = xgboost.train({"nthread": 1, "max_depth": 2}, xgboost.DMatrix(X, X[:, 0]), 5)
    trees.save_model(folder / "trees.json")
    onnx_files.perceptron(folder / "fraud.onnx")
    onnx_files.sum_of_two(folder / "pair.onnx")
    onnx_files.identity(folder / "text.onnx", "BYTES")
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    files = ("trees.json", "fraud.onnx", "pair.onnx", "text.onnx")
    models = [f"{Path(file).stem}={folder / file}" for file in files]
    with Server(models, log, threads=1) as running:
        yield running


def predict(server: Server, model: str, body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/models/{model}:predict", json=body, timeout=60)


def test_rows_of_the_only_input_and_output(server: Server, folder: Path) -> None:
    answer = predict(server, "trees", {"instances": X[:5].tolist()})
    wanted = xgboost.Booster(model_file=folder / "trees.json").predict(xgboost.DMatrix(X[:5]))
    assert answer.json() == {"predictions": wanted.tolist()}


def test_several_outputs_are_objects(server: Server, folder: Path) -> None:
    x = np.linspace(0, 1, 60, dtype=np.float32).reshape(2, 30)
    answer = predict(server, "fraud", {"instances": [{"x": row} for row in x.tolist()]})
    y, label = onnxruntime.InferenceSession(folder / "fraud.onnx").run(None, {"x": x})
    got = answer.json()["predictions"]
    assert [row["label"] for row in got] == label.tolist()
    np.testing.assert_array_equal(np.array([row["y"] for row in got], np.float32), y)


def test_several_inputs_and_texts(server: Server) -> None:
    rows = [{"a": [1, 2], "b": [10, 20]}, {"a": [3, 4.5], "b": [30, 40]}]
    assert predict(server, "pair", {"instances": rows}).json() == {
        "predictions": [[11.0, 22.0], [33.0, 44.5]]
    }
    texts = {"instances": [["a", "é"], ["c", {"b64": "5pel"}]]}
    assert predict(server, "text", texts).json() == {"predictions": [["a", "é"], ["c", "日"]]}


@pytest.mark.parametrize(
    ("model", "body", "status", "says"),
    [
        ("trees", {"instances": []}, 400, "instances"),
        ("trees", {"instances": [[1, 2, 3, 4]], "signature_name": "x"}, 400, "signature_name"),
        ("trees", {"instances": [[1, 2, 3]]}, 400, "has shape [1, 3]; it takes [-1, 4]"),
        ("trees", {"instances": [[1, 2, 3, 4], [1, 2, 3]]}, 400, "arrays of different lengths"),
        ("trees", {"instances": [[1, 2, 3, 4, 5], [1, 2, 3]]}, 400, "arrays of different lengths"),
        ("trees", {"instances": [[1, 2, 3, "4"]]}, 400, "of FP32 takes numbers"),
        ("trees", {"instances": [{"y": [1, 2, 3, 4]}]}, 400, "there is no input 'y'"),
        ("pair", {"instances": [[1, 2]]}, 400, "row 0 is not an object with the inputs a, b"),
        ("pair", {"instances": [{"a": [1], "b": [1]}, {"a": [1]}]}, 400, "row 1 has the inputs a; row 0"),
        ("pair", {"instances": [{"a": [1]}, {"a": [1]}]}, 400, "input 'b' is missing"),
        ("text", {"instances": [[{"b64": "?"}]]}, 400, "not the base64 of a text"),
        ("other", {"instances": [[1]]}, 404, "does not exist"),
        ("pair", {"inputs": [[1, 2]]}, 400, "inputs is not an object with the inputs a, b"),
        ("pair", {"inputs": {"a": [[1, 2], [3]], "b": [1]}}, 400, "arrays of different lengths"),
        ("pair", {"inputs": {"a": [[1], [2]], "c": [1]}}, 400, "there is no input 'c'"),
        ("trees", {"inputs": [[1, 2, 3, 4]], "instances": [[1, 2, 3, 4]]}, 400, "has both instances"),
        ("trees", {}, 400, "has neither instances"),
        ("trees/versions/2", {"instances": [[1, 2, 3, 4]]}, 404, "has no version '2'"),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(
    server: Server, model: str, body: Any, status: int, says: str
) -> None:
    answer = predict(server, model, body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]


def test_whole_tensors(server: Server) -> None:
    answer = predict(server, "trees/versions/0", {"inputs": X[:5].tolist()})
    rows = predict(server, "trees", {"instances": X[:5].tolist()}).json()["predictions"]
    assert answer.json() == {"outputs": rows}
    one = predict(server, "text", {"inputs": {"x": [["a"]]}, "signature_name": "serving_default"})
    assert one.json() == {"outputs": [["a"]]}


def test_openai_clients_see_the_models_as_before(server: Server) -> None:
    assert httpx.get(f"{server.url}/v1/models/trees").json()["id"] == "trees"
    assert httpx.post(f"{server.url}/v1/models/trees", json={}).status_code == 405

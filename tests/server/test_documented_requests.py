"""The requests that KServe and Triton document: each is answered, or refused with an error that names why.

From ``docs/protocol`` and ``docs/user_guide`` of triton-inference-server/server, and ``docs/predict-api``
and ``docs/samples`` of kserve/kserve, both of August 2026. Texts are in ``test_generate.py``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import onnx
import pytest
import xgboost
from onnx import TensorProto, helper

from tests.runtimes import onnx_files
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("documented_requests")

HEADER: Final = "Inference-Header-Content-Length"
OCTETS: Final = {"Content-Type": "application/octet-stream"}
INPUT0: Final = {"name": "input0", "shape": [2, 2], "datatype": "UINT32"}
INPUT1: Final = {"name": "input1", "shape": [3], "datatype": "BOOL"}
DATA0: Final = np.array([1, 2, 3, 4], "<u4")
IRIS: Final = [[6.8, 2.8, 4.8, 1.4], [6.0, 3.4, 4.5, 1.6]]


def my_model(path: Path) -> None:
    """Write the model of the examples: UINT32 [2, 2] and BOOL [3] to FP32 [3, 2]."""
    nodes = [
        helper.make_node("Cast", ["input0"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers", "first"], ["row"], keepdims=1),
        helper.make_node("Cast", ["input1"], ["flags"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["flags", "last"], ["column"]),
        helper.make_node("Mul", ["column", "row"], ["output0"]),
    ]
    inputs = [
        helper.make_tensor_value_info("input0", TensorProto.UINT32, [2, 2]),
        helper.make_tensor_value_info("input1", TensorProto.BOOL, [3]),
    ]
    output = helper.make_tensor_value_info("output0", TensorProto.FLOAT, [3, 2])
    weights = [
        helper.make_tensor("first", TensorProto.INT64, [1], [0]),
        helper.make_tensor("last", TensorProto.INT64, [1], [1]),
    ]
    graph = helper.make_graph(nodes, "mymodel", inputs, [output], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    my_model(folder / "mymodel.onnx")
    onnx_files.identity(folder / "numbers.onnx", "UINT32")
    onnx_files.identity(folder / "texts.onnx", "BYTES")
    x = np.random.default_rng(0).random((50, 4))
    trees = xgboost.train({"nthread": 1, "max_depth": 2}, xgboost.DMatrix(x, x[:, 0]), 3)
    trees.save_model(folder / "iris.json")
    models = [f"{n}={folder / n}.onnx" for n in ("mymodel", "numbers", "texts")]
    models += [f"sklearn-irisv2={folder / 'iris.json'}"]
    models += ['sklearn-irisv2.engine_options={"input_name": "input-0"}']
    models += [f"mlserver={folder / 'iris.json'}"]
    models += ['mlserver.engine_options={"input_name": "input-1"}', f"plain={folder / 'iris.json'}"]
    late = {"timeout": 1e-6, "priority_levels": 2, "default_priority": 2}
    models += [f"late={folder / 'numbers.onnx'}", f"late.engine_options={json.dumps(late)}"]
    with Server(models, folder / "log", threads=1) as running:
        yield running


def infer(server: Server, body: Any, model: str = "mymodel") -> httpx.Response:
    return httpx.post(f"{server.url}/v2/models/{model}/infer", json=body, timeout=60)


def test_the_specifications_request(server: Server) -> None:
    """As printed, its second input has one value for three elements."""
    first, second = INPUT0 | {"data": [1, 2, 3, 4]}, INPUT1 | {"data": [True]}
    body: Any = {"id": "42", "inputs": [first, second], "outputs": [{"name": "output0"}]}
    refused = infer(server, body)
    assert refused.status_code == 400
    assert "input 'input1' has 1 values in data; its shape has 3" in refused.json()["error"]
    second["data"] = [True, False, True]
    assert infer(server, body).json() == {
        "model_name": "mymodel",
        "model_version": "1",
        "id": "42",
        "outputs": [
            {"name": "output0", "shape": [3, 2], "datatype": "FP32", "data": [4, 6, 0, 0, 4, 6]}
        ],
    }


def test_a_binary_request(server: Server) -> None:
    """Its JSON repeats the name of the model."""
    first = INPUT0 | {"parameters": {"binary_data_size": 16}}
    second = INPUT1 | {"parameters": {"binary_data_size": 3}}
    output = {"name": "output0", "parameters": {"binary_data": True}}
    body = {"model_name": "mymodel", "inputs": [first, second], "outputs": [output]}
    url = f"{server.url}/v2/models/mymodel/infer"

    def answer(described: Any) -> httpx.Response:
        head = json.dumps(described).encode()
        headers = {**OCTETS, HEADER: str(len(head))}
        return httpx.post(url, content=head + DATA0.tobytes() + b"\1\0\1", headers=headers)

    found = answer(body)
    length = int(found.headers[HEADER])
    [described] = json.loads(found.content[:length])["outputs"]
    assert described["parameters"] == {"binary_data_size": 24}
    assert np.frombuffer(found.content[length:], "<f4").tolist() == [4, 6, 0, 0, 4, 6]
    refused = answer(body | {"model_name": "other"})
    assert refused.status_code == 400
    assert "model_name is 'other', and the path names 'mymodel'" in refused.json()["error"]


@pytest.mark.parametrize(
    ("model", "data", "found"),
    [
        ("numbers", DATA0.tobytes(), [1, 4]),
        ("numbers", b"", [1, 0]),
        ("texts", b"a text", "refused: its input has shape [1, -1], and BYTES takes one element"),
        ("numbers", b"12345", "refused: has 5 bytes; shape [1, 1] of UINT32 has 4"),
        ("mymodel", DATA0.tobytes(), "refused: the model has 2 inputs"),
    ],
)
def test_a_raw_binary_request(server: Server, model: str, data: bytes, found: Any) -> None:
    """The body is one tensor, which is one row."""
    url = f"{server.url}/v2/models/{model}/infer"
    answer = httpx.post(url, content=data, headers={**OCTETS, HEADER: "0"})
    if isinstance(found, str):
        assert answer.status_code == 400
        assert found.removeprefix("refused: ") in answer.json()["error"]
        return
    length = int(answer.headers[HEADER])
    [described] = json.loads(answer.content[:length])["outputs"]
    assert described["shape"] == found
    assert answer.content[length:] == data


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"parameters": {"my_custom_parameter": 42}}, "parameters.my_custom_parameter"),
        ({"parameters": {"sequence_id": 42}}, "parameters.sequence_id"),
        (
            {"parameters": {"sequence_id": "e333c95a-07fc-42d2-ab16-033b1a566ed5"}},
            "parameters.sequence_id",
        ),
        (
            {"outputs": [{"name": "output0", "parameters": {"classification": 2}}]},
            "outputs[0].parameters.classification",
        ),
        (
            {
                "inputs": [
                    INPUT0
                    | {"parameters": {"shared_memory_region": "a", "shared_memory_byte_size": 16}}
                ]
            },
            "inputs[0].parameters.shared_memory",
        ),
    ],
)
def test_what_other_extensions_add_is_refused_by_name(
    server: Server, changes: Any, named: str
) -> None:
    body = {
        "id": "42",
        "inputs": [INPUT0 | {"data": [1, 2, 3, 4]}],
        "outputs": [{"name": "output0"}],
    }
    answer = infer(server, body | changes)
    assert answer.status_code == 400
    assert named in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("GET", "models/mymodel/config", None, "GET /v2/models/mymodel has its inputs"),
        ("GET", "models/mymodel/versions/1/config", None, "configuration is not reported"),
        ("GET", "models/stats", None, "statistics extension"),
        ("GET", "models/mymodel/stats", None, "statistics extension"),
        ("GET", "models/mymodel/versions/1/stats", None, "statistics extension"),
        ("GET", "trace/setting", None, "trace extension"),
        ("POST", "models/mymodel/trace/setting", {"trace_level": ["TIMESTAMPS"]}, "trace extension"),
        ("POST", "logging", {"log_verbose_level": 1}, "logging extension"),
        ("GET", "systemsharedmemory/status", None, "Shared memory"),
        (
            "POST",
            "systemsharedmemory/region/a/register",
            {"key": "/a", "offset": 0, "byte_size": 8},
            "Shared memory",
        ),
        ("POST", "cudasharedmemory/region/a/unregister", None, "Shared memory"),
    ],
)  # fmt: skip
def test_routes_of_other_extensions_are_refused_by_name(
    server: Server, method: str, path: str, body: Any, says: str
) -> None:
    answer = httpx.request(method, f"{server.url}/v2/{path}", json=body)
    assert answer.status_code == 501
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]


def test_the_quick_starts_and_samples(server: Server) -> None:
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    tensor = {"name": "input-0", "shape": [2, 4], "datatype": "FP32", "data": IRIS}
    answer = infer(server, {"inputs": [tensor]}, "sklearn-irisv2")
    assert answer.status_code == 200, answer.text
    [output] = answer.json()["outputs"]
    assert (output["name"], output["shape"]) == ("predict", [2])
    url = f"{server.url}/v1/models/sklearn-irisv2:predict"
    assert httpx.post(url, json={"instances": IRIS}).json() == {"predictions": output["data"]}
    # curl -d, as printed, declares a form.
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = json.dumps({"instances": IRIS})
    assert httpx.post(url, content=body, headers=form).json() == {"predictions": output["data"]}
    # The LightGBM server's own form, with columns by name.
    columns = {"inputs": [{"sepal_width_(cm)": {"0": 3.5}, "petal_length_(cm)": {"0": 1.4}}]}
    refused = httpx.post(url, json=columns)
    assert refused.status_code == 400
    assert "inputs" in refused.json()["error"]


def test_a_queue_policys_timeout(server: Server) -> None:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "UINT32", "data": [1]}
    for parameters in ({}, {"timeout": 10_000_000}, {"priority": 1}):
        answer = infer(server, {"inputs": [tensor], "parameters": parameters}, "late")
        assert answer.status_code == 504
        assert "deadline" in answer.json()["error"]


MLSERVER: Final = Path(__file__).parents[1] / "formats/peer_files/mlserver/requests.json"


def test_requests_of_mlservers_codecs(server: Server) -> None:
    """As its codecs encode them: with content types, and names of their own for inputs without one."""
    requests = json.loads(MLSERVER.read_text())
    rows = infer(server, requests["numpy request"], "mlserver").json()["outputs"][0]
    assert rows["shape"] == [2]
    assert infer(server, requests["numpy input"], "plain").json()["outputs"] == [rows]
    for name, data in (("string input", ["a", "b"]), ("base64 input", ["a\0"])):
        [output] = infer(server, requests[name], "texts").json()["outputs"]
        assert output["data"] == data


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ("texts", {"content_type": "pd"}, "content_type"),
        ("texts", {"content_type": "datetime"}, "content_type"),
        ("numbers", {"content_type": "base64"}, "content_type base64, which is for BYTES"),
        ("texts", {"content_type": "base64"}, "an element that is not base64"),
    ],
)
def test_other_content_types_are_refused_by_name(
    server: Server, model: str, changes: Any, says: str
) -> None:
    datatype, data = ("BYTES", ["*"]) if model == "texts" else ("UINT32", [1])
    tensor = {"name": "x", "shape": [1, 1], "datatype": datatype, "data": data}
    for body in (
        {"inputs": [tensor | {"parameters": changes}]},
        {"inputs": [tensor], "parameters": changes},
    ):
        answer = infer(server, body, model)
        assert answer.status_code == 400
        assert says in answer.json()["error"]

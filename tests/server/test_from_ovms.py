"""Each row of docs/how-to/from-triton.md about OpenVINO Model Server is run against a server."""

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import msgspec
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from openai import OpenAI

from galley.errors import SettingsError
from galley.runtimes.onnx import OnnxOptions
from galley.runtimes.openvino import OpenVINOOptions
from galley.settings.engine import EngineSettings
from tests.cli.command import parsed_command
from tests.pages import rows
from tests.runtimes import onnx_files
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("from_ovms")

PAGE: Final = Path(__file__).parents[2] / "docs/how-to/from-triton.md"
ROWS: Final = rows(PAGE, "From OpenVINO Model Server")

CONFIG: Final = """
name: "fraud"
max_batch_size: 8
version_policy: { specific { versions: [ 1, 2 ] } }
"""
X: Final = np.linspace(0, 1, 60, dtype=np.float32).reshape(2, 30)


class Served:
    """A server of a repository and a language model, and the repository."""

    def __init__(self, server: Server, repository: Path) -> None:
        self.server = server
        self.repository = repository

    def expected(self, version: int) -> dict[str, Any]:
        """Return the outputs of a version for X, computed by the library alone."""
        session = onnxruntime.InferenceSession(self.repository / f"fraud/{version}/model.onnx")
        y, label = session.run(None, {"x": X})
        return {"y": y, "label": label}

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(f"{self.server.url}{path}", json=body, timeout=60)

    def get(self, path: str) -> Any:
        return httpx.get(f"{self.server.url}{path}", timeout=60)

    @property
    def grpc(self) -> str:
        return "127.0.0.1:" + self.server.wait_for_log(r"gRPC listens on \S+:(\d+)")[1]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models")
    for number in (1, 2, 3):
        (folder / f"fraud/{number}").mkdir(parents=True)
        onnx_files.perceptron(folder / f"fraud/{number}/model.onnx", hidden=16 * number)
    (folder / "fraud/config.pbtxt").write_text(CONFIG)
    (folder / "pair/1").mkdir(parents=True)
    onnx_files.sum_of_two(folder / "pair/1/model.onnx")
    (folder / "text/1").mkdir(parents=True)
    onnx_files.identity(folder / "text/1/model.onnx", "BYTES")
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        ["chat=galley-demo"], log, model_repository=folder, threads=1, grpc_port=0
    ) as server:
        yield Served(server, folder)


def same(found: Any, expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(np.array(found[name], value.dtype), value)


def inference(served: Served) -> None:
    for library, address in (
        (triton, f"127.0.0.1:{served.server.port}"),
        (triton_grpc, served.grpc),
    ):
        with library.InferenceServerClient(address) as client:
            x = library.InferInput("x", [2, 30], "FP32")
            x.set_data_from_numpy(X)
            answer = client.infer("fraud", [x])
            same({name: answer.as_numpy(name) for name in ("y", "label")}, served.expected(2))


def prediction(served: Served) -> None:
    for path, version in (("fraud", 2), ("fraud/versions/1", 1)):
        expected = served.expected(version)
        answer = served.post(f"/v1/models/{path}:predict", {"inputs": {"x": X.tolist()}}).json()
        same(answer["outputs"], expected)
        body = {"instances": X.tolist(), "signature_name": "serving_default"}
        found = served.post(f"/v1/models/{path}:predict", body).json()["predictions"]
        same({name: [row[name] for row in found] for name in expected}, expected)
    pair: Any = {"inputs": {"a": [[1, 2], [3, 4]], "b": [[10, 20], [30, 40]]}}
    answer = served.post("/v1/models/pair:predict", pair)
    assert answer.json() == {"outputs": [[11.0, 22.0], [33.0, 44.0]]}
    refused = served.post("/v1/models/pair:predict", pair | {"signature_name": "other"})
    assert refused.status_code == 400
    assert "signature_name" in refused.json()["error"]


def description(served: Served) -> None:
    ok = {"error_code": "OK", "error_message": ""}
    one, two = ({"version": v, "state": "AVAILABLE", "status": ok} for v in "12")
    path = "/v1/models/fraud/versions/"
    assert served.get(f"{path}1").json() == {"model_version_status": [one]}
    assert served.get(f"{path}0").json() == {"model_version_status": [one, two]}
    for version, found in (("1", "1"), ("0", "2")):
        answer = served.get(f"{path}{version}/metadata").json()
        assert answer["modelSpec"] == {"name": "fraud", "version": found}
        signature = answer["metadata"]["signature_def"]["signatureDef"]["serving_default"]
        assert {
            kind: {
                name: (one["dtype"], [int(axis["size"]) for axis in one["tensorShape"]["dim"]])
                for name, one in signature[kind].items()
            }
            for kind in ("inputs", "outputs")
        } == {
            "inputs": {"x": ("DT_FLOAT", [-1, 30])},
            "outputs": {"y": ("DT_FLOAT", [-1, 3]), "label": ("DT_INT64", [-1])},
        }
    assert served.get("/v1/models/fraud/metadata").json() == answer
    assert served.get("/v1/models/fraud").json()["object"] == "model"
    missing = served.get(f"{path}3")
    assert missing.status_code == 404
    assert "has no version '3'" in missing.json()["error"]
    refused = served.get("/v1/models/chat/metadata")
    assert refused.status_code == 400
    assert "chat" in refused.json()["error"]


def ovmsclient_http(served: Served) -> None:
    """The requests that the functions of its version 2023.1 send, byte for byte."""
    recorded = msgspec.json.decode(
        (Path(__file__).parent / "recorded/ovmsclient.json").read_bytes()
    )
    for one in recorded:
        answer = httpx.request(
            one["method"],
            served.server.url + one["path"],
            content=one["body"],
            headers=one["headers"],
            timeout=60,
        )
        assert answer.status_code == one["status"], answer.text
        assert answer.json() == one["answer"]
    assert len(recorded) == 5


def prediction_service(served: Served) -> None:
    with grpc.insecure_channel(served.grpc) as channel:
        for call in ("PredictionService/Predict", "ModelService/GetModelStatus"):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(f"/tensorflow.serving.{call}")(b"")
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert f"tensorflow.serving.{call} is not supported" in refused.value.details()
            assert "inference.GRPCInferenceService" in refused.value.details()


def images(served: Served) -> None:
    image = {"b64": base64.b64encode(b"\x89PNG").decode()}
    for body in ({"instances": [{"x": image}]}, {"inputs": {"x": [image]}}, {"inputs": image}):
        answer = served.post("/v1/models/fraud:predict", body)
        assert answer.status_code == 400
        assert "input 'x'" in answer.json()["error"]
    texts = {"inputs": [["a", {"b64": "5pel"}]]}
    assert served.post("/v1/models/text:predict", texts).json() == {"outputs": [["a", "日"]]}


def configuration(served: Served) -> None:
    for method, path, instead in (
        ("GET", "/v1/config", "POST /v2/repository/index"),
        ("POST", "/v1/config/reload", "POST /v2/repository/models/MODEL/load"),
    ):
        answer = httpx.request(method, served.server.url + path)
        assert answer.status_code == 501
        assert instead in answer.json()["error"]
    index = served.post("/v2/repository/index", {}).json()
    assert {(one["name"], one["version"]) for one in index} > {("fraud", "1"), ("fraud", "2")}


def base_url(served: Served) -> None:
    client = OpenAI(base_url=f"{served.server.url}/v1", api_key="none", max_retries=0)
    chat = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "hello"}], max_completion_tokens=4
    )
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 4


def version_policy(served: Served) -> None:
    """CONFIG serves versions 1 and 2 of three."""
    with triton.InferenceServerClient(f"127.0.0.1:{served.server.port}") as client:
        assert client.get_model_metadata("fraud")["versions"] == ["1", "2"]


def options(kind: type[Any], text: str) -> Any:
    return EngineSettings(model="model", engine_options=text).options_as(kind)


def nireq(_: Served) -> None:
    assert options(OnnxOptions, '{"instances": 2}').instances == 2
    with pytest.raises(SettingsError, match="nireq"):
        options(OnnxOptions, '{"nireq": 2}')
    assert parsed_command("galley serve fraud.onnx --max-queue 8")["max_queue"] == 8


def plugin_config(_: Served) -> None:
    text = '{"properties": {"KV_CACHE_PRECISION": "f16"}}'
    assert options(OpenVINOOptions, text).properties == {"KV_CACHE_PRECISION": "f16"}
    with pytest.raises(SettingsError, match="plugin_config"):
        options(OpenVINOOptions, '{"plugin_config": {}}')


def batch_size(_: Served) -> None:
    made = options(OnnxOptions, '{"batch_axis": "none", "max_batch_size": 4}')
    assert (made.batch_axis, made.max_batch_size) == ("none", 4)
    for name in ("batch_size", "shape"):
        with pytest.raises(SettingsError, match=f"`{name}`"):
            options(OnnxOptions, f'{{"{name}": 4}}')


CHECKS: Final[dict[str, Callable[[Served], None]]] = {
    "/v2/models/M/infer": inference,
    "POST /v1/models/M:predict": prediction,
    "GET /v1/models/M/versions/V": description,
    "ovmsclient.make_http_client": ovmsclient_http,
    "tensorflow.serving.PredictionService": prediction_service,
    "GET /v1/config": configuration,
    'base_url="http://host:8000/v3"': base_url,
    "model_version_policy": version_policy,
    "nireq": nireq,
    "plugin_config": plugin_config,
    "batch_size": batch_size,
    '{"b64": "..."}': images,
}
"""The beginning of a row -> what it says, tried."""


@pytest.mark.parametrize("row", [row[0] for row in ROWS])
def test_a_row_of_the_page(served: Served, row: str) -> None:
    [check] = [check for begin, check in CHECKS.items() if row.startswith(begin)]
    check(served)


def test_every_check_has_a_row() -> None:
    assert len(ROWS) == len(CHECKS)

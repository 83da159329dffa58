"""A served model repository in Triton's layout: versions, and loading without a restart."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.runtimes import onnx_files
from tests.server.openapi import OF_REPOSITORY
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("model_repository")

ADMIN = {"authorization": "Bearer admin"}
X = np.ones((1, 30), np.float32)

CONFIG = """
name: "fraud"
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 30 ] } ]
version_policy: { latest { num_versions: 2 } }
dynamic_batching { max_queue_delay_microseconds: 1000 }
"""


def version(repository: Path, name: str, number: int) -> None:
    """The versions of the model differ in their hidden size, and so in their outputs."""
    folder = repository / name / str(number)
    folder.mkdir(parents=True)
    onnx_files.perceptron(folder / "model.onnx", hidden=16 * number)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for number in (1, 2):
        version(folder, "fraud", number)
    (folder / "fraud" / "config.pbtxt").write_text(CONFIG)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    with Server(
        [], log, model_repository=repository, threads=1, grpc_port=0, admin_key="admin"
    ) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=120) as client:
        yield client


def infer(client: Any, model: str = "fraud", number: str = "", rows: int = 1) -> Any:
    x = triton.InferInput("x", [rows, 30], "FP32").set_data_from_numpy(np.repeat(X, rows, 0))
    return client.infer(model, [x], model_version=number)


def index(client: Any) -> set[tuple[str, str, str]]:
    return {(m["name"], m["version"], m["state"]) for m in client.get_model_repository_index()}


def test_versions_are_served_side_by_side(client: Any) -> None:
    assert index(client) == {("fraud", "1", "READY"), ("fraud", "2", "READY")}
    assert client.get_model_metadata("fraud")["versions"] == ["1", "2"]
    latest, one, two = (infer(client, number=number) for number in ("", "1", "2"))
    assert [r.get_response()["model_version"] for r in (latest, one, two)] == ["2", "1", "2"]
    assert [r.get_response()["model_name"] for r in (latest, one)] == ["fraud", "fraud"]
    assert (latest.as_numpy("y") == two.as_numpy("y")).all()
    assert (one.as_numpy("y") != two.as_numpy("y")).any()
    assert client.is_model_ready("fraud", "1")
    assert not client.is_model_ready("fraud", "3")
    with pytest.raises(InferenceServerException, match=r"no version '3'; it has version 1, 2"):
        infer(client, number="3")
    with pytest.raises(InferenceServerException, match="has 9 rows; the model takes 1 to 8"):
        infer(client, rows=9)


def test_changes_need_the_admins_key(client: Any, server: Server) -> None:
    for call in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="API key"):
            call("fraud")
    [loading, unloading] = OF_REPOSITORY
    for operation in (unloading, loading):
        url = server.url + operation.path.replace("{model}", "fraud")
        answer = httpx.post(url, json={}, headers=ADMIN, timeout=120)
        assert (answer.status_code, answer.json()) == (200, {})
        operation.validate_response(answer)


def states(server: Server) -> dict[str, str]:
    """The models that OpenAI's API lists, and their states."""
    models = httpx.get(f"{server.url}/v1/models").json()["data"]
    return {model["id"]: model["state"] for model in models}


def test_a_model_is_unloaded_and_loaded(client: Any, server: Server) -> None:
    processes = len(server.children())
    client.unload_model("fraud", headers=ADMIN)
    assert index(client) == {("fraud", "1", "UNAVAILABLE"), ("fraud", "2", "UNAVAILABLE")}
    assert client.is_server_ready()
    assert not client.is_model_ready("fraud")
    assert len(server.children()) == processes - 2
    assert states(server) == {"fraud": "unloaded", "fraud:1": "unloaded"}
    with pytest.raises(InferenceServerException, match="'fraud' is not loaded: unloaded"):
        infer(client)
    client.load_model("fraud", headers=ADMIN)
    assert infer(client).as_numpy("y").shape == (1, 3)
    assert index(client) == {("fraud", "1", "READY"), ("fraud", "2", "READY")}
    assert states(server) == {"fraud": "loaded", "fraud:1": "loaded"}


def test_new_versions_and_models_are_loaded_while_requests_run(
    client: Any, server: Server, repository: Path
) -> None:
    version(repository, "fraud", 3)
    version(repository, "iris", 1)
    url = f"{server.url}/v2/repository/models/fraud/load"
    seen: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(httpx.post, url, headers=ADMIN, timeout=120)
        while not loaded.done() or not seen:
            seen.append(infer(client).get_response()["model_version"])
        assert loaded.result().status_code == 200
    assert set(seen) <= {"2", "3"}
    assert infer(client).get_response()["model_version"] == "3"
    assert index(client) == {("fraud", "2", "READY"), ("fraud", "3", "READY")}
    client.load_model("iris", headers=ADMIN)
    assert infer(client, "iris").as_numpy("y").shape == (1, 3)
    shutil.rmtree(repository / "iris")
    client.unload_model("iris", headers=ADMIN)
    with pytest.raises(InferenceServerException, match="no model 'iris'"):
        client.load_model("iris", headers=ADMIN)
    with pytest.raises(InferenceServerException, match="no model 'other'"):
        client.load_model("other", headers=ADMIN)


def test_a_version_that_cannot_be_loaded_changes_nothing(client: Any, repository: Path) -> None:
    before, models = infer(client).get_response()["model_version"], index(client)
    broken = repository / "fraud" / "9"
    broken.mkdir()
    (broken / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InferenceServerException, match="cannot load it"):
        client.load_model("fraud", headers=ADMIN)
    assert infer(client).get_response()["model_version"] == before
    shutil.rmtree(broken)
    config = repository / "fraud" / "config.pbtxt"
    config.write_text(CONFIG + "optimization { }")
    with pytest.raises(InferenceServerException, match='no field named "optimization"'):
        client.load_model("fraud", headers=ADMIN)
    config.write_text(CONFIG.replace("dims: [ 30 ]", "dims: [ 31 ]"))
    with pytest.raises(InferenceServerException, match=r"declared as FP32 \[-1, 31\]"):
        client.load_model("fraud", headers=ADMIN)
    config.write_text(CONFIG)
    with pytest.raises(InferenceServerException, match="parameters"):
        client.load_model("fraud", headers=ADMIN, config="{}")
    assert infer(client).get_response()["model_version"] == before
    assert index(client) == models


def test_the_same_over_grpc(server: Server, client: Any) -> None:
    port = server.wait_for_log(r"gRPC listens on \S+:(\d+)")[1]
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as grpc:
        found = {(m.name, m.version, m.state) for m in grpc.get_model_repository_index().models}
        assert found == index(client)
        assert ("fraud", "2", "READY") in found
        with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
            grpc.unload_model("fraud")
        grpc.unload_model("fraud", headers=ADMIN)
        assert not grpc.is_model_ready("fraud")
        grpc.load_model("fraud", headers=ADMIN)
        assert grpc.is_model_ready("fraud")
        with pytest.raises(InferenceServerException, match=r"NOT_FOUND.*no model 'other'"):
            grpc.load_model("other", headers=ADMIN)

"""Every command of docs/how-to/from-triton.md is run, and Triton's client gets an answer."""

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
import xgboost

from tests.runtimes import onnx_files
from tests.server.serving import Server

PAGE = Path(__file__).parents[2] / "docs/how-to/from-triton.md"
COMMANDS = re.findall(r"\| `(galley serve .*?)` \|", PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with the models named on the page."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).random((50, 30))
    trees = xgboost.train({"nthread": 1, "max_depth": 2}, xgboost.DMatrix(x, x[:, 0]), 3)
    Path("fraud").mkdir()
    trees.save_model("fraud/model.json")
    trees.save_model("fraud.ubj")
    Path("models/fraud/1").mkdir(parents=True)
    onnx_files.perceptron(Path("models/fraud/1/model.onnx"))


def answered(client: Any, library: Any) -> bool:
    name = client.get_model_metadata("fraud")
    inputs = name.inputs if library is triton_grpc else name["inputs"]
    [x] = [one.name if library is triton_grpc else one["name"] for one in inputs]
    tensor = library.InferInput(x, [2, 30], "FP32")
    tensor.set_data_from_numpy(np.ones((2, 30), np.float32))
    response = client.infer("fraud", [tensor]).get_response()
    outputs = response.outputs if library is triton_grpc else response["outputs"]
    return len(outputs) > 0


def test_the_page_has_commands() -> None:
    assert len(COMMANDS) == 4


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_serves_the_model(command: str, tmp_path: Path) -> None:
    server = Server([], tmp_path / "log")
    _, *server.arguments = shlex.split(re.sub(r"port \d+", "port 0", command))
    with server:
        with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            assert answered(client, triton)
        if "--grpc-port" in command:
            port = server.wait_for_log(r"gRPC listens on \S+:(\d+)")[1]
            with triton_grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
                assert answered(client, triton_grpc)

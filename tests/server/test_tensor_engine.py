"""A tensor engine, which has no vocabulary, behind the server and the gateway."""

import array
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from galley import LLM
from galley.errors import RequestError, SettingsError
from galley.gateway.call import Call
from galley.gateway.caller import Caller
from galley.gateway.predictions import Prediction
from galley.gateway.registry import open_models
from galley.settings.config import Settings
from galley.types import Tensor
from tests.server import toy_tensors
from tests.server.packages import install
from tests.server.serving import Server

pytestmark = pytest.mark.xdist_group("server_engines")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``PYTHONPATH`` of an installed package with the engine ``doubler``."""
    return install(tmp_path_factory.mktemp("packages"), toy_tensors, "doubler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder without a tokenizer or any of Galley's other files."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def server(
    folder: Path, package: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "log"
    environ = {"PYTHONPATH": package}
    with Server([f"twice={folder}"], log, engine="doubler", environ=environ) as running:
        yield running


def rows(*values: float, name: str = "x") -> Tensor:
    data = array.array("f", values).tobytes()
    return Tensor(name=name, datatype="FP32", shape=(len(values) // 3, 3), data=data)


def test_the_gateway_answers_without_text(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", package)
    settings = Settings(model=str(folder), engine="doubler", served_model_name="twice")

    async def doubled() -> None:
        async with open_models(settings) as models:
            served = await models.find("twice", "predict", Caller("finds"))
            assert list(served.processes) == ["engine"]
            call = Call(served, "/test", Caller("r-1"))
            prediction = Prediction(call, [rows(1, 2, 3, 4, 5, 6)])
            [y] = await prediction.outputs()
            prediction.close()
            assert (y.name, y.shape) == ("y", (2, 3))
            assert array.array("f", y.data).tolist() == [2, 4, 6, 8, 10, 12]
            assert call.caller.record["rows"] == 2
            for wrong, says in (
                ([], r"input 'x' is missing; .* takes 'x' \(FP32, \[-1, 3\]\)"),
                ([rows(1, 2, 3), rows(1, 2, 3)], "input 'x' is given twice"),
                ([rows(1, 2, 3, name="z")], "there is no input 'z'"),
                ([rows(*range(27))], "has 9 rows; the model takes 1 to 8"),
                ([Tensor(name="x", datatype="FP64", shape=(1, 3), data=bytes(24))], "FP64; it takes FP32"),
                ([Tensor(name="x", datatype="FP32", shape=(1, 4), data=bytes(16))], r"shape \[1, 4\]"),
                ([Tensor(name="x", datatype="FP32", shape=(1, 3), data=bytes(11))], "11 bytes; .* has 12"),
            ):  # fmt: skip
                with pytest.raises(RequestError, match=says):
                    Prediction(call, wrong)

    asyncio.run(doubled())


def test_a_server_of_tensors_alone(server: Server) -> None:
    with server.client() as http:
        [card] = http.get("/v1/models").json()["data"]
        assert (card["id"], card["tasks"], card["max_model_len"]) == ("twice", ["predict"], None)
        assert http.get("/ready").status_code == 200
        assert http.get("/api/tags").json() == {"models": []}
        assert server.text_workers() == []
        assert "galley_model_context_tokens" not in server.metrics()


@pytest.mark.parametrize(
    ("route", "body", "says"),
    [
        ("/v1/completions", {"prompt": "a"}, "'twice' cannot generate; it can predict"),
        ("/v1/embeddings", {"input": "a"}, "'twice' cannot embed; it can predict"),
        ("/tokenize", {"prompt": "a"}, "does not work with text; it can predict"),
        ("/detokenize", {"tokens": [1]}, "does not work with text; it can predict"),
        ("/api/show", {"model": "twice"}, "does not work with text; it can predict"),
    ],
)
def test_routes_of_text_refuse_the_model(
    server: Server, route: str, body: dict[str, object], says: str
) -> None:
    answer = httpx.post(f"{server.url}{route}", json={"model": "twice", **body})
    assert answer.status_code == 400
    assert says in json.dumps(answer.json())


def test_the_library_of_texts_refuses_the_model(
    folder: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(package)
    with pytest.raises(SettingsError, match="does not work with text"):
        LLM(str(folder), engine="doubler")
